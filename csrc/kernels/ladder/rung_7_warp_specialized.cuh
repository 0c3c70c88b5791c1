// Rung 7, warp specialisation: loading, multiplying and storing run at the same time, and neighbouring CTAs share what
// they load. bf16 in, fp32 accumulation, sm_90a.
//
// Before:    rung 6 lets its products stand still between two stages, with the barrier of the whole CTA, and starts
//            every CTA with an empty ring; its thread 0 has two duties; neighbours load the same tiles.
// Changes:   roles. A producer thread does nothing but ask TMA for tiles; two consumer warpgroups do nothing but wgmma
//            and the epilogue, and ask for the next stage's products before they wait for the last ones. A second
//            mbarrier a stage, `empty`, tells the producer who is done with it: nobody waits for the CTA. The
//            producer's warpgroup hands its registers to the consumers (setmaxnreg).
//            Persistent: as many CTAs as the GPU holds, each walking its share of the tiles. The producer runs ahead
//            into the next tile while the consumers write the last one, so that the ring never drains.
//            Clusters of two CTAs, one below the other: each loads half of their common tile of B, and multicast
//            delivers it to both.
//            D leaves by TMA from swizzled shared memory, 16 rows of 64 columns at a time, and the warp does not wait.
//            The tile is 128 x 256, by wgmma of 64 x 256 x 16, the widest: 51 FLOP per byte of shared memory for 43.
//            The plan chooses the order of the tiles, for the L2 cache.
// Per CTA:   128 x 256 elements of D: 2 * 128 * 256 * K FLOPs; (128 + 256 / 2) * K * 2 bytes from global memory.
// Intensity: 2 * 128 * 256 / (256 * 2) = 128 FLOP per global byte, twice that of rung 6.
// Wastes:    the two consumers reach their epilogues together, and then the tensor cores wait for them.
//
// Warpgroups 0, 1: consumers, rows 0-63 and 64-127 of the tile. Warpgroup 2: the producer, one thread.
// Shared memory: [stage 0: A, B] ... [stage 3: A, B] [4 KB of boxes for each consumer warp] [barriers]
#pragma once

#include "device/ptx/setmaxnreg.cuh"
#include "kernels/ladder/common_sm90.cuh"

namespace gemmx::ladder::rung_7 {

inline constexpr int kTileM = 128, kTileN = 256, kTileK = 64, kStages = 4, kThreads = 384, kCluster = 2;
inline constexpr bool kPersistent = true, kFollowsPlan = true, kStoresByTma = true;
inline constexpr int kConsumerWarps = 8, kProducerRegisters = 40, kConsumerRegisters = 232;

using TileA = device::SwizzledTile<kTileM, kTileK, true>;
using TileB = device::SwizzledTile<kTileN, kTileK, true>;
inline constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
using TmaStore = device::BoxStore<kTileN>;
using Store = device::StagedStore<kTileN>;
inline constexpr int kEpilogueBytes = TmaStore::kBytes;
static_assert(Store::kBytes <= kEpilogueBytes, "the general epilogue uses the boxes of the TMA stores");

struct SharedStorage {
  unsigned char stages[kStages][kStageBytes];
  unsigned char epilogue[kConsumerWarps][kEpilogueBytes];
  alignas(128) device::Ring<kStages> ring;
};
inline constexpr int kSmemBytes = sizeof(SharedStorage);

// The tiles of this CTA: its cluster takes every (number of clusters)-th of the order, its rank a half of that.
struct Walk {
  uint32_t index, step, tiles, rank;

  __device__ explicit Walk(const TmaParams& p)
      : index(blockIdx.x / kCluster), step(gridDim.x / kCluster), tiles(p.tiles), rank(blockIdx.x % kCluster) {}
  __device__ bool valid() const { return index < tiles; }
  __device__ void next() { index += step; }
  __device__ int m(const device::TileCoord& tile) const { return static_cast<int>(tile.m * kCluster + rank) * kTileM; }
};

// One thread: fills the stages, tile after tile.
__device__ __forceinline__ void produce(const TmaParams& p, const device::Ring<kStages>& ring, uint32_t stages) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  device::RingState<kStages> at;
  for (Walk walk(p); walk.valid(); walk.next()) {
    const device::TileCoord tile = p.order.coord(walk.index);
    const int m = walk.m(tile), n = static_cast<int>(tile.n) * kTileN;
    for (int k_tile = 0; k_tile < p.k_tiles; ++k_tile, at.advance()) {
      // Empty here means in both CTAs: this one's half of B goes to both, and so does the other's.
      ring.wait_empty(at);
      const uint32_t full = ring.full_address(at.stage), stage = stages + at.stage * kStageBytes;
      device::ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
      TileA::load<1>(&p.a, stage, full, m, k_tile * kTileK, 0, 0, 1, device::ptx::kEvictNormal);
      TileB::load<kCluster>(&p.b, stage + TileA::kBytes, full, n, k_tile * kTileK, 0, walk.rank, kBoth,
                            device::ptx::kEvictNormal);
    }
  }
}

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

// One warpgroup: multiplies the stages of a tile, tells both CTAs' producers of each one that it is done
// with, and stores.
__device__ __forceinline__ void consume(const TmaParams& p, SharedStorage& smem, uint32_t stages, int warp, int lane) {
  device::RingState<kStages> at;
  uint32_t boxes = 0;
  unsigned char* const buffer = smem.epilogue[warp];
  const auto buffer_address = static_cast<uint32_t>(__cvta_generic_to_shared(buffer));
#pragma unroll 1
  for (Walk walk(p); walk.valid(); walk.next()) {
    float acc[kTileN / 2] = {};
    uint32_t previous = 0;
#pragma unroll 1
    for (int k_tile = 0; k_tile < p.k_tiles; ++k_tile) {
      smem.ring.wait_full(at);
      multiply(acc, stages + at.stage * kStageBytes, warp / 4);
      if (k_tile > 0) {
        device::ptx::wgmma_wait<1>();
        smem.ring.release<kCluster>(previous, lane, 0);
      }
      previous = at.stage;
      at.advance();
    }
    device::ptx::wgmma_wait<0>();
    device::ptx::wgmma_hold(acc);
    if (p.k_tiles > 0) smem.ring.release<kCluster>(previous, lane, 0);

    const device::TileCoord tile = p.order.coord(walk.index);
    const int m = walk.m(tile) + warp * 16, n = static_cast<int>(tile.n) * kTileN;
    if (p.stores_by_tma) {
      TmaStore::run(p.epilogue, &p.d, 0, m, n, acc, buffer_address, lane, boxes, TmaStore::path_of(p.epilogue));
    } else {
      Store::run(p.epilogue, 0, m, n, acc, reinterpret_cast<float*>(buffer), lane);
    }
  }
  TmaStore::drain(lane);
}

template <class Instance>
__global__ void __launch_bounds__(kThreads, 1) gemm(const __grid_constant__ TmaParams p) {
  extern __shared__ __align__(1024) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<SharedStorage*>(raw_smem);
  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(raw_smem));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) smem.ring.init(1, kConsumerWarps * kCluster);
  // Neither CTA may load into the other, or arrive at its barriers, before they are there.
  device::ptx::cluster_sync();

  if (warp >= kConsumerWarps) {
    device::ptx::setmaxnreg_decrease<kProducerRegisters>();
    if (warp == kConsumerWarps && lane == 0) produce(p, smem.ring, stages);
    __syncwarp();
  } else {
    device::ptx::setmaxnreg_increase<kConsumerRegisters>();
    consume(p, smem, stages, warp, lane);
  }
  // The other CTA's loads into this one, and its arrivals here, come before this one's shared memory is gone.
  device::ptx::cluster_sync();
}

}  // namespace gemmx::ladder::rung_7
