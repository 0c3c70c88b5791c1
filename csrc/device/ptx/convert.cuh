// Conversions between fp32 and 16-bit floats, by bits: cuda_bf16.h and cuda_fp16.h would add 3 s to every file.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt (sm_80+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// The low 16 bits of `bits`; what is above them is ignored.
__device__ __forceinline__ float bf16_to_float(uint32_t bits) { return __uint_as_float(bits << 16); }

__device__ __forceinline__ float f16_to_float(uint32_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(bits)));
  return x;
}

// Round to nearest even, x in the low half.
__device__ __forceinline__ uint32_t pack_bf16x2(float x, float y) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

__device__ __forceinline__ uint32_t pack_f16x2(float x, float y) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

}  // namespace gemmx::device::ptx
