// Elementary functions of the special-function unit, one instruction each. Denormal arguments and results are zeros,
// which spares the instructions that __expf and __fdividef scale with.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2 (sm_80+)
#pragma once

namespace gemmx::device::ptx {

// 2^x, relative error 2^-22; inf from x = 128 on, 0 below -126.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, error of 1 ulp; 0 for x = inf.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gemmx::device::ptx
