// Loads from this CTA's shared memory by its 32-bit address.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
//
// Volatile, so that they stay behind the barrier that made the data visible, but without a clobber of memory: loads and
// stores to global memory between them may be in any order.
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address));
  return x;
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}

__device__ __forceinline__ uint16_t load_shared_2(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
  return x;
}

}  // namespace gemmx::device::ptx
