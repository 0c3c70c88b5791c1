// What the rungs 6 and 7 share and neither is about: parameters with TMA descriptors, and the launch. K-major bf16
// operands in tiles of 64 along K, which are rows of 128 bytes in shared memory.
//
// A rung's file has namespace rung_<i> with kTileM, kTileN, kTileK, kStages, kThreads, kSmemBytes, kCluster (CTAs along
// M that share the tile of B), kPersistent, kFollowsPlan and the kernel.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "device/epilogue/box_store.cuh"
#include "device/epilogue/staged_store.cuh"
#include "device/mainloop/wgmma_mainloop.cuh"
#include "device/scheduler/tile_order.cuh"
#include "kernels/ladder/common.cuh"
#include "kernels/sm90/tensor_map.h"

namespace gemmx::ladder {

struct TmaParams {
  CUtensorMap a, b, d;
  bool stores_by_tma;  // D, of rung 7; otherwise by ordinary stores
  int k_tiles;
  uint32_t tiles;           // of clusters
  device::TileOrder order;  // of clusters' tiles
  device::EpilogueParams epilogue;
};

using TmaKernelFunction = void (*)(TmaParams);

// What a rung's constants say to the launch.
struct TmaRung {
  TmaKernelFunction kernel;
  int cluster;
  bool persistent, follows_plan, stores_by_tma;
};

// What is made once for a Problem: descriptors around a placeholder address, and the grid.
struct TmaState {
  TmaParams params;
  int ctas;
};

inline cudaLaunchConfig_t launch_config(const KernelSpec& spec, int ctas, int cluster, cudaLaunchAttribute& attribute,
                                        Stream stream) {
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(static_cast<unsigned>(spec.threads));
  config.dynamicSmemBytes = static_cast<size_t>(spec.smem_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return config;
}

inline Prepared prepare_tma(const KernelSpec& spec, const Problem& p, const Plan& plan, const TmaRung& rung) {
  check(cudaFuncSetAttribute(rung.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, spec.smem_bytes), spec.name,
        "raising the shared-memory limit");
  auto state = std::make_shared<TmaState>();
  TmaParams& params = state->params;
  params = {};
  if (p.k > 0) {  // otherwise A and B are not read, and TMA can't describe them
    params.a = sm90::encode_tensor_map(spec.name, p.a, p.k, p.m, 1, {spec.tile.k, spec.tile.m});
    params.b = sm90::encode_tensor_map(spec.name, p.b, p.k, p.n, 1, {spec.tile.k, spec.tile.n / rung.cluster});
  }
  params.stores_by_tma = rung.stores_by_tma && can_store_by_tma(p);
  if (params.stores_by_tma) {
    const int columns = device::store_box_columns(spec.tile.n, size_of(p.d.dtype));
    params.d = sm90::encode_tensor_map(spec.name, p.d, p.n, p.m, 1, {columns, 16});
  }
  params.k_tiles = static_cast<int>(ceil_div(p.k, spec.tile.k));
  const int rows = spec.tile.m * rung.cluster;
  params.tiles = static_cast<uint32_t>(device::cta_count(p.m, p.n, 1, 1, rows, spec.tile.n));
  params.order =
      device::make_tile_order(p.m, p.n, rows, spec.tile.n, rung.follows_plan ? plan.raster : RasterOrder::along_n,
                              rung.follows_plan ? plan.swizzle : 1);
  int clusters = static_cast<int>(params.tiles);
  if (rung.persistent) {
    cudaLaunchAttribute attribute{};
    const cudaLaunchConfig_t config = launch_config(spec, rung.cluster, rung.cluster, attribute, nullptr);
    int resident = 0;
    check(cudaOccupancyMaxActiveClusters(&resident, rung.kernel, &config), spec.name, "asking for resident clusters");
    clusters = std::min(clusters, std::max(resident, 1));
  }
  state->ctas = clusters * rung.cluster;
  return state;
}

inline void launch_tma(const KernelSpec& spec, const Problem& p, const void* prepared, const Operands& o, Stream stream,
                       const TmaRung& rung) {
  const auto& state = *static_cast<const TmaState*>(prepared);
  TmaParams params = state.params;
  if (p.k > 0) {
    sm90::set_address(spec.name, params.a, o.a);
    sm90::set_address(spec.name, params.b, o.b);
  }
  if (params.stores_by_tma) sm90::set_address(spec.name, params.d, o.d);
  params.epilogue = device::make_epilogue_params(p, o);
  cudaLaunchAttribute attribute{};
  const cudaLaunchConfig_t config = launch_config(spec, state.ctas, rung.cluster, attribute, stream);
  check(cudaLaunchKernelEx(&config, rung.kernel, params), spec.name, "launch");
}

}  // namespace gemmx::ladder
