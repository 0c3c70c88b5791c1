// Rung 1, shared tile: the CTA keeps a 32 x 32 tile of A and of B in shared memory. fp32, CUDA cores.
//
// Before:    rung 0 loads every element of its rows and columns 32 times from L1 and L2, and two loads wait for every
//            FFMA.
// Changes:   the CTA loads each element once per tile of D, into shared memory, and all its threads read it there.
//            What lies outside A and B is written as zeros, so that the inner loop has no bounds to check.
// Per CTA:   32 x 32 elements of D: 2 * 32 * 32 * K FLOPs, (32 + 32) * K * 4 bytes from global memory.
// Intensity: T / b = 32 / 4 = 8 FLOP per global byte, 32 times that of rung 0.
// Wastes:    shared memory takes the place of L1 as the limit: a thread still reads one element of B for each FFMA, and
//            a quarter of an instruction for A (four neighbours of K at once). All threads wait at two barriers a tile.
#pragma once

#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_1 {

inline constexpr int kTile = 32;
inline constexpr int kTileM = kTile, kTileN = kTile, kTileK = kTile, kStages = 1;
inline constexpr int kThreads = kTile * kTile, kSmemBytes = 0;  // both tiles are static shared memory
inline constexpr bool kFollowsPlan = false;

template <class Instance>
__global__ void __launch_bounds__(kThreads) gemm(const __grid_constant__ Params p) {
  __shared__ __align__(16) float tile_a[kTile][kTile];  // (m, k)
  __shared__ __align__(16) float tile_b[kTile][kTile];  // (k, n)

  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int y = static_cast<int>(threadIdx.x) / kTile, x = static_cast<int>(threadIdx.x) % kTile;
  const int64_t m = int64_t{tile.m} * kTile + y, n = int64_t{tile.n} * kTile + x;

  // This thread's element of each tile of A is a row apart from that of its neighbour in y, and the same for B.
  const float* a = static_cast<const float*>(p.a) + m * p.lda + x;
  const float* b = static_cast<const float*>(p.b) + y * p.ldb + n;
  float acc[1] = {};
  for (int k = 0; k < p.k; k += kTile, a += kTile, b += kTile * p.ldb) {
    tile_a[y][x] = m < p.m && k + x < p.k ? *a : 0.0f;
    tile_b[y][x] = n < p.n && k + y < p.k ? *b : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) acc[0] = fmaf(tile_a[y][i], tile_b[i][x], acc[0]);
    __syncthreads();
  }
  store(p.epilogue, m, n, acc);
}

template <class Instance>
KernelFunction kernel(bool) {
  return gemm<Instance>;
}

}  // namespace gemmx::ladder::rung_1
