// cp.async.bulk: a block of global memory to shared memory by the copy engine, completion counted in bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
// (sm_90+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// Addresses and `bytes` are multiples of 16. The barrier (mbarrier.cuh) must expect `bytes`.
__device__ __forceinline__ void bulk_copy(uint32_t smem_address, const void* source, uint32_t bytes, uint32_t barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(smem_address),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace gemmx::device::ptx
