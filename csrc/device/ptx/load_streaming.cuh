// Loads of data that is read once: not kept in L1, first to leave L2.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld-global-nc
// (sm_80+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// The cache hint of load_streaming and bulk_copy: all accessed lines are first in line for eviction.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 16 bytes, aligned to 16, that no one writes while the kernel runs.
__device__ __forceinline__ uint4 load_streaming(const uint4* address, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address), "l"(policy));
  return v;
}

}  // namespace gemmx::device::ptx
