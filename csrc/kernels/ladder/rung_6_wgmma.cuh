// Rung 6, TMA and wgmma: the copy engine fills shared memory, the tensor cores read it there. bf16 in, fp32
// accumulation, sm_90a.
//
// Before:    rung 5 spends its warps on copying and on fragments, which every warp reads from shared memory into its
//            registers, and mma.sync has little more than half of Hopper's tensor rate.
// Changes:   wgmma multiplies 64 x 128 x 16 for a warpgroup straight from shared memory, asynchronously: only the
//            accumulators are registers. One thread asks TMA for whole tiles; TMA computes the addresses, swizzles, and
//            writes zeros outside the matrices. Two stages are a ring of mbarriers, each of which counts the bytes
//            that land in its stage. All warps are alike: both warpgroups multiply, a barrier of the CTA tells that
//            they are done with a stage, and thread 0 refills it.
//            The tile is 128 x 128, so that two CTAs fit on an SM: one multiplies while the other starts, waits or
//            stores.
// Per CTA:   128 x 128 elements of D: 2 * 128 * 128 * K FLOPs, (128 + 128) * K * 2 bytes from global memory.
// Intensity: 64 FLOP per global byte; a warpgroup reads 2 * 64 * 128 / ((64 + 128) * 2) = 43 FLOP per byte of shared
//            memory.
// Wastes:    every stage ends with a wait for its products and for the other warpgroup, and nothing is in flight
//            meanwhile. Every CTA starts with an empty ring. Neighbours load the same tiles. D is written from
//            registers, by stores that fill half of the 32-byte sectors that they touch.
#pragma once

#include "kernels/ladder/common_sm90.cuh"

namespace gemmx::ladder::rung_6 {

inline constexpr int kTileM = 128, kTileN = 128, kTileK = 64, kStages = 2, kThreads = 256, kCluster = 1;
inline constexpr int kCtasPerSm = 2;
inline constexpr bool kPersistent = false, kFollowsPlan = false, kStoresByTma = false;

using TileA = device::SwizzledTile<kTileM, kTileK, true>;
using TileB = device::SwizzledTile<kTileN, kTileK, true>;
inline constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;

struct SharedStorage {
  unsigned char stages[kStages][kStageBytes];  // A, then B
  alignas(128) uint64_t full[kStages];
};
inline constexpr int kSmemBytes = sizeof(SharedStorage);

// The warpgroup's 64 rows of one stage, four steps along K. They run on after this returns.
__device__ __forceinline__ void multiply(float (&acc)[kTileN / 2], uint32_t stage, int warpgroup) {
  const uint64_t a = device::ptx::at_address(TileA::descriptor(), stage + TileA::offset(64 * warpgroup, 0));
  const uint64_t b = device::ptx::at_address(TileB::descriptor(), stage + TileA::kBytes);
  device::ptx::wgmma_hold(acc);
  device::ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
    device::ptx::Wgmma<DType::bf16, kTileN>::mma<0, 0>(acc, a + (TileA::offset(0, k) >> 4),
                                                       b + (TileB::offset(0, k) >> 4), 1);
  }
  device::ptx::wgmma_commit();
  device::ptx::wgmma_hold(acc);
}

// D from where wgmma leaves it: acc[4 j + i] is row m + lane / 4 (+ 8 for i = 2, 3), column n + 8 j + 2 (lane % 4) +
// i % 2. A lane stores its two neighbours at once where D is of 16 bits and the pair aligned.
__device__ __forceinline__ void store(const device::EpilogueParams& e, int64_t m, int64_t n,
                                      const float (&acc)[kTileN / 2], int lane) {
#pragma unroll
  for (int i = 0; i < kTileN / 2; i += 2) {
    const int64_t row = m + lane / 4 + i / 2 % 2 * 8, column = n + i / 4 * 8 + lane % 4 * 2;
    if (row >= e.m || column >= e.n) continue;
    float x[2] = {__fmul_rn(e.alpha, acc[i]), __fmul_rn(e.alpha, acc[i + 1])};
    const int count = column + 1 < e.n ? 2 : 1;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (e.c == nullptr || j >= count) continue;
      const int64_t index = row * e.c_row_stride + (column + j) * e.c_col_stride;
      x[j] = __fmaf_rn(e.beta, device::load_element(e.c, index, e.c_dtype), x[j]);
    }
    const int64_t index = row * e.d_row_stride + column * e.d_col_stride;
    if (count == 2 && e.d_vector >= 2 && e.d_dtype != DType::f32) {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(e.d) + index) = device::pack_pair(x[0], x[1], e.d_dtype);
      continue;
    }
    device::store_element(e.d, index, e.d_dtype, x[0]);
    if (count == 2) device::store_element(e.d, index + e.d_col_stride, e.d_dtype, x[1]);
  }
}

template <class Instance>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) gemm(const __grid_constant__ TmaParams p) {
  extern __shared__ __align__(1024) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<SharedStorage*>(raw_smem);
  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(raw_smem));
  const auto barriers = static_cast<uint32_t>(__cvta_generic_to_shared(smem.full));
  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int m = static_cast<int>(tile.m) * kTileM, n = static_cast<int>(tile.n) * kTileN;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const int warpgroup = warp / 4;

  // A stage is full by one announcement and its bytes.
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) device::ptx::mbarrier_init(barriers + stage * 8, 1);
    device::ptx::mbarrier_init_fence();
  }
  __syncthreads();

  const auto load = [&](int k_tile, uint32_t in_stage) {  // by thread 0
    const uint32_t full = barriers + in_stage * 8, stage = stages + in_stage * kStageBytes;
    device::ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
    TileA::load<1>(&p.a, stage, full, m, k_tile * kTileK, 0, 0, 1, device::ptx::kEvictNormal);
    TileB::load<1>(&p.b, stage + TileA::kBytes, full, n, k_tile * kTileK, 0, 0, 1, device::ptx::kEvictNormal);
  };

  // Fill the ring.
  if (threadIdx.x == 0) {
    for (int k_tile = 0; k_tile < min(kStages, p.k_tiles); ++k_tile) load(k_tile, k_tile);
  }
  __syncwarp();

  // Mainloop. A stage is refilled when both warpgroups have multiplied it.
  float acc[kTileN / 2] = {};
  device::RingState<kStages> read;
#pragma unroll 1
  for (int i = 0; i < p.k_tiles; ++i, read.advance()) {
    device::ptx::mbarrier_wait(barriers + read.stage * 8, read.parity);
    multiply(acc, stages + read.stage * kStageBytes, warpgroup);
    device::ptx::wgmma_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && i + kStages < p.k_tiles) load(i + kStages, read.stage);
    __syncwarp();
  }

  // A warp has 16 rows of its warpgroup's 64.
  device::ptx::wgmma_hold(acc);
  store(p.epilogue, m + 64 * warpgroup + 16 * (warp % 4), n, acc, lane);
}

}  // namespace gemmx::ladder::rung_6
