// mma.sync m16n8k16: one warp, D (16, 8) fp32 += A (16, 16) * B (16, 8), A row-major, B column-major.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float (sm_80+)
//
// Lane l, g = l / 4, q = l % 4:
//   a[0] A[g][2q..]   a[1] A[g+8][2q..]   a[2] A[g][2q+8..]   a[3] A[g+8][2q+8..]
//   b0   B[2q..][g]   b1   B[2q+8..][g]
//   d[0] D[g][2q]     d[1] D[g][2q+1]     d[2] D[g+8][2q]     d[3] D[g+8][2q+1]
#pragma once

#include <cstdint>

#include "core/types.h"

namespace gemmx::device::ptx {

template <DType kType>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(kType == DType::bf16 || kType == DType::f16, "m16n8k16 multiplies 16-bit floats");
  if constexpr (kType == DType::bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace gemmx::device::ptx
