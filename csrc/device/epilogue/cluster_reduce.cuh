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

  // Writes a warp's 16 x kTileN accumulators; `row`: of the kernel's tile, the warp's first.
  __device__ static __forceinline__ void put(const float (&acc)[kTileN / 2], float* tile, int row, int lane) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      const float* x = acc + 4 * j;
      if constexpr (kTransposed) {
        float* at = tile + (8 * j + lane % 4 * 2) * kPitch + row + lane / 4;
        at[0] = x[0], at[kPitch] = x[1], at[8] = x[2], at[kPitch + 8] = x[3];
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
    constexpr int kVectors = kColumns / 4;
    const int begin = kRows * split / splits;
    const int end = kRows * (split + 1) / splits;
#pragma unroll 1
    for (int i = begin * kVectors + thread; i < end * kVectors; i += threads) {
      const int row = i / kVectors;
      const int column = i % kVectors * 4;
      if (m + row >= e.m || n + column >= e.n) continue;
      const uint32_t at = smem_tile + (row * kPitch + column) * 4;
      float sum[4];
#pragma unroll 4
      for (int s = 0; s < splits; ++s) {
        const float4 x = ptx::load_from_cta(ptx::map_to_cta(at, first_rank + s * rank_step));
        const float part[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = s == 0 ? part[c] : __fadd_rn(sum[c], part[c]);
      }
      epilogue_store_rows<1>(e, batch, m + row, 0, n + column, sum);
    }
  }
};

}  // namespace gemmx::device
