// The rungs that run on every architecture, and the Kernel of a row of instances.inc.
#pragma once

#include "kernels/ladder/rung_0_naive.cuh"
#include "kernels/ladder/rung_1_shared_tile.cuh"
#include "kernels/ladder/rung_2_register_tile.cuh"
#include "kernels/ladder/rung_3_double_buffer.cuh"
#include "kernels/ladder/rung_4_wmma.cuh"
#include "kernels/ladder/rung_5_mma_sync.cuh"

// The config puts the registry name into the symbol of the kernel.
#define GEMMX_LADDER_KERNEL(NAME, RUNG, ...)                                                                           \
  namespace gemmx::kernels {                                                                                           \
  struct NAME##_config {                                                                                               \
    static constexpr KernelSpec kSpec = GEMMX_LADDER_SPEC(NAME, RUNG, __VA_ARGS__);                                    \
  };                                                                                                                   \
  static_assert(NAME##_config::kSpec.tile.m == ladder::RUNG::kTileM &&                                                 \
                    NAME##_config::kSpec.tile.n == ladder::RUNG::kTileN &&                                             \
                    NAME##_config::kSpec.tile.k == ladder::RUNG::kTileK &&                                             \
                    NAME##_config::kSpec.stages == ladder::RUNG::kStages &&                                            \
                    NAME##_config::kSpec.threads == ladder::RUNG::kThreads &&                                          \
                    NAME##_config::kSpec.smem_bytes == ladder::RUNG::kSmemBytes,                                       \
                #NAME ": the row is not what the rung's file says");                                                   \
  extern const Kernel NAME;                                                                                            \
  const Kernel NAME = {                                                                                                \
      [](const KernelSpec& spec, const Problem& problem, const Plan&, const Device&) {                                 \
        return ladder::raise_smem_limit(spec, ladder::RUNG::kernel<NAME##_config>(ladder::is_aligned(spec, problem))); \
      },                                                                                                               \
      [](const KernelSpec& spec, const Problem& problem, const Plan& plan, const void*, const Operands& operands,      \
         Workspace, Stream stream) {                                                                                   \
        ladder::launch(spec, problem, plan, operands, stream,                                                          \
                       ladder::RUNG::kernel<NAME##_config>(ladder::is_aligned(spec, problem)),                         \
                       ladder::RUNG::kFollowsPlan);                                                                    \
      }};                                                                                                              \
  }
