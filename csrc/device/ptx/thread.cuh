// %tid: where a thread stands in its CTA.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-tid (sm_80+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// threadIdx.x, read anew: threadIdx itself is read once and then kept in a register, also through a mainloop that has
// none to spare.
__device__ __forceinline__ uint32_t read_thread_index() {
  uint32_t x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

}  // namespace gemmx::device::ptx
