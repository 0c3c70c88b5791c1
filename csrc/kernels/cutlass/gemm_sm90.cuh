// CUTLASS 3.x kernels of sm_90a: TMA and wgmma. Compute capability 9.0 only.
//
// Only the parts of CUTLASS that these kernels use: collective_builder.hpp and gemm_universal.hpp bring every
// architecture's, which costs 15 % of a file's compile time.
#pragma once

#include "kernels/cutlass/gemm_3x.cuh"

#include "cutlass/gemm/collective/builders/sm90_gmma_builder.inl"
#include "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp"
#include "cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp"

namespace gemmx::cutlass {

struct Sm90 {
  using ArchTag = ::cutlass::arch::Sm90;
  static constexpr int kThreads = 384;

  template <Mainloop kMainloop>
  using MainloopSchedule =
      std::conditional_t<kMainloop == Mainloop::pingpong, ::cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         ::cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  template <Mainloop kMainloop>
  using EpilogueSchedule = std::conditional_t<kMainloop == Mainloop::pingpong, ::cutlass::epilogue::TmaWarpSpecialized,
                                              ::cutlass::epilogue::TmaWarpSpecializedCooperative>;
};

}  // namespace gemmx::cutlass

#define GEMMX_CUTLASS_SM90_KERNEL(NAME, ...) GEMMX_CUTLASS_3X_KERNEL(Sm90, NAME, __VA_ARGS__)
