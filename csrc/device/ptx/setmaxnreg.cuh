// setmaxnreg: moves registers between the warpgroups of a CTA.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg (sm_90a)
//
// Takes effect only with __launch_bounds__(threads, 1) or another cap at entry, and with each warpgroup's role in one
// branch of a single if/else. kRegisters: a multiple of 8, 24 to 256, per thread.
#pragma once

namespace gemmx::device::ptx {

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace gemmx::device::ptx
