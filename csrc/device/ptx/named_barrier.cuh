// Barriers of a part of a CTA. Barrier 0 is __syncthreads().
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
// (sm_80+)
#pragma once

namespace gemmx::device::ptx {

// Waits until `threads` threads, a multiple of 32, have come to barrier `id` (1 to 15).
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Comes to the barrier, to be counted among its `threads`, and does not wait.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace gemmx::device::ptx
