// Rung 6, TMA and wgmma: the copy engine fills shared memory, the tensor cores read it there. bf16 in, fp32
// accumulation, sm_90a.
//
// Before:    rung 5 spends its warps on copying and on fragments, which every warp reads from shared memory into its
//            registers, and mma.sync has little more than half of Hopper's tensor rate.
// Changes:   wgmma multiplies 64 x 128 x 16 for a warpgroup straight from shared memory, asynchronously: only the
//            accumulators are registers. One thread asks TMA for whole tiles; TMA computes the addresses, swizzles, and
//            writes zeros outside the matrices. Three stages are a ring of mbarriers: `full` counts bytes that land,
//            `empty` counts warps that are done reading.
//            All warps are alike: both warpgroups multiply, and thread 0 also refills the stage that has become free.
// Per CTA:   128 x 256 elements of D: 2 * 128 * 256 * K FLOPs, (128 + 256) * K * 2 bytes from global memory.
// Intensity: 85 FLOP per global byte as rung 5; a warpgroup reads 2 * 64 * 128 / ((64 + 128) * 2) = 43 FLOP per byte of
//            shared memory.
// Wastes:    a warpgroup waits for its products before it gives a stage back, so that it has none in flight while it
//            waits for the next stage; thread 0 waits for the slower warpgroup before it refills. Tensor cores stand
//            still while a CTA starts and while it writes D. Neighbours load the same tile of B twice. D is written
//            through the general epilogue.
#pragma once

#include "kernels/ladder/common_sm90.cuh"

namespace gemmx::ladder::rung_6 {

inline constexpr int kTileM = 128, kTileN = 256, kTileK = 64, kStages = 3, kThreads = 256, kCluster = 1;
inline constexpr bool kPersistent = false, kFollowsPlan = false, kStoresByTma = false;

using TileA = device::SwizzledTile<kTileM, kTileK, true>;
using TileB = device::SwizzledTile<kTileN, kTileK, true>;
using Store = device::StagedStore<128>;
inline constexpr int kStageBytes = TileA::kBytes + TileB::kBytes, kWarps = kThreads / 32;

struct SharedStorage {
  unsigned char stages[kStages][kStageBytes];  // A, then B
  unsigned char epilogue[kWarps][Store::kBytes];
  alignas(128) device::Ring<kStages> ring;
};
inline constexpr int kSmemBytes = sizeof(SharedStorage);

// The warpgroup's 64 rows of one stage, four steps along K, 128 columns at a time. They run on after this returns.
__device__ __forceinline__ void multiply(float (&acc)[kTileN / 128][64], uint32_t stage, int warpgroup) {
  const uint64_t a = device::ptx::at_address(TileA::descriptor(), stage + TileA::offset(64 * warpgroup, 0));
  const uint64_t b = device::ptx::at_address(TileB::descriptor(), stage + TileA::kBytes);
  device::ptx::wgmma_hold(acc[0]);
  device::ptx::wgmma_hold(acc[1]);
  device::ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
#pragma unroll
    for (int half = 0; half < kTileN / 128; ++half) {
      device::ptx::Wgmma<DType::bf16, 128>::mma<0, 0>(acc[half], a + (TileA::offset(0, k) >> 4),
                                                      b + (TileB::offset(128 * half, k) >> 4), 1);
    }
  }
  device::ptx::wgmma_commit();
  device::ptx::wgmma_hold(acc[0]);
  device::ptx::wgmma_hold(acc[1]);
}

template <class Instance>
__global__ void __launch_bounds__(kThreads, 1) gemm(const __grid_constant__ TmaParams p) {
  extern __shared__ __align__(1024) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<SharedStorage*>(raw_smem);
  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(raw_smem));
  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int m = static_cast<int>(tile.m) * kTileM, n = static_cast<int>(tile.n) * kTileN;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;
  const int warpgroup = warp / 4;

  // Initialise the barriers: a stage is full by one announcement and its bytes, empty by an arrival of every warp.
  if (threadIdx.x == 0) smem.ring.init(1, kWarps);
  __syncthreads();

  device::RingState<kStages> write, read;
  const auto load = [&](int k_tile) {  // by thread 0
    smem.ring.wait_empty(write);
    const uint32_t full = smem.ring.full_address(write.stage), stage = stages + write.stage * kStageBytes;
    device::ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
    TileA::load<1>(&p.a, stage, full, m, k_tile * kTileK, 0, 0, 1, device::ptx::kEvictNormal);
    TileB::load<1>(&p.b, stage + TileA::kBytes, full, n, k_tile * kTileK, 0, 0, 1, device::ptx::kEvictNormal);
    write.advance();
  };

  // Fill the ring.
  if (threadIdx.x == 0) {
    for (int k_tile = 0; k_tile < min(kStages, p.k_tiles); ++k_tile) load(k_tile);
  }
  __syncwarp();

  // Mainloop. A stage is given back when it is multiplied, and refilled.
  float acc[kTileN / 128][64] = {};
#pragma unroll 1
  for (int i = 0; i < p.k_tiles; ++i, read.advance()) {
    smem.ring.wait_full(read);
    multiply(acc, stages + read.stage * kStageBytes, warpgroup);
    device::ptx::wgmma_wait<0>();
    smem.ring.release<1>(read.stage, lane, 0);
    if (threadIdx.x == 0 && i + kStages < p.k_tiles) load(i + kStages);
    __syncwarp();
  }

  // A warp has 16 rows of its warpgroup's 64.
#pragma unroll
  for (int half = 0; half < kTileN / 128; ++half) {
    device::ptx::wgmma_hold(acc[half]);
    Store::run(p.epilogue, 0, m + 64 * warpgroup + 16 * (warp % 4), n + 128 * half, acc[half],
               reinterpret_cast<float*>(smem.epilogue[warp]), lane);
  }
}

}  // namespace gemmx::ladder::rung_6
