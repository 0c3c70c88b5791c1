// The ring of shared-memory stages between a producer and its consumers, as mbarriers.
//
//   full[s]    the producer has announced the stage's bytes and all of them have landed
//   empty[s]   every consumer warp that reads the stage, in every CTA that it was multicast to, is done with it
//
// Both sides walk the ring in the same order; a parity bit tells one round from the next.
#pragma once

#include <cstdint>

#include "device/ptx/cluster.cuh"
#include "device/ptx/mbarrier.cuh"

namespace gemmx::device {

template <int kStages>
struct RingState {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void advance(uint32_t count) {
    const uint32_t at = stage + count;
    parity ^= at / kStages & 1;
    stage = at % kStages;
  }
};

template <int kStages>
struct Ring {
  uint64_t full[kStages];
  uint64_t empty[kStages];

  // By one thread; made visible by the caller's barrier. producers: arrivals that fill a stage.
  __device__ __forceinline__ void init(uint32_t producers, uint32_t consumers) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full_address(s), producers);
      ptx::mbarrier_init(empty_address(s), consumers);
    }
    ptx::mbarrier_init_fence();
  }

  __device__ __forceinline__ uint32_t full_address(uint32_t stage) const { return address(full[0]) + stage * 8; }
  __device__ __forceinline__ uint32_t empty_address(uint32_t stage) const { return address(empty[0]) + stage * 8; }

  __device__ __forceinline__ void wait_full(RingState<kStages> at) const {
    ptx::mbarrier_wait(full_address(at.stage), at.parity);
  }
  // A fresh barrier counts as having completed the phase before its first, so that the first round does not wait.
  __device__ __forceinline__ void wait_empty(RingState<kStages> at) const {
    ptx::mbarrier_wait(empty_address(at.stage), at.parity ^ 1);
  }

  // By all lanes of a consumer warp. Lane i tells CTA first_cta + i; with one CTA no address is mapped.
  template <int kCtas>
  __device__ __forceinline__ void release(uint32_t stage, int lane, uint32_t first_cta) const {
    if constexpr (kCtas == 1) {
      if (lane == 0) ptx::mbarrier_arrive(empty_address(stage));
    } else {
      if (lane < kCtas) ptx::mbarrier_arrive_at_cta(ptx::map_to_cta(empty_address(stage), first_cta + lane));
    }
  }

 private:
  __device__ static __forceinline__ uint32_t address(const uint64_t& barrier) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  }
};

}  // namespace gemmx::device
