// Rung 7, warp specialisation: loading, multiplying and storing run at the same time, and neighbouring CTAs share what
// they load. bf16 in, fp32 accumulation, sm_90a.
//
// Before:    rung 6 lets the tensor cores stand still while a CTA starts and while it writes D; its thread 0 has two
//            duties; neighbours load the same tile of B.
// Changes:   roles. A producer thread does nothing but ask TMA for tiles; two consumer warpgroups do nothing but wgmma
//            and the epilogue, by turns: while one writes its tile of D, the other multiplies the next (ping-pong). The
//            producer's warpgroup hands its registers to them (setmaxnreg).
//            Persistent: as many CTAs as the GPU holds, each walking its share of the tiles, the producer ahead of the
//            consumers, so that the ring never drains.
//            Clusters of two CTAs, one below the other: each loads half of their common tile of B, and multicast
//            delivers it to both.
//            D leaves by TMA from swizzled shared memory, 16 rows of 64 columns at a time, and the warp does not wait.
//            The plan chooses the order of the tiles, for the L2 cache.
// Per CTA:   128 x 128 elements of D at a time: 2 * 128 * 128 * K FLOPs; (128 + 128 / 2) * K * 2 bytes from global
//            memory.
// Intensity: 2 * 128 * 128 / (192 * 2) = 85 FLOP per global byte: that of rung 6 with half its tile.
// Wastes:    a wgmma of 64x128 reads (64 + 128) * 32 bytes of shared memory in the 64 clocks it takes, 75 % of what
//            shared memory delivers, where 64x256 reads 62 %.
//
// Warpgroups 0, 1: consumers, every other tile each. Warpgroup 2: the producer, one thread.
// Shared memory: [stage 0: A, B] ... [stage 5: A, B] [4 KB of boxes for each consumer warp] [barriers]
#pragma once

#include "device/ptx/named_barrier.cuh"
#include "device/ptx/setmaxnreg.cuh"
#include "kernels/ladder/common_sm90.cuh"

namespace gemmx::ladder::rung_7 {

inline constexpr int kTileM = 128, kTileN = 128, kTileK = 64, kStages = 6, kThreads = 384, kCluster = 2;
inline constexpr bool kPersistent = true, kFollowsPlan = true, kStoresByTma = true;
inline constexpr int kConsumerWarps = 8, kProducerRegisters = 40, kConsumerRegisters = 232;
inline constexpr int kTurn = 1;  // named barrier kTurn + w: consumer w may start its tile

using TileA = device::SwizzledTile<kTileM, kTileK, true>;
using TileB = device::SwizzledTile<kTileN, kTileK, true>;
inline constexpr int kStageBytes = TileA::kBytes + TileB::kBytes, kBlocks = kTileM / 64;
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
  __device__ bool has_next() const { return index + step < tiles; }
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

// The tile's two blocks of 64 rows of one stage, four steps along K. They run on after this returns.
__device__ __forceinline__ void multiply(float (&acc)[kBlocks][kTileN / 2], uint32_t stage) {
  const uint64_t a = device::ptx::at_address(TileA::descriptor(), stage);
  const uint64_t b = device::ptx::at_address(TileB::descriptor(), stage + TileA::kBytes);
  for (auto& block : acc) device::ptx::wgmma_hold(block);
  device::ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileK; k += 16) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      device::ptx::Wgmma<DType::bf16, kTileN>::mma<0, 0>(acc[block], a + (TileA::offset(64 * block, k) >> 4),
                                                         b + (TileB::offset(0, k) >> 4), 1);
    }
  }
  device::ptx::wgmma_commit();
  for (auto& block : acc) device::ptx::wgmma_hold(block);
}

// One warpgroup, every other tile: multiplies its stages, tells both CTAs' producers of each one that it is done with,
// and stores. It starts when the other has seen all stages of the tile before: a barrier's parity tells only
// neighbouring rounds of the ring apart, so that nobody may wait for a round before the one before it is complete.
__device__ __forceinline__ void consume(const TmaParams& p, SharedStorage& smem, uint32_t stages, int warp, int lane) {
  const int warpgroup = warp / 4;
  device::RingState<kStages> at;
  uint32_t boxes = 0;
  unsigned char* const buffer = smem.epilogue[warp];
  const auto buffer_address = static_cast<uint32_t>(__cvta_generic_to_shared(buffer));
  int turn = 0;
  bool first = true;
#pragma unroll 1
  for (Walk walk(p); walk.valid(); walk.next(), turn ^= 1, first = false) {
    if (turn != warpgroup) {
      at.advance(p.k_tiles);
      continue;
    }
    if (!first) device::ptx::named_barrier_sync(kTurn + warpgroup, 256);
    float acc[kBlocks][kTileN / 2] = {};
    uint32_t previous = 0;
#pragma unroll 1
    for (int k_tile = 0; k_tile < p.k_tiles; ++k_tile) {
      smem.ring.wait_full(at);
      multiply(acc, stages + at.stage * kStageBytes);
      if (k_tile > 0) {
        device::ptx::wgmma_wait<1>();
        smem.ring.release<kCluster>(previous, lane, 0);
      }
      previous = at.stage;
      at.advance();
    }
    if (walk.has_next()) device::ptx::named_barrier_arrive(kTurn + (warpgroup ^ 1), 256);
    device::ptx::wgmma_wait<0>();
    for (auto& block : acc) device::ptx::wgmma_hold(block);
    if (p.k_tiles > 0) smem.ring.release<kCluster>(previous, lane, 0);

    const device::TileCoord tile = p.order.coord(walk.index);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int m = walk.m(tile) + block * 64 + warp % 4 * 16, n = static_cast<int>(tile.n) * kTileN;
      if (p.stores_by_tma) {
        TmaStore::run(p.epilogue, &p.d, 0, m, n, acc[block], buffer_address, lane, boxes);
      } else {
        Store::run(p.epilogue, 0, m, n, acc[block], reinterpret_cast<float*>(buffer), lane);
      }
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

  if (threadIdx.x == 0) smem.ring.init(1, kConsumerWarps / 2 * kCluster);
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
