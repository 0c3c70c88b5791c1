// D tile of one warp: accumulators through shared memory to whole-row vectors of 4 elements.
//
// An mma accumulator is 2 neighbouring columns: stored directly, a warp would touch 8 rows of D with 16 bytes
// each, half of every 32-byte sector. Transposed through the mainloop's shared memory a warp writes
// rows of kWarpN elements, reads C and bias the same way, and the epilogue's code (every activation) exists once,
// in a loop, instead of once per accumulator pair. Of a gated tile the first half of the warp's columns is gate, the
// second up (mma_multistage.cuh).
#pragma once

#include "device/epilogue/form_rows.cuh"

namespace gemmx::device {

// Shared memory of one warp: 16 * blocks rows of kWarpN fp32. The 8 words of padding put the 4 rows that a
// half-warp writes 8 bytes each into distinct banks; 16-byte reads of a row need none.
template <int kBlocksM, int kWarpN, int kBlocksPerPass, bool kGated = false, bool kAux = false>
struct WarpTileStore {
  static_assert(kBlocksM % kBlocksPerPass == 0, "passes must divide the warp's rows");
  static constexpr int kPitch = kWarpN + 8;
  static constexpr int kBytes = 16 * kBlocksPerPass * kPitch * 4;
  static constexpr int kHalves = kGated ? 2 : 1;
  static constexpr int kOutN = kWarpN / kHalves;  // columns of D
  static constexpr int kLanesPerRow = kOutN / 4;
  static constexpr int kRowsPerStep = 32 / kLanesPerRow;
  static constexpr int kRowsAtOnce = 16 * kBlocksPerPass / kRowsPerStep < 2 ? 16 * kBlocksPerPass / kRowsPerStep : 2;

  // (m, n): the first row and column of the warp's tile in D. z: Z's matrix, read with kAux only (form_rows.cuh).
  // `buffer` has kBytes, 16-byte aligned.
  __device__ static __forceinline__ void run(const EpilogueParams& e, const EpilogueParams& z, int64_t batch, int64_t m,
                                             int64_t n, const float (&acc)[kBlocksM][kWarpN / 8][4], float* buffer) {
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
        float x[kHalves][4 * kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            const float* at = buffer + (row + r * kRowsPerStep) * kPitch + half * kOutN + column;
            const float4 v = *reinterpret_cast<const float4*>(at);
            x[half][4 * r] = v.x, x[half][4 * r + 1] = v.y, x[half][4 * r + 2] = v.z, x[half][4 * r + 3] = v.w;
          }
        }
        form_store_rows<kRowsAtOnce, kHalves, kAux>(e, z, batch, pass_m + row, kRowsPerStep, n + column, x);
      }
    }
  }

  __device__ static __forceinline__ void run(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             const float (&acc)[kBlocksM][kWarpN / 8][4], float* buffer) {
    static_assert(!kAux, "Z needs a place");
    run(e, e, batch, m, n, acc, buffer);
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
