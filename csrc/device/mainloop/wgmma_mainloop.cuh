// The consumer's side of the Hopper mainloop: one warpgroup, kBlocks x 64 rows of kN columns, fp32 accumulators.
//
// One group of wgmma (a stage) is always in flight: stage i is issued before the wait for stage i - 1, which is then
// released to the producer. With kDrains each stage is waited for and released at once: where loading takes longer than
// multiplying, the wait for the next stage would hold the previous one back. Products are added in ascending order of
// K, whatever the tile is.
#pragma once

#include "core/types.h"
#include "device/mainloop/pipeline.cuh"
#include "device/mainloop/swizzled_tile.cuh"

namespace gemmx::device {

// Config: kType, kTileM, kTileN, kTileK, kStages, kKMajorA, kKMajorB, kBlocks (of a warpgroup: 64 rows, the first
// kBlockRows of them its own), kCtas (CTAs that a stage is multicast to), kDrains.
template <class Config>
struct WgmmaMainloop {
  using TileA = SwizzledTile<Config::kTileM, Config::kTileK, Config::kKMajorA>;
  using TileB = SwizzledTile<Config::kTileN, Config::kTileK, Config::kKMajorB>;
  using Accumulators = float[Config::kBlocks][Config::kTileN / 2];
  static constexpr int kStageBytes = TileA::kBytes + TileB::kBytes;
  static constexpr int kStepK = 16;  // of one instruction

  // Multiplies k_tiles >= 1 stages from `at` on. `row`: the warpgroup's first row in the tile. first_cta: of the CTAs
  // that share the stages. all_full() is called when the last stage has been waited for and its wgmma run.
  template <class AllFull>
  __device__ static __forceinline__ void run(Accumulators& acc, const Ring<Config::kStages>& ring, uint32_t smem_stages,
                                             RingState<Config::kStages>& at, int k_tiles, int row, int lane,
                                             uint32_t first_cta, AllFull all_full) {
    if constexpr (Config::kDrains) {
#pragma unroll 1
      for (int i = 0; i < k_tiles; ++i) {
        ring.wait_full(at);
        issue(acc, smem_stages + at.stage * kStageBytes, row, i != 0);
        if (i + 1 == k_tiles) all_full();
        ptx::wgmma_wait<0>();
        hold(acc);
        ring.template release<Config::kCtas>(at.stage, lane, first_cta);
        at.advance();
      }
      return;
    }
    ring.wait_full(at);
    issue(acc, smem_stages + at.stage * kStageBytes, row, 0);
    uint32_t previous = at.stage;
    at.advance();
#pragma unroll 1
    for (int i = 1; i < k_tiles; ++i) {
      ring.wait_full(at);
      issue(acc, smem_stages + at.stage * kStageBytes, row, 1);
      ptx::wgmma_wait<1>();
      ring.template release<Config::kCtas>(previous, lane, first_cta);
      previous = at.stage;
      at.advance();
    }
    all_full();
    ptx::wgmma_wait<0>();
    hold(acc);
    ring.template release<Config::kCtas>(previous, lane, first_cta);
  }

 private:
  // One stage. The first instruction of a tile overwrites the accumulators instead of adding to them.
  __device__ static __forceinline__ void issue(Accumulators& acc, uint32_t smem_stage, int row, int accumulate) {
    using Instruction = ptx::Wgmma<Config::kType, Config::kTileN>;
    const uint64_t a = ptx::at_address(TileA::descriptor(), smem_stage + TileA::offset(row, 0));
    const uint64_t b = ptx::at_address(TileB::descriptor(), smem_stage + TileA::kBytes);
    hold(acc);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kTileK; k += kStepK) {
#pragma unroll
      for (int block = 0; block < Config::kBlocks; ++block) {
        Instruction::template mma<!Config::kKMajorA, !Config::kKMajorB>(
            acc[block], a + (TileA::offset(Config::kBlockRows * block, k) >> 4), b + (TileB::offset(0, k) >> 4),
            k == 0 ? accumulate : 1);
      }
    }
    ptx::wgmma_commit();
    hold(acc);
  }

  __device__ static __forceinline__ void hold(Accumulators& acc) {
#pragma unroll
    for (auto& block : acc) ptx::wgmma_hold(block);
  }
};

}  // namespace gemmx::device
