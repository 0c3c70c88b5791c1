// cp.async: global to shared memory without registers, completion counted in groups.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async (sm_80+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// Writes kBytes (16, 8, 4), both addresses aligned to them: the first `source_bytes` come from `source`, the
// rest are zeros. With source_bytes == 0 nothing is read. 16 bytes bypass L1 (.cg), which is all that
// .cg offers; the 128-byte L2 hint fetches the other half line, the next K tile of a 64-byte row.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t smem_address, const void* source, int source_bytes) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4, "cp.async copies 16, 8 or 4 bytes");
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem_address), "l"(source),
                 "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem_address), "l"(source), "n"(kBytes),
                 "r"(source_bytes)
                 : "memory");
  }
}

// Closes the group of the copies issued by this thread since the last commit; it may be empty.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace gemmx::device::ptx
