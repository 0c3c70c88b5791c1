// mbarrier: a barrier in shared memory that counts arrivals and bytes. Addresses are those of shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
// (expect_tx: sm_90+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival; the phase also waits for `bytes` more bytes.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// One arrival at a barrier of this CTA.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival at a barrier of any CTA of the cluster; `mapped` is an address of map_to_cta (cluster.cuh). It orders no
// memory accesses but those of wgmma, which are complete: an explicit .release.cluster becomes a fence of the whole GPU
// and made a ring shared by two CTAs 2.2 times slower (H200, 128x128x64 tiles at 4096^3: 402 us against 178).
__device__ __forceinline__ void mbarrier_arrive_at_cta(uint32_t mapped) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

// Waits until the phase of this parity (0 for the first) is complete.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

}  // namespace gemmx::device::ptx
