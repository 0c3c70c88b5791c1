// The general epilogue of one warp of a wgmma kernel: 16 rows of kN accumulators, chunk by chunk through shared memory
// to vectors of 4 neighbours of a row of D (linear_combination.cuh): any C, bias, activation, type, stride, alignment.
// box_store.cuh is faster where it serves.
//
// Shared memory of the warp: 16 rows of kChunk + 8 words of fp32; the 8 keep the 8-byte writes of a phase in distinct
// banks.
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::device {

template <int kN>
struct StagedStore {
  static constexpr int kChunk = kN % 32 == 0 ? 32 : kN % 16 == 0 ? 16 : 8;
  static constexpr int kRows = 16;
  static constexpr int kPitch = kChunk + 8;
  static constexpr int kBytes = kRows * kPitch * 4;
  static constexpr int kLanesPerRow = kChunk / 4;
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
      const int64_t chunk_n = n + chunk * kChunk + column;
      if (chunk_n >= e.n) continue;
#pragma unroll 1
      for (int row = first_row; row < kRows && m + row < e.m; row += kRowsAtOnce * kRowsPerStep) {
        float x[4 * kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float4 v = *reinterpret_cast<const float4*>(buffer + (row + r * kRowsPerStep) * kPitch + column);
          x[4 * r] = v.x, x[4 * r + 1] = v.y, x[4 * r + 2] = v.z, x[4 * r + 3] = v.w;
        }
        epilogue_store_rows<kRowsAtOnce>(e, batch, m + row, kRowsPerStep, chunk_n, x);
      }
    }
  }

 private:
  // Columns 8 j .. of the accumulator, j from `first` on.
  __device__ static __forceinline__ void write_chunk(const float (&acc)[kN / 2], int first, float* buffer, int lane) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float* x = acc + 4 * (first + j);
      float* at = buffer + lane / 4 * kPitch + 8 * j + lane % 4 * 2;
      *reinterpret_cast<float2*>(at) = make_float2(x[0], x[1]);
      *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(x[2], x[3]);
    }
  }
};

}  // namespace gemmx::device
