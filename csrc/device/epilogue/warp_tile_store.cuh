// D tile of one warp: accumulators through shared memory to whole-row vectors of 4 elements.
//
// An mma accumulator is 2 neighbouring columns: stored directly, a warp would touch 8 rows of D with 16 bytes
// each, half of every 32-byte sector. Transposed through the mainloop's shared memory a warp writes
// rows of kWarpN elements, reads C and bias the same way, and the epilogue's code (every activation) exists once,
// in a loop, instead of once per accumulator pair.
//
// Every product, sum and fma is spelled, so that the bits of D do not depend on how the compiler contracts:
// z = rn(alpha * acc), z = fma(beta, C, z), z = rn(z + bias), the same in the split-K reduction.
#pragma once

#include "device/epilogue/activation.cuh"
#include "device/epilogue/params.cuh"
#include "device/ptx/convert.cuh"

namespace gemmx::device {

struct VectorEpilogueParams : EpilogueParams {
  int d_vector = 1;       // elements (4, 2, 1) that one store may write
  bool c_vector = false;  // 4 neighbours of a row of C are one aligned load
};

inline VectorEpilogueParams make_vector_epilogue_params(const Problem& p, const Operands& o) {
  VectorEpilogueParams e{make_epilogue_params(p, o)};
  const int d_elements = p.d.major == Major::n ? vector_bytes(p.d) / size_of(p.d.dtype) : 1;
  e.d_vector = d_elements >= 4 ? 4 : d_elements >= 2 ? 2 : 1;
  e.c_vector = p.has_c() && p.c.major == Major::n && p.c.col_stride == 1 && vector_bytes(p.c) >= 4 * size_of(p.c.dtype);
  return e;
}

// fp32 partials (planes, M, N) of split-K in the workspace: alpha 1, nothing added.
inline VectorEpilogueParams make_partial_params(const Problem& p, void* workspace) {
  VectorEpilogueParams e;
  e.d = workspace;
  e.m = p.m;
  e.n = p.n;
  e.d_row_stride = p.n;
  e.d_col_stride = 1;
  e.d_batch_stride = p.m * p.n;
  e.d_dtype = DType::f32;
  e.d_vector = p.n % 4 == 0 ? 4 : p.n % 2 == 0 ? 2 : 1;
  return e;
}

__device__ __forceinline__ float half_as_float(uint32_t bits, DType dtype) {
  return dtype == DType::bf16 ? ptx::bf16_to_float(bits) : ptx::f16_to_float(bits);
}

__device__ __forceinline__ float load_element(const void* base, int64_t index, DType dtype) {
  return dtype == DType::f32 ? static_cast<const float*>(base)[index]
                             : half_as_float(static_cast<const uint16_t*>(base)[index], dtype);
}

// Four neighbours of a row: those at or beyond `count` are zeros.
__device__ __forceinline__ void load_row4(float (&x)[4], const void* base, int64_t index, int64_t stride, DType dtype,
                                          int count, bool vector) {
  if (vector && count >= 4) {
    if (dtype == DType::f32) {
      const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(base) + index);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
      return;
    }
    const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(base) + index);
    const uint32_t words[2] = {v.x, v.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = half_as_float(words[i / 2] >> (i % 2 * 16), dtype);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? load_element(base, index + i * stride, dtype) : 0.0f;
}

template <Activation kActivation, int kCount>
__device__ __forceinline__ void activate_each(float (&z)[kCount], const EpilogueParams& e) {
#pragma unroll
  for (float& value : z) value = activate(kActivation, value, e.arg0, e.arg1);
}

// One branch for all values.
template <int kCount>
__device__ __forceinline__ void activate_all(float (&z)[kCount], const EpilogueParams& e) {
  switch (e.activation) {
    case Activation::none: break;
    case Activation::relu: activate_each<Activation::relu>(z, e); break;
    case Activation::gelu: activate_each<Activation::gelu>(z, e); break;
    case Activation::gelu_tanh: activate_each<Activation::gelu_tanh>(z, e); break;
    case Activation::silu: activate_each<Activation::silu>(z, e); break;
    case Activation::sigmoid: activate_each<Activation::sigmoid>(z, e); break;
    case Activation::tanh: activate_each<Activation::tanh>(z, e); break;
    case Activation::hardswish: activate_each<Activation::hardswish>(z, e); break;
    case Activation::leaky_relu: activate_each<Activation::leaky_relu>(z, e); break;
    case Activation::clamp: activate_each<Activation::clamp>(z, e); break;
  }
}

__device__ __forceinline__ uint32_t pack_pair(float x, float y, DType dtype) {
  return dtype == DType::bf16 ? ptx::pack_bf16x2(x, y) : ptx::pack_f16x2(x, y);
}

__device__ __forceinline__ void store_element(void* base, int64_t index, DType dtype, float x) {
  if (dtype == DType::f32) {
    static_cast<float*>(base)[index] = x;
  } else {
    static_cast<uint16_t*>(base)[index] = static_cast<uint16_t>(pack_pair(x, 0.0f, dtype));
  }
}

// Stores x as D[batch][m][n .. n + count), n a multiple of 4.
__device__ __forceinline__ void store_row4(const VectorEpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                           const float* x, int count) {
  const int64_t index = batch * e.d_batch_stride + m * e.d_row_stride + n * e.d_col_stride;
  if (e.d_vector == 4 && count >= 4) {
    if (e.d_dtype == DType::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(e.d) + index) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(e.d) + index) =
          make_uint2(pack_pair(x[0], x[1], e.d_dtype), pack_pair(x[2], x[3], e.d_dtype));
    }
    return;
  }
  if (e.d_vector >= 2 && count >= 4) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      if (e.d_dtype == DType::f32) {
        *reinterpret_cast<float2*>(static_cast<float*>(e.d) + index + i) = make_float2(x[i], x[i + 1]);
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(e.d) + index + i) = pack_pair(x[i], x[i + 1], e.d_dtype);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) store_element(e.d, index + i * e.d_col_stride, e.d_dtype, x[i]);
  }
}

// The epilogue of kRows rows of 4 neighbouring columns: rows m, m + row_step, ...; x[4 r + i] is the accumulator of
// column n + i. All of C is loaded before the first use. n is a multiple of 4 and less than N.
template <int kRows>
__device__ __forceinline__ void epilogue_store_rows(const VectorEpilogueParams& e, int64_t batch, int64_t m,
                                                    int row_step, int64_t n, float (&x)[4 * kRows]) {
  const int count = e.n - n < 4 ? static_cast<int>(e.n - n) : 4;
#pragma unroll
  for (float& value : x) value = __fmul_rn(e.alpha, value);
  if (e.c != nullptr) {
    float c[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = m + r * row_step;
      const int64_t index = batch * e.c_batch_stride + row * e.c_row_stride + n * e.c_col_stride;
      load_row4(c[r], e.c, index, e.c_col_stride, e.c_dtype, row < e.m ? count : 0, e.c_vector);
    }
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) x[i] = __fmaf_rn(e.beta, c[i / 4][i % 4], x[i]);
  }
  if (e.bias != nullptr) {
    float bias[4];
    load_row4(bias, e.bias, n * e.bias_stride, e.bias_stride, e.bias_dtype, count, false);
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) x[i] = __fadd_rn(x[i], bias[i % 4]);
  }
  activate_all(x, e);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (m + r * row_step < e.m) store_row4(e, batch, m + r * row_step, n, x + 4 * r, count);
  }
}

// Shared memory of one warp: 16 * blocks rows of kWarpN fp32. The 8 words of padding put the 4 rows that a
// half-warp writes 8 bytes each into distinct banks; 16-byte reads of a row need none.
template <int kBlocksM, int kWarpN, int kBlocksPerPass>
struct WarpTileStore {
  static_assert(kBlocksM % kBlocksPerPass == 0, "passes must divide the warp's rows");
  static constexpr int kPitch = kWarpN + 8;
  static constexpr int kBytes = 16 * kBlocksPerPass * kPitch * 4;
  static constexpr int kLanesPerRow = kWarpN / 4;
  static constexpr int kRowsPerStep = 32 / kLanesPerRow;
  static constexpr int kRowsAtOnce = 16 * kBlocksPerPass / kRowsPerStep < 2 ? 16 * kBlocksPerPass / kRowsPerStep : 2;

  // (m, n): the first row and column of the warp's tile in D. `buffer` has kBytes, 16-byte aligned.
  __device__ static __forceinline__ void run(const VectorEpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             const float (&acc)[kBlocksM][kWarpN / 8][4], float* buffer) {
    const int lane = threadIdx.x % 32;
    const int first_row = lane / kLanesPerRow;
    const int column = lane % kLanesPerRow * 4;
#pragma unroll 1
    for (int pass = 0; pass < kBlocksM / kBlocksPerPass; ++pass) {
      __syncwarp();
      // Registers have no run-time index: every pass is a branch of its own, the stores below are shared.
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
        if (pass == i / kBlocksPerPass) write_block(acc[i], buffer + i % kBlocksPerPass * 16 * kPitch, lane);
      }
      __syncwarp();
      if (n + column >= e.n) continue;
      const int64_t pass_m = m + pass * 16 * kBlocksPerPass;
#pragma unroll 1
      for (int row = first_row; row < 16 * kBlocksPerPass && pass_m + row < e.m; row += kRowsAtOnce * kRowsPerStep) {
        float x[4 * kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float4 v = *reinterpret_cast<const float4*>(buffer + (row + r * kRowsPerStep) * kPitch + column);
          x[4 * r] = v.x, x[4 * r + 1] = v.y, x[4 * r + 2] = v.z, x[4 * r + 3] = v.w;
        }
        epilogue_store_rows<kRowsAtOnce>(e, batch, pass_m + row, kRowsPerStep, n + column, x);
      }
    }
  }

 private:
  __device__ static __forceinline__ void write_block(const float (&acc)[kWarpN / 8][4], float* rows, int lane) {
    float* at = rows + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
      *reinterpret_cast<float2*>(at + 8 * j) = make_float2(acc[j][0], acc[j][1]);
      *reinterpret_cast<float2*>(at + 8 * j + 8 * kPitch) = make_float2(acc[j][2], acc[j][3]);
    }
  }
};

}  // namespace gemmx::device
