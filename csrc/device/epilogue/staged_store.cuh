// The general epilogue of one warp of a wgmma kernel: 16 rows of kN accumulators, chunk by chunk through shared memory
// to vectors of 4 neighbours of a row of D (linear_combination.cuh): any C, bias, activation, type, stride, alignment.
//
// kTransposed: the kernel computes D^T, so that its columns are rows of D (swap_ab).
// Rows of a 16-bit D that are not even 8-byte aligned go through shared memory once more, rounded, so that the warp
// writes neighbouring pairs of elements (those at multiples of 4 bytes, which start at an odd column in every other
// row) and each sector of D once, not four times 2 bytes of every 8.
//
// Shared memory of the warp: kChunk columns, 16 rows of fp32; 16 rows of kChunk + 8 words, or, transposed, kChunk rows
// of 16 + 4 words: both keep the 8-byte, or 4-byte, writes of a phase in distinct banks.
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::device {

template <int kN, bool kTransposed>
struct StagedStore {
  static constexpr int kChunk = kN % 32 == 0 ? 32 : kN % 16 == 0 ? 16 : 8;
  static constexpr int kRows = kTransposed ? kChunk : 16;     // of D in a chunk
  static constexpr int kColumns = kTransposed ? 16 : kChunk;  // of D in a chunk
  static constexpr int kPitch = kColumns + (kTransposed ? 4 : 8);
  static constexpr int kHalfPitch = kColumns + 4;  // of the rounded rows, in elements
  static constexpr int kStagedBytes = kRows * kPitch * 4;
  static constexpr int kBytes = kStagedBytes + kRows * kHalfPitch * 2;
  static constexpr int kLanesPerRow = kColumns / 4;
  static constexpr int kRowsPerStep = 32 / kLanesPerRow;
  static constexpr int kRowsAtOnce = kRows / kRowsPerStep >= 2 ? 2 : 1;

  // (m, n): where the warp's first accumulator lies in D. `buffer` has kBytes, 16-byte aligned.
  __device__ static __forceinline__ void run(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             const float (&acc)[kN / 2], float* buffer, int lane) {
    const int first_row = lane / kLanesPerRow;
    const int column = lane % kLanesPerRow * 4;
    const bool in_pairs = e.d_vector < 4 && e.d_col_stride == 1 && e.d_dtype != DType::f32;
    auto* const halves = reinterpret_cast<uint16_t*>(reinterpret_cast<unsigned char*>(buffer) + kStagedBytes);
#pragma unroll 1
    for (int chunk = 0; chunk < kN / kChunk; ++chunk) {
      __syncwarp();
      // Registers have no run-time index: every chunk is a branch of its own, the stores below are shared.
#pragma unroll
      for (int i = 0; i < kN / kChunk; ++i) {
        if (chunk == i) write_chunk(acc, i * kChunk / 8, buffer, lane);
      }
      __syncwarp();
      const int64_t chunk_m = m + (kTransposed ? chunk * kChunk : 0);
      const int64_t chunk_n = n + (kTransposed ? 0 : chunk * kChunk) + column;
      if (chunk_n - column >= e.n) break;
      const bool inside = chunk_n < e.n;
#pragma unroll 1
      for (int row = first_row; inside && row < kRows && chunk_m + row < e.m; row += kRowsAtOnce * kRowsPerStep) {
        float x[4 * kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float4 v = *reinterpret_cast<const float4*>(buffer + (row + r * kRowsPerStep) * kPitch + column);
          x[4 * r] = v.x, x[4 * r + 1] = v.y, x[4 * r + 2] = v.z, x[4 * r + 3] = v.w;
        }
        if (!in_pairs) {
          epilogue_store_rows<kRowsAtOnce>(e, batch, chunk_m + row, kRowsPerStep, chunk_n, x);
          continue;
        }
        epilogue_rows<kRowsAtOnce>(e, batch, chunk_m + row, kRowsPerStep, chunk_n, x);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          *reinterpret_cast<uint2*>(halves + (row + r * kRowsPerStep) * kHalfPitch + column) = make_uint2(
              pack_pair(x[4 * r], x[4 * r + 1], e.d_dtype), pack_pair(x[4 * r + 2], x[4 * r + 3], e.d_dtype));
        }
      }
      if (!in_pairs) continue;
      __syncwarp();
      store_in_pairs(e, batch, chunk_m, chunk_n - column, halves, lane);
    }
  }

 private:
  // The rounded chunk whose first element is D[batch][m][n].
  __device__ static __forceinline__ void store_in_pairs(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                                        const uint16_t* halves, int lane) {
    constexpr int kPairs = kColumns / 2;
    const int columns = e.n - n < kColumns ? static_cast<int>(e.n - n) : kColumns;
#pragma unroll 4
    for (int row = lane / kPairs; row < kRows; row += 32 / kPairs) {
      if (m + row >= e.m) break;
      uint16_t* const d = static_cast<uint16_t*>(e.d) + batch * e.d_batch_stride + (m + row) * e.d_row_stride + n;
      const uint16_t* const x = halves + row * kHalfPitch;
      const int odd = reinterpret_cast<uintptr_t>(d) / 2 % 2;
      const int column = lane % kPairs * 2 + odd;
      if (column + 1 < columns) {
        *reinterpret_cast<uint32_t*>(d + column) = x[column] | uint32_t{x[column + 1]} << 16;
      } else if (column < columns) {
        d[column] = x[column];
      }
      // The first element of a row whose pairs start at the second.
      if (odd != 0 && lane % kPairs == 0) d[0] = x[0];
    }
  }

  // Columns 8 j .. of the accumulator, j from `first` on.
  __device__ static __forceinline__ void write_chunk(const float (&acc)[kN / 2], int first, float* buffer, int lane) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float* x = acc + 4 * (first + j);
      if constexpr (kTransposed) {
        float* at = buffer + (8 * j + lane % 4 * 2) * kPitch + lane / 4;
        at[0] = x[0], at[kPitch] = x[1], at[8] = x[2], at[kPitch + 8] = x[3];
      } else {
        float* at = buffer + lane / 4 * kPitch + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(x[0], x[1]);
        *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(x[2], x[3]);
      }
    }
  }
};

}  // namespace gemmx::device
