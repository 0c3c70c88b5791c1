// Rung 3, double buffer: the next tiles of A and B arrive by cp.async while the present ones are multiplied, and each
// warp has a square part of the CTA's tile. fp32, CUDA cores.
//
// Before:    rung 2 stands still from the loads of a tile to the barrier before its use, and a tile passes through
//            registers on its way. Its warps are 4 rows by 64 columns of threads: a warp reads 8 + 64 vectors of
//            which few are shared.
// Changes:   two stages of shared memory. cp.async writes one without registers while the other is read; one barrier
//            a tile, which says both that a stage has landed and that the other is free. 8 words of K a stage.
//            A warp computes 64 x 64, a thread 16 x 8: 6 vectors feed 128 FFMA, where rung 2 reads 4 for 64. Lanes
//            lie 4 x 8 in the warp, so that a vector load of all lanes touches 64 bytes of A or 128 of B. The next
//            fragments are read while the present ones are multiplied.
//            A is transposed on the way by copies of 4 bytes, which also serve every alignment.
// Per CTA:   128 x 128 as rung 2: 2 * 128 * 128 * K FLOPs, (128 + 128) * K * 4 bytes from global memory.
// Intensity: T / b = 32 FLOP per global byte; from shared memory 2 * 128 / (24 * 4) = 2.7 FLOP per byte.
// Wastes:    nothing large: the FMA pipes are busy. More needs other arithmetic, the tensor cores.
#pragma once

#include "device/ptx/cp_async.cuh"
#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_3 {

inline constexpr int kTileM = 128, kTileN = 128, kTileK = 8, kStages = 2, kThreads = 128;
inline constexpr int kWarpM = 64, kWarpN = 64, kThreadM = 16, kThreadN = 8;
inline constexpr bool kFollowsPlan = false;

struct SharedStorage {
  float a[kStages][kTileK][kTileM + 4];  // padded: 8 words of K from 4 rows are stored into 32 banks
  float b[kStages][kTileK][kTileN];
};
inline constexpr int kSmemBytes = 0;  // static shared memory

__device__ __forceinline__ uint32_t address(const float& x) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(&x));
}

// Copies one tile of A, transposed: lanes 0 to 7 are neighbours along K. `a` is this thread's first element.
__device__ __forceinline__ void copy_a(const float* a, int64_t lda, float (&to)[kTileK][kTileM + 4], int m_left,
                                       int k_left) {
  constexpr int kRows = kThreads / 8;  // that all threads copy at a time
  const int k = static_cast<int>(threadIdx.x) % 8, m = static_cast<int>(threadIdx.x) / 8;
#pragma unroll
  for (int i = 0; i < kTileM; i += kRows, a += kRows * lda) {
#pragma unroll
    for (int j = 0; j < kTileK; j += 8) {
      const bool exists = i < m_left - m && j < k_left - k;
      device::ptx::cp_async<4>(address(to[k + j][m + i]), a + j, exists ? 4 : 0);
    }
  }
}

// Copies one tile of B, a row of 128 a warp: 16 bytes a lane where rows are aligned. `b` is this thread's first
// element.
template <int kVector>
__device__ __forceinline__ void copy_b(const float* b, int64_t ldb, float (&to)[kTileK][kTileN], int n_left,
                                       int k_left) {
  constexpr int kRows = kThreads / 32;
  const int k = static_cast<int>(threadIdx.x) / 32, n = static_cast<int>(threadIdx.x) % 32 * kVector;
#pragma unroll
  for (int i = 0; i < kTileK; i += kRows, b += kRows * ldb) {
#pragma unroll
    for (int j = 0; j < kTileN; j += 32 * kVector) {
      const int exist = i < k_left - k ? min(max(n_left - n - j, 0), kVector) : 0;
      device::ptx::cp_async<4 * kVector>(address(to[k + i][n + j]), b + j, 4 * exist);
    }
  }
}

template <class Instance, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2) gemm(const __grid_constant__ Params p) {
  __shared__ __align__(16) SharedStorage smem;

  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * kTileM, n = int64_t{tile.n} * kTileN;
  const int m_left = static_cast<int>(p.m - m), n_left = static_cast<int>(p.n - n);
  constexpr int kVector = kAligned ? 4 : 1;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const float* a = static_cast<const float*>(p.a) + (m + thread / 8) * p.lda + thread % 8;
  const float* b = static_cast<const float*>(p.b) + warp * p.ldb + n + lane * kVector;
  const auto copy = [&](int stage, int k_left) {
    copy_a(a, p.lda, smem.a[stage], m_left, k_left);
    copy_b<kVector>(b, p.ldb, smem.b[stage], n_left, k_left);
    device::ptx::cp_async_commit();
    a += kTileK;
    b += kTileK * p.ldb;
  };

  // Rows at_m + 16 i .. + 3 and columns at_n + 32 j .. + 3 are this thread's. Lane bits 0 and 4 go along M, 1 to 3
  // along N: then the lanes of each half of a vector load read neighbours or the same.
  const int at_m = warp / (kTileN / kWarpN) * kWarpM + (lane % 2 + lane / 16 * 2) * 4;
  const int at_n = warp % (kTileN / kWarpN) * kWarpN + lane / 2 % 8 * 4;
  float acc[kThreadM][kThreadN] = {};

  if (p.k > 0) copy(0, p.k);
  for (int k = 0, stage = 0; k < p.k; k += kTileK, stage ^= 1) {
    device::ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has landed, and no one reads the other any more
    if (k + kTileK < p.k) copy(stage ^ 1, p.k - k - kTileK);

    float fragment_a[2][kThreadM], fragment_b[2][kThreadN];
    const auto read = [&](int i) {
#pragma unroll
      for (int y = 0; y < kThreadM; y += 4) {
        *reinterpret_cast<float4*>(&fragment_a[i % 2][y]) =
            *reinterpret_cast<const float4*>(&smem.a[stage][i][at_m + 4 * y]);
      }
#pragma unroll
      for (int x = 0; x < kThreadN; x += 4) {
        *reinterpret_cast<float4*>(&fragment_b[i % 2][x]) =
            *reinterpret_cast<const float4*>(&smem.b[stage][i][at_n + 8 * x]);
      }
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kTileK; ++i) {
      if (i + 1 < kTileK) read(i + 1);
#pragma unroll
      for (int y = 0; y < kThreadM; ++y) {
#pragma unroll
        for (int x = 0; x < kThreadN; ++x) {
          acc[y][x] = fmaf(fragment_a[i % 2][y], fragment_b[i % 2][x], acc[y][x]);
        }
      }
    }
  }

#pragma unroll
  for (int y = 0; y < kThreadM; ++y) {
#pragma unroll
    for (int x = 0; x < kThreadN; x += 4) {
      float row[4] = {acc[y][x], acc[y][x + 1], acc[y][x + 2], acc[y][x + 3]};
      store(p.epilogue, m + at_m + y / 4 * 16 + y % 4, n + at_n + x / 4 * 32, row);
    }
  }
}

template <class Instance>
KernelFunction kernel(bool aligned) {
  return aligned ? gemm<Instance, true> : gemm<Instance, false>;
}

}  // namespace gemmx::ladder::rung_3
