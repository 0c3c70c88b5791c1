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
  static constexpr int kBytes = kRows * kPitch * 4;
  static constexpr int kLanesPerRow = kColumns / 4;
  static constexpr int kRowsPerStep = 32 / kLanesPerRow;
  static constexpr int kRowsAtOnce = kRows / kRowsPerStep >= 2 ? 2 : 1;

  // (m, n): where the warp's first accumulator lies in D. `buffer` has kBytes, 16-byte aligned.
  __device__ static __forceinline__ void run(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             const float (&acc)[kN / 2], float* buffer, int lane) {
    const int first_row = lane / kLanesPerRow;
    const int column = lane % kLanesPerRow * 4;
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
      if (chunk_n >= e.n) continue;
#pragma unroll 1
      for (int row = first_row; row < kRows && chunk_m + row < e.m; row += kRowsAtOnce * kRowsPerStep) {
        float x[4 * kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float4 v = *reinterpret_cast<const float4*>(buffer + (row + r * kRowsPerStep) * kPitch + column);
          x[4 * r] = v.x, x[4 * r + 1] = v.y, x[4 * r + 2] = v.z, x[4 * r + 3] = v.w;
        }
        epilogue_store_rows<kRowsAtOnce>(e, batch, chunk_m + row, kRowsPerStep, chunk_n, x);
      }
    }
  }

 private:
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
