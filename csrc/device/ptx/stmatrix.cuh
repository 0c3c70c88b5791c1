// stmatrix: four 8x8 matrices of 16-bit elements from the registers of one warp to shared memory, the inverse of
// ldmatrix.cuh. Lanes 8i .. 8i+7 give the addresses of the rows of matrix i; a row is 16 bytes, 16-byte aligned.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix (sm_90+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

// Register i of lane l: row l / 4 of matrix i, columns 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void stmatrix_x4(uint32_t smem_address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace gemmx::device::ptx
