// TMA: boxes of a tensor in global memory to and from shared memory by the copy engine, described by a CUtensorMap.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
// (sm_90+)
//
// One thread issues a copy. Coordinates are in elements, innermost first; outside the tensor TMA reads zeros and
// writes nothing. The descriptor lies in parameter or global memory, 64-byte aligned.
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// Cache policies as L2 takes them in a cache hint: what createpolicy.fractional with fraction 1 returns.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000;

__device__ __forceinline__ void tma_prefetch_descriptor(const void* descriptor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(descriptor) : "memory");
}

// Box to this CTA's shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void tma_load(uint32_t smem_address, const void* descriptor, uint32_t barrier, int x, int y,
                                         int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address),
      "l"(descriptor), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// The same box to the same address in every CTA of the cluster whose rank's bit is set in `ctas`; the bytes count on
// the barrier at the same address in each.
__device__ __forceinline__ void tma_load_multicast(uint32_t smem_address, const void* descriptor, uint32_t barrier,
                                                   int x, int y, int z, uint16_t ctas, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(smem_address),
      "l"(descriptor), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(ctas), "l"(policy)
      : "memory");
}

// Box from shared memory. What ordinary stores wrote there needs fence_proxy_async() first.
__device__ __forceinline__ void tma_store(const void* descriptor, uint32_t smem_address, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(descriptor),
               "r"(smem_address), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last kPending groups of this thread's stores have been read out of shared memory.
template <int kPending>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary accesses of shared memory before later ones of TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace gemmx::device::ptx
