// wgmma: a warpgroup (four warps) multiplies tiles that lie in shared memory, asynchronously.
// The instructions themselves, one per N and type, are in wgmma_shapes.cuh.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions (sm_90a)
//
// Order of use: wgmma_fence(), any number of mma(), wgmma_commit(), later wgmma_wait<pending groups>(). Between the
// fence and the wait the accumulators belong to the tensor cores.
#pragma once

#include <cstdint>

#include "device/ptx/wgmma_shapes.cuh"

namespace gemmx::device::ptx {

// Makes the accumulators' registers and earlier accesses visible to the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of the wgmma issued since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the accumulator over this point: it does not know that wgmma runs on.
template <int kCount>
__device__ __forceinline__ void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

// Matrix descriptor of a tile with the 128-byte swizzle, as TMA writes it: rows of 128 bytes (64 16-bit elements) in
// blocks of 8 rows, 1024 bytes, the blocks 1024 bytes apart.
//   K-major:  a row is an index of M or N, along it lies K. A step of 16 along K is 32 bytes.
//   MN-major: a row is an index of K, along it lie 64 elements of M or N; `block_stride` bytes to the next 64.
//             A step of 16 along K is two blocks of 8 rows.
__device__ __forceinline__ constexpr uint64_t swizzled_descriptor(uint32_t block_stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kStrideOf8Rows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kStrideOf8Rows | (uint64_t{block_stride >> 4} << 16);
}

// The descriptor with the tile at this address of shared memory, a multiple of 16. The low 18 bits are the offset in
// the CTA's shared memory; in a cluster the CTA's rank stands above them, which must not reach the descriptor's next
// field.
__device__ __forceinline__ uint64_t at_address(uint64_t descriptor, uint32_t smem_address) {
  return descriptor | ((smem_address & 0x3FFFF) >> 4);
}

}  // namespace gemmx::device::ptx
