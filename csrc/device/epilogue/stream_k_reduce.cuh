// Second kernel of stream-K (device/scheduler/stream_k.cuh): D = epilogue(sum of a cut tile's partial tiles in
// ascending order of K), fp32.
//
// Least architecture sm_90 (programmatic dependent launch). Four neighbouring columns of one row of a tile per thread;
// partial tiles are [slot][CTA of the cluster][rows][columns] of D in the workspace. No shared memory.
#pragma once

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/griddepcontrol.cuh"
#include "device/scheduler/stream_k.cuh"
#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::device {

struct StreamKReduceParams {
  EpilogueParams epilogue;
  const float* partials;
  StreamK stream_k;
  TileScheduler scheduler;   // of clusters' tiles, in the kernel's rows and columns
  int rows, columns;         // of D in a CTA's tile
  int cluster_m, cluster_n;  // CTAs of a cluster, in the kernel's rows and columns
  bool swap;                 // the kernel computes D^T
};

inline constexpr int kStreamKReduceThreads = 256;

__device__ __forceinline__ void stream_k_reduce(const StreamKReduceParams& p) {
  ptx::wait_for_earlier_kernels();
  const uint32_t vectors = p.rows * p.columns / 4;  // of a CTA's tile
  const uint32_t blocks = static_cast<uint32_t>(ceil_div(vectors, kStreamKReduceThreads));
  const uint32_t cta_tile = blockIdx.x / blocks;
  const uint32_t vector = blockIdx.x % blocks * kStreamKReduceThreads + threadIdx.x;
  const uint32_t ctas = p.cluster_m * p.cluster_n;
  const uint32_t tile = cta_tile / ctas, cta = cta_tile % ctas;
  const uint32_t unit = tile * p.stream_k.k_tiles.divisor;
  const uint32_t worker = p.stream_k.worker_of(unit);
  const uint32_t last = p.stream_k.worker_of(unit + p.stream_k.k_tiles.divisor - 1);
  if (worker == last || vector >= vectors) return;  // one worker has stored the whole tile

  const TileCoord c = p.scheduler.coord(p.stream_k.first + tile);
  const uint32_t kernel_m = c.m * p.cluster_m + cta % p.cluster_m, kernel_n = c.n * p.cluster_n + cta / p.cluster_m;
  const int row = static_cast<int>(vector) * 4 / p.columns;
  const int64_t m = int64_t{p.swap ? kernel_n : kernel_m} * p.rows + row;
  const int64_t n = int64_t{p.swap ? kernel_m : kernel_n} * p.columns + static_cast<int>(vector) * 4 % p.columns;
  if (m >= p.epilogue.m || n >= p.epilogue.n) return;

  float sum[4] = {};
#pragma unroll 2
  for (uint32_t w = worker; w <= last; ++w) {
    const uint64_t at = (uint64_t{p.stream_k.slot(w, tile)} * ctas + cta) * vectors + vector;
    const float4 x = reinterpret_cast<const float4*>(p.partials)[at];
    const float part[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = w == worker ? part[i] : __fadd_rn(sum[i], part[i]);
  }
  epilogue_store_rows<1>(p.epilogue, c.batch, m, 0, n, sum);
}

}  // namespace gemmx::device
