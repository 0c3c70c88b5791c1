// The rungs for sm_90a, and the Kernel of a row of instances_sm90.inc.
#pragma once

#include "kernels/ladder/rung_6_wgmma.cuh"
#include "kernels/ladder/rung_7_warp_specialized.cuh"

// The config puts the registry name into the symbol of the kernel.
#define GEMMX_LADDER_SM90_KERNEL(NAME, RUNG, ...)                                                                 \
  namespace gemmx::kernels {                                                                                      \
  struct NAME##_config {                                                                                          \
    static constexpr KernelSpec kSpec = GEMMX_LADDER_SM90_SPEC(NAME, RUNG, __VA_ARGS__);                          \
    static ladder::TmaRung rung() {                                                                               \
      return {ladder::RUNG::gemm<NAME##_config>, ladder::RUNG::kCluster, ladder::RUNG::kPersistent,               \
              ladder::RUNG::kFollowsPlan, ladder::RUNG::kStoresByTma};                                            \
    }                                                                                                             \
  };                                                                                                              \
  static_assert(NAME##_config::kSpec.tile.m == ladder::RUNG::kTileM &&                                            \
                    NAME##_config::kSpec.tile.n == ladder::RUNG::kTileN &&                                        \
                    NAME##_config::kSpec.tile.k == ladder::RUNG::kTileK && NAME##_config::kSpec.cluster.n == 1 && \
                    NAME##_config::kSpec.cluster.m == ladder::RUNG::kCluster &&                                   \
                    NAME##_config::kSpec.stages == ladder::RUNG::kStages &&                                       \
                    NAME##_config::kSpec.threads == ladder::RUNG::kThreads &&                                     \
                    NAME##_config::kSpec.smem_bytes == ladder::RUNG::kSmemBytes,                                  \
                #NAME ": the row is not what the rung's file says");                                              \
  extern const Kernel NAME;                                                                                       \
  const Kernel NAME = {[](const KernelSpec& spec, const Problem& problem, const Plan& plan, const Device&) {      \
                         return ladder::prepare_tma(spec, problem, plan, NAME##_config::rung());                  \
                       },                                                                                         \
                       [](const KernelSpec& spec, const Problem& problem, const Plan&, const void* prepared,      \
                          const Operands& operands, Workspace, Stream stream) {                                   \
                         ladder::launch_tma(spec, problem, prepared, operands, stream, NAME##_config::rung());    \
                       }};                                                                                        \
  }
