// Thread block clusters: CTAs that run at the same time and read each other's shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
// (sm_90+)
#pragma once

#include <cstdint>

namespace gemmx::device::ptx {

__device__ __forceinline__ uint32_t cluster_cta_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all CTAs of the cluster; accesses before it are visible after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// cluster_sync() in two, where no access but the initialisation of barriers, after mbarrier_init_fence(), is to be
// visible: every thread of every CTA arrives once, without the fence of the whole GPU that a release is, and waits
// once, for all to have arrived.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address, in the cluster's window, of what lies at `smem_address` in the CTA of this rank.
__device__ __forceinline__ uint32_t map_to_cta(uint32_t smem_address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(smem_address), "r"(rank));
  return mapped;
}

// 16 bytes of another CTA's shared memory (address of map_to_cta).
__device__ __forceinline__ float4 load_from_cta(uint32_t mapped) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(mapped)
               : "memory");
  return v;
}

}  // namespace gemmx::device::ptx
