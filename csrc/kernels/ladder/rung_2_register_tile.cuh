// Rung 2, register tile: a thread computes 8 x 8 elements of D, the CTA 128 x 128. fp32, CUDA cores.
//
// Before:    rung 1 reads shared memory more than once for every FFMA, and its tile of 32 rows and columns is read
//            from L2 M / 32 times.
// Changes:   8 elements of A and 8 of B, read as four 16-byte vectors, feed 64 FFMA from registers. The larger tile
//            raises the intensity, and global memory is read 16 bytes an instruction where rows are aligned.
//            A's tile is stored transposed, so that 4 rows of one K are a vector. The 8 x 8 are four blocks of 4 x 4,
//            64 rows and columns apart: the vectors of neighbouring threads are then neighbours, and no bank is met
//            twice. 8 words of K of a row of A come from two threads; padding each K by 4 words spreads their stores.
// Per CTA:   2 * 128 * 128 * K FLOPs, (128 + 128) * K * 4 bytes from global memory.
// Intensity: T / b = 128 / 4 = 32 FLOP per global byte; from shared memory 2 * 64 / (16 * 4) = 2 FLOP per byte.
// Wastes:    between the loads of a tile and the barrier before its use the CTA computes nothing: only the other CTA
//            of the SM does.
#pragma once

#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_2 {

inline constexpr int kTileM = 128, kTileN = 128, kTileK = 8, kStages = 1, kThreads = 256, kSmemBytes = 0;
inline constexpr bool kFollowsPlan = false;

// Four neighbours of a row, the `left` first of which exist.
template <bool kAligned>
__device__ __forceinline__ float4 load4(const float* row, int left) {
  if (kAligned && left >= 4) return *reinterpret_cast<const float4*>(row);
  return make_float4(left > 0 ? row[0] : 0.0f, left > 1 ? row[1] : 0.0f, left > 2 ? row[2] : 0.0f,
                     left > 3 ? row[3] : 0.0f);
}

template <class Instance, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2) gemm(const __grid_constant__ Params p) {
  __shared__ __align__(16) float tile_a[kTileK][kTileM + 4];
  __shared__ __align__(16) float tile_b[kTileK][kTileN];

  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * kTileM, n = int64_t{tile.n} * kTileN;
  const int thread = static_cast<int>(threadIdx.x);

  // What this thread loads: of A four neighbours along K, of B four along N.
  const int load_m = thread / 2, load_ka = thread % 2 * 4;
  const int load_kb = thread / 32, load_n = thread % 32 * 4;
  const float* a = static_cast<const float*>(p.a) + (m + load_m) * p.lda + load_ka;
  const float* b = static_cast<const float*>(p.b) + load_kb * p.ldb + n + load_n;
  const bool row_exists = m + load_m < p.m;
  const int columns_left = static_cast<int>(min(p.n - n - load_n, int64_t{4}));

  // What it computes: rows at_m + 64 i .. + 3, columns at_n + 64 j .. + 3.
  const int at_m = thread / 16 * 4, at_n = thread % 16 * 4;
  float acc[8][8] = {};
  for (int k = 0; k < p.k; k += kTileK, a += kTileK, b += kTileK * p.ldb) {
    const float4 from_a = load4<kAligned>(a, row_exists ? p.k - k - load_ka : 0);
    const float4 from_b = load4<kAligned>(b, k + load_kb < p.k ? columns_left : 0);
    tile_a[load_ka][load_m] = from_a.x;
    tile_a[load_ka + 1][load_m] = from_a.y;
    tile_a[load_ka + 2][load_m] = from_a.z;
    tile_a[load_ka + 3][load_m] = from_a.w;
    *reinterpret_cast<float4*>(&tile_b[load_kb][load_n]) = from_b;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTileK; ++i) {
      float fragment_a[8], fragment_b[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(&fragment_a[4 * half]) =
            *reinterpret_cast<const float4*>(&tile_a[i][at_m + 64 * half]);
        *reinterpret_cast<float4*>(&fragment_b[4 * half]) =
            *reinterpret_cast<const float4*>(&tile_b[i][at_n + 64 * half]);
      }
#pragma unroll
      for (int y = 0; y < 8; ++y) {
#pragma unroll
        for (int x = 0; x < 8; ++x) acc[y][x] = fmaf(fragment_a[y], fragment_b[x], acc[y][x]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int y = 0; y < 8; ++y) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row[4] = {acc[y][4 * half], acc[y][4 * half + 1], acc[y][4 * half + 2], acc[y][4 * half + 3]};
      store(p.epilogue, m + at_m + y / 4 * 64 + y % 4, n + at_n + 64 * half, row);
    }
  }
}

template <class Instance>
KernelFunction kernel(bool aligned) {
  return aligned ? gemm<Instance, true> : gemm<Instance, false>;
}

}  // namespace gemmx::ladder::rung_2
