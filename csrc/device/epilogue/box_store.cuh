// The epilogue of one warp of a wgmma kernel in registers: 16 rows of kN accumulators, box by box. A box is 16 rows of
// up to 128 bytes: alpha, C, bias and activation in the accumulators' layout, rounded, written to swizzled shared
// memory (stmatrix), and from there to D
//
//   by TMA    where D's rows are whole 16-byte words: asynchronous, clipped by TMA at the edges of D; the warp goes on
//             while the copy engine reads the box
//   by rows   any other 16-bit D with contiguous rows: 32 neighbouring pairs of elements an access. Pairs lie at
//             multiples of 4 bytes, which start at an odd column in every other row of an odd leading dimension
//
// Each warp has two buffers of its own, so that no warp waits for another. Rounding steps are those of
// linear_combination.cuh, so that every epilogue gives the same bits. The general one is staged_store.cuh.
#pragma once

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/tma.cuh"
#include "device/swizzle.cuh"

namespace gemmx::device {

// Columns of a box: rows of 128 bytes where kN allows, else of 64 or 32. Beside the 128 accumulators of 256 columns
// there are registers for 64 bytes a row only.
GEMMX_HOST_DEVICE constexpr int store_box_columns(int tile_n, int element_bytes) {
  int columns = (tile_n < 256 ? 128 : 64) / element_bytes;
  while (tile_n % columns != 0) columns /= 2;
  return columns;
}

template <int kN>
struct BoxStore {
  static constexpr int kRows = 16;
  static constexpr int kBoxBytes = kRows * 128;  // at most
  static constexpr int kBuffers = 2;
  static constexpr int kBytes = kBuffers * kBoxBytes;
  // TMA's boxes have rows of 32 bytes or more.
  static constexpr bool kAvailable = kN % 16 == 0;

  // (m, n): the warp's first row and column in D; smem_buffers: kBytes, 1024-byte aligned. tensor_map: nullptr stores
  // by rows. `boxes` counts the boxes of this warp so far.
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
    constexpr int kValues = kColumns / 2;  // of a lane
    // The loop is rolled, so that the activations' code exists once; registers have no run-time index, so that every
    // box's copy out of the accumulators is a branch of its own.
#pragma unroll 1
    for (int box = 0; box < kN / kColumns; ++box, ++boxes) {
      const int first = n + box * kColumns;
      if (first >= e.n) break;
      float x[kValues];
#pragma unroll
      for (int i = 0; i < kN / kColumns; ++i) {
        if (box == i) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) x[j] = __fmul_rn(e.alpha, acc[i * kValues + j]);
        }
      }
      if (e.c != nullptr) add_c<kValues>(e, batch, m, first, lane, x);
      if (e.bias != nullptr) add_bias<kValues>(e, first, lane, x);
      activate_all(x, e);

      const uint32_t buffer = smem_buffers + boxes % kBuffers * kBoxBytes;
      if (tensor_map != nullptr && lane == 0) ptx::tma_store_wait_read<kBuffers - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        if constexpr (kElementBytes == 2) {
          write_16bit<kColumns / 8>(e.d_dtype, x + 4 * j, buffer, j, lane);
        } else {
          write_f32<kColumns / 4>(x + 4 * j, buffer, 2 * j, lane);
        }
      }
      if (tensor_map != nullptr) {
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
          ptx::tma_store(tensor_map, buffer, first, m, batch);
          ptx::tma_store_commit();
        }
      } else if constexpr (kElementBytes == 2) {
        __syncwarp();
        store_rows<kColumns>(e, batch, m, first, buffer, lane);
      }
    }
  }

  // x[4 j + i]: row lane / 4 (+ 8 for i = 2, 3), column n + 8 j + 2 (lane % 4) + i % 2.
  template <int kValues>
  __device__ static __forceinline__ void add_c(const EpilogueParams& e, int batch, int m, int n, int lane,
                                               float (&x)[kValues]) {
    const int64_t column = n + lane % 4 * 2;
    const int64_t row = m + lane / 4;
    const int64_t at = batch * e.c_batch_stride + row * e.c_row_stride + column * e.c_col_stride;
    const bool pairs = e.c_vector && e.c_dtype != DType::f32;  // 4-byte loads: rows are 8-byte aligned
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= e.m) break;
      const int64_t base = at + 8 * half * e.c_row_stride;
#pragma unroll
      for (int j = 0; j < kValues / 4; ++j) {
        float c[2] = {};
        if (pairs && column + 8 * j + 1 < e.n) {
          const uint32_t bits =
              *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(e.c) + base + 8 * j * e.c_col_stride);
          c[0] = half_as_float(bits, e.c_dtype);
          c[1] = half_as_float(bits >> 16, e.c_dtype);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (column + 8 * j + i < e.n) c[i] = load_element(e.c, base + (8 * j + i) * e.c_col_stride, e.c_dtype);
          }
        }
        x[4 * j + 2 * half] = __fmaf_rn(e.beta, c[0], x[4 * j + 2 * half]);
        x[4 * j + 2 * half + 1] = __fmaf_rn(e.beta, c[1], x[4 * j + 2 * half + 1]);
      }
    }
  }

  template <int kValues>
  __device__ static __forceinline__ void add_bias(const EpilogueParams& e, int n, int lane, float (&x)[kValues]) {
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = n + 8 * j + lane % 4 * 2 + i;
        const float bias = column < e.n ? load_element(e.bias, column * e.bias_stride, e.bias_dtype) : 0.0f;
        x[4 * j + i] = __fadd_rn(x[4 * j + i], bias);
        x[4 * j + i + 2] = __fadd_rn(x[4 * j + i + 2], bias);
      }
    }
  }

  // 16 rows of 16 columns as four 8x8 matrices; `chunk`: the first 16-byte chunk of the box's rows.
  template <int kChunks>
  __device__ static __forceinline__ void write_16bit(DType dtype, const float* x, uint32_t buffer, int chunk,
                                                     int lane) {
    const uint32_t packed[4] = {pack_pair(x[0], x[1], dtype), pack_pair(x[2], x[3], dtype),
                                pack_pair(x[4], x[5], dtype), pack_pair(x[6], x[7], dtype)};
    const int row = lane % 16;  // matrices 0 and 2: rows 0-7; 1 and 3: rows 8-15
    const int at = swizzled_chunk(row, chunk + lane / 16, kChunks);
    ptx::stmatrix_x4(buffer + (row * kChunks + at) * 16, packed);
  }

  template <int kChunks>
  __device__ static __forceinline__ void write_f32(const float* x, uint32_t buffer, int chunk, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int at = swizzled_chunk(row, chunk + i / 2 * 2 + lane % 4 / 2, kChunks);
      const uint32_t address = buffer + (row * kChunks + at) * 16 + lane % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x[2 * i]), "f"(x[2 * i + 1]) : "memory");
    }
  }

  // The 16-bit element of this row and column of a box.
  template <int kChunks>
  __device__ static __forceinline__ uint32_t read_16bit(uint32_t buffer, int row, int column) {
    const int at = swizzled_chunk(row, column / 8, kChunks);
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];"
                 : "=h"(x)
                 : "r"(buffer + (row * kChunks + at) * 16 + column % 8 * 2)
                 : "memory");
    return x;
  }

  template <int kColumns>
  __device__ static __forceinline__ void store_rows(const EpilogueParams& e, int batch, int m, int n, uint32_t buffer,
                                                    int lane) {
    constexpr int kPairs = kColumns / 2;
    constexpr int kRowsAtOnce = 32 / kPairs;
    constexpr int kChunks = kColumns / 8;
    const int columns = e.n - n < kColumns ? static_cast<int>(e.n - n) : kColumns;
    const int rows = e.m - m < kRows ? static_cast<int>(e.m - m) : kRows;
    int row = lane / kPairs;
    uint16_t* d = static_cast<uint16_t*>(e.d) + batch * e.d_batch_stride + int64_t{m + row} * e.d_row_stride + n;
#pragma unroll 4
    for (; row < rows; row += kRowsAtOnce, d += kRowsAtOnce * e.d_row_stride) {
      const int odd = reinterpret_cast<uintptr_t>(d) / 2 % 2;
      const int column = lane % kPairs * 2 + odd;
      if (column + 1 < columns) {
        *reinterpret_cast<uint32_t*>(d + column) =
            read_16bit<kChunks>(buffer, row, column) | read_16bit<kChunks>(buffer, row, column + 1) << 16;
      } else if (column < columns) {
        d[column] = static_cast<uint16_t>(read_16bit<kChunks>(buffer, row, column));
      }
      // The first element of a row whose pairs start at the second.
      if (odd != 0 && lane % kPairs == 0) d[0] = static_cast<uint16_t>(read_16bit<kChunks>(buffer, row, 0));
    }
  }
};

}  // namespace gemmx::device
