// Split-K inside a cluster: CTA s of S holds the fp32 tile of cut s of K in its shared memory; each CTA adds one S-th
// of the rows, in ascending order of the cuts, and runs the epilogue on the sums. No workspace, no counters, one
// launch, and the bits of the two-launch reduction (split_k_reduce.cuh).
//
// The tile lies as rows of D (transposed where the kernel computes D^T), so that sums leave in whole row vectors.
#pragma once

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/cluster.cuh"

namespace gemmx::device {

template <int kTileM, int kTileN, bool kTransposed>
struct ClusterReduce {
  static constexpr int kRows = kTransposed ? kTileN : kTileM;     // of D
  static constexpr int kColumns = kTransposed ? kTileM : kTileN;  // of D
  // Padding keeps a phase of the accumulators' writes in distinct banks (staged_store.cuh).
  static constexpr int kPitch = kColumns + (kTransposed ? 4 : 8);
  static constexpr int kBytes = kRows * kPitch * 4;

  // Writes a warp's 16 x kTileN accumulators; `row`: of the kernel's tile, the warp's first. A tile may end after 8.
  __device__ static __forceinline__ void put(const float (&acc)[kTileN / 2], float* tile, int row, int lane) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      const float* x = acc + 4 * j;
      if constexpr (kTransposed) {
        float* at = tile + (8 * j + lane % 4 * 2) * kPitch + row + lane / 4;
        at[0] = x[0], at[kPitch] = x[1];
        if (kTileM % 16 == 0 || row + 8 < kTileM) at[8] = x[2], at[kPitch + 8] = x[3];
      } else {
        float* at = tile + (row + lane / 4) * kPitch + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(x[0], x[1]);
        *reinterpret_cast<float2*>(at + 8 * kPitch) = make_float2(x[2], x[3]);
      }
    }
  }

  // After all CTAs have put their tiles. Cut s lies in the CTA of rank first_rank + s * rank_step; this CTA has cut
  // `split`. (m, n): the tile's first row and column in D; threads: those that call.
  __device__ static __forceinline__ void reduce(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                                uint32_t smem_tile, int splits, int split, uint32_t first_rank,
                                                uint32_t rank_step, int thread, int threads) {
    constexpr int kVectors = kColumns / 4;  // of a row
    // Rows of a thread at a time, all loads before the first use: another CTA's shared memory is about as far as L2.
    constexpr int kRowsAtOnce = 2;
    const int step = threads / kVectors;  // rows of all threads
    const int column = thread % kVectors * 4;
    const int end = kRows * (split + 1) / splits;
    if (thread >= step * kVectors || n + column >= e.n) return;
    EpilogueParams share = e;  // rows of this CTA only
    if (m + end < e.m) share.m = m + end;
#pragma unroll 1
    for (int row = kRows * split / splits + thread / kVectors; m + row < share.m; row += kRowsAtOnce * step) {
      float sum[4 * kRowsAtOnce];
#pragma unroll 4
      for (int s = 0; s < splits; ++s) {
        const uint32_t tile = ptx::map_to_cta(smem_tile, first_rank + s * rank_step);
        float4 x[kRowsAtOnce] = {};
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (row + r * step < end) x[r] = ptx::load_from_cta(tile + ((row + r * step) * kPitch + column) * 4);
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float part[4] = {x[r].x, x[r].y, x[r].z, x[r].w};
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[4 * r + c] = s == 0 ? part[c] : __fadd_rn(sum[4 * r + c], part[c]);
        }
      }
      epilogue_store_rows<kRowsAtOnce>(share, batch, m + row, step, n + column, sum);
    }
  }
};

}  // namespace gemmx::device
