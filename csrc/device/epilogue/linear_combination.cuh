// The general epilogue: D = act(alpha * acc + beta * C + bias), one rounding to D's type.
//
// The types of C, D and bias are run-time values: branches that are uniform over the grid, so that one mainloop
// serves every combination. A mainloop hands over 4 neighbouring accumulators of a row, or several such rows, in
// fp32 and knows nothing of the epilogue.
//
// Every product, sum and fma is spelled, so that the bits of D do not depend on how the compiler contracts:
// z = rn(alpha * acc), z = fma(beta, C, z), z = rn(z + bias), the same in every kernel and in the split-K reduction.
//
// silu of -inf: z * sigmoid(z) is -inf * 0 = NaN, where the limit is -0. torch gives NaN too.
#pragma once

#include "device/epilogue/activation.cuh"
#include "device/epilogue/params.cuh"
#include "device/ptx/convert.cuh"

namespace gemmx::device {

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
__device__ __forceinline__ void store_row4(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n, const float* x,
                                           int count) {
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

// Z of kRows rows of 4 neighbouring columns: rows m, m + row_step, ...; x[4 r + i] is the accumulator of column n + i,
// whose bias is element bias_n + i. All of C is loaded before the first use. `count` of the columns exist.
template <int kRows>
__device__ __forceinline__ void pre_activation_rows(const EpilogueParams& e, int64_t batch, int64_t m, int row_step,
                                                    int64_t n, int64_t bias_n, int count, float (&x)[4 * kRows]) {
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
    load_row4(bias, e.bias, bias_n * e.bias_stride, e.bias_stride, e.bias_dtype, count, false);
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) x[i] = __fadd_rn(x[i], bias[i % 4]);
  }
}

template <int kRows>
__device__ __forceinline__ void store_rows(const EpilogueParams& e, int64_t batch, int64_t m, int row_step, int64_t n,
                                           int count, const float (&x)[4 * kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (m + r * row_step < e.m) store_row4(e, batch, m + r * row_step, n, x + 4 * r, count);
  }
}

// The epilogue of kRows rows of 4 neighbouring columns, as pre_activation_rows has them. n is a multiple of 4 and less
// than N.
template <int kRows>
__device__ __forceinline__ void epilogue_store_rows(const EpilogueParams& e, int64_t batch, int64_t m, int row_step,
                                                    int64_t n, float (&x)[4 * kRows]) {
  const int count = e.n - n < 4 ? static_cast<int>(e.n - n) : 4;
  pre_activation_rows<kRows>(e, batch, m, row_step, n, n, count, x);
  activate_all(x, e);
  store_rows<kRows>(e, batch, m, row_step, n, count, x);
}

}  // namespace gemmx::device
