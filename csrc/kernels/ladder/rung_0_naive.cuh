// Rung 0, naive: one thread computes one element of D from a row of A and a column of B. fp32, CUDA cores.
//
// Before:    nothing. This is the definition of the product as three loops, the outer two spread over threads.
// Changes:   neighbouring threads take neighbouring columns, so that a warp reads 128 contiguous bytes of B and one
//            address of A. (With the threads along M instead, a warp would read 32 rows of A at a time.)
// Per CTA:   32 x 32 elements of D: 2 * 32 * 32 * K FLOPs. Its threads load 2 * 32 * 32 * K * 4 bytes.
// Intensity: 1 / b = 1/4 FLOP per loaded byte (b = 4 bytes an element). Only caches keep this from DRAM: a warp's loads
//            of A are one address, and the 32 warps of the CTA share their rows and columns in L1.
// Wastes:    two load instructions for each FFMA. An SM's load path takes one warp a cycle, its FMA pipes take four:
//            at most 1 / 8 of the peak, whatever the caches do.
#pragma once

#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_0 {

inline constexpr int kTileM = 32, kTileN = 32, kTileK = 1, kStages = 1, kThreads = kTileM * kTileN, kSmemBytes = 0;
inline constexpr bool kFollowsPlan = false;

template <class Instance>
__global__ void __launch_bounds__(kThreads) gemm(const __grid_constant__ Params p) {
  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * kTileM + threadIdx.x / kTileN;
  const int64_t n = int64_t{tile.n} * kTileN + threadIdx.x % kTileN;
  if (m >= p.m || n >= p.n) return;

  const float* a = static_cast<const float*>(p.a) + m * p.lda;
  const float* b = static_cast<const float*>(p.b) + n;
  float acc[1] = {};
  for (int k = 0; k < p.k; ++k) acc[0] = fmaf(a[k], b[k * p.ldb], acc[0]);
  store(p.epilogue, m, n, acc);
}

template <class Instance>
KernelFunction kernel(bool) {
  return gemm<Instance>;
}

}  // namespace gemmx::ladder::rung_0
