// D = alpha * acc + bias of one warp of a wgmma kernel by TMA: 16 rows of kN accumulators, rounded in registers,
// written to swizzled shared memory (stmatrix) and stored asynchronously, a box of 16 rows after the other. The warp
// goes on to its next tile while the copy engine reads the boxes; TMA clips them at the edges of D.
//
// Each warp has two buffers of its own, so that no warp waits for another. Rounding steps are those of
// linear_combination.cuh, so that both epilogues give the same bits.
#pragma once

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/tma.cuh"
#include "device/swizzle.cuh"

namespace gemmx::device {

// Columns of a box: rows of 128 bytes where kN allows, else of 64 or 32.
GEMMX_HOST_DEVICE constexpr int store_box_columns(int tile_n, int element_bytes) {
  int columns = 128 / element_bytes;
  while (tile_n % columns != 0) columns /= 2;
  return columns;
}

template <int kN>
struct TmaTileStore {
  static constexpr int kRows = 16;
  static constexpr int kBoxBytes = kRows * 128;  // at most
  static constexpr int kBuffers = 2;
  static constexpr int kBytes = kBuffers * kBoxBytes;

  // (m, n): the warp's first row and column in D; smem_buffers: kBytes, 1024-byte aligned. `boxes` counts the boxes of
  // this warp so far.
  __device__ static __forceinline__ void run(const EpilogueParams& e, const void* tensor_map, int batch, int m, int n,
                                             const float (&acc)[kN / 2], uint32_t smem_buffers, int lane,
                                             uint32_t& boxes) {
    if (e.d_dtype == DType::f32) {
      store<4>(e, tensor_map, batch, m, n, acc, smem_buffers, lane, boxes);
    } else {
      store<2>(e, tensor_map, batch, m, n, acc, smem_buffers, lane, boxes);
    }
  }

  // Before the CTA ends, or its buffers are used otherwise.
  __device__ static __forceinline__ void drain(int lane) {
    if (lane == 0) ptx::tma_store_wait_read<0>();
    __syncwarp();
  }

 private:
  template <int kElementBytes>
  __device__ static __forceinline__ void store(const EpilogueParams& e, const void* tensor_map, int batch, int m, int n,
                                               const float (&acc)[kN / 2], uint32_t smem_buffers, int lane,
                                               uint32_t& boxes) {
    constexpr int kColumns = store_box_columns(kN, kElementBytes);
#pragma unroll
    for (int first = 0; first < kN; first += kColumns, ++boxes) {
      const uint32_t buffer = smem_buffers + boxes % kBuffers * kBoxBytes;
      if (lane == 0) ptx::tma_store_wait_read<kBuffers - 1>();
      __syncwarp();
#pragma unroll
      for (int j = first / 8; j < (first + kColumns) / 8; j += 2) {
        float x[8];
        scale(e, acc + 4 * j, n + 8 * j, lane, x);
        if constexpr (kElementBytes == 2) {
          write_16bit<kColumns / 8>(e.d_dtype, x, buffer, (8 * j - first) / 8, lane);
        } else {
          write_f32<kColumns / 4>(x, buffer, (8 * j - first) / 4, lane);
        }
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        ptx::tma_store(tensor_map, buffer, n + first, m, batch);
        ptx::tma_store_commit();
      }
    }
  }

  // Accumulators of columns n .. n + 15 of this lane: alpha and bias.
  __device__ static __forceinline__ void scale(const EpilogueParams& e, const float* acc, int n, int lane,
                                               float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(e.alpha, acc[i]);
    if (e.bias == nullptr) return;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n + 8 * pair + lane % 4 * 2 + i;
        const float bias = column < e.n ? load_element(e.bias, column * e.bias_stride, e.bias_dtype) : 0.0f;
        x[4 * pair + i] = __fadd_rn(x[4 * pair + i], bias);
        x[4 * pair + i + 2] = __fadd_rn(x[4 * pair + i + 2], bias);
      }
    }
  }

  // 16 rows of 16 columns as four 8x8 matrices; `chunk`: the first 16-byte chunk of the box's rows.
  template <int kChunks>
  __device__ static __forceinline__ void write_16bit(DType dtype, const float (&x)[8], uint32_t buffer, int chunk,
                                                     int lane) {
    const uint32_t packed[4] = {pack_pair(x[0], x[1], dtype), pack_pair(x[2], x[3], dtype),
                                pack_pair(x[4], x[5], dtype), pack_pair(x[6], x[7], dtype)};
    const int row = lane % 16;  // matrices 0 and 2: rows 0-7; 1 and 3: rows 8-15
    const int at = swizzled_chunk(row, chunk + lane / 16, kChunks);
    ptx::stmatrix_x4(buffer + (row * kChunks + at) * 16, packed);
  }

  template <int kChunks>
  __device__ static __forceinline__ void write_f32(const float (&x)[8], uint32_t buffer, int chunk, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int at = swizzled_chunk(row, chunk + i / 2 * 2 + lane % 4 / 2, kChunks);
      const uint32_t address = buffer + (row * kChunks + at) * 16 + lane % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x[2 * i]), "f"(x[2 * i + 1]) : "memory");
    }
  }
};

}  // namespace gemmx::device
