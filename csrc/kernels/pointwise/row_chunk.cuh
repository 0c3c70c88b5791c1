// What the elementwise kernels share: how a warp walks a row, and the loads and stores of its chunks.
//
// A warp takes kCount columns a lane of one row: vectors of 16 bytes where every row starts on one and n is a multiple
// of it, elsewhere single elements, 32 neighbours to a load so that a warp still reads whole sectors.
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::pointwise {

// 8 warps: enough to hide the latency of loads with 4 to 8 blocks on an SM, and few enough that a block's rows are a
// fine unit of work.
inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
// Rows that a warp loads before it computes, so that an SM has the 32 KB or so in flight that memory needs to be busy.
inline constexpr int kRowsAtOnce = 2;
// Rows of a block that are read together.
inline constexpr int kRowStep = kWarps * kRowsAtOnce;

// kVector: elements of a 16-byte vector, 8 or 4; 0: single elements, any strides.
template <int kVector>
inline constexpr int kCount = kVector == 0 ? 8 : kVector;

template <int kVector>
__device__ __forceinline__ int64_t column_of(int64_t strip, int lane, int i) {
  const int64_t first = strip * (32 * kCount<kVector>);
  return kVector == 0 ? first + i * 32 + lane : first + lane * kVector + i;
}

// A chunk as it lies in memory, so that a load that is under way holds no more registers than its bytes.
template <int kVector>
struct Chunk {
  uint4 words;

  __device__ __forceinline__ void load(const void* base, int64_t row, int64_t, int64_t column, int64_t, DType) {
    words = *reinterpret_cast<const uint4*>(static_cast<const char*>(base) + (row + column) * (16 / kVector));
  }
  __device__ __forceinline__ void values(float (&x)[kVector], DType dtype) const {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kVector == 8) {
        x[2 * i] = device::half_as_float(w[i], dtype);
        x[2 * i + 1] = device::half_as_float(w[i] >> 16, dtype);
      } else {
        x[i] = __uint_as_float(w[i]);
      }
    }
  }
};
template <>
struct Chunk<0> {
  float x_[8];

  // row: the index of its first element.
  __device__ __forceinline__ void load(const void* base, int64_t row, int64_t stride, int64_t column, int64_t n,
                                       DType dtype) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t c = column + i * 32;
      x_[i] = c < n ? device::load_element(base, row + c * stride, dtype) : 0.0f;
    }
  }
  __device__ __forceinline__ void values(float (&x)[8], DType) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x_[i];
  }
};

// Rounds to dtype. row: the index of its first element; packed.
template <int kVector>
__device__ __forceinline__ void store_chunk(void* base, int64_t row, int64_t column, int64_t n, DType dtype,
                                            const float (&x)[kCount<kVector>]) {
  if constexpr (kVector == 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int64_t c = column + i * 32;
      if (c < n) device::store_element(base, row + c, dtype, x[i]);
    }
  } else {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kVector == 8) {
        w[i] = device::pack_pair(x[2 * i], x[2 * i + 1], dtype);
      } else {
        w[i] = __float_as_uint(x[i]);
      }
    }
    *reinterpret_cast<uint4*>(static_cast<char*>(base) + (row + column) * (16 / kVector)) = {w[0], w[1], w[2], w[3]};
  }
}

}  // namespace gemmx::pointwise
