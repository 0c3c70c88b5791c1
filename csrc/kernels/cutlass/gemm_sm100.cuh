// CUTLASS 3.x kernels of sm_100a: TMA and tcgen05.mma with accumulators in tensor memory. Compute capability
// 10.0 only.
//
// Compiled and selected for the b200 profile, but never run: no sm_100 device was at hand.
#pragma once

#include "kernels/cutlass/gemm_3x.cuh"

#include "cutlass/gemm/collective/builders/sm100_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_mma_warpspecialized.hpp"
#include "cutlass/gemm/kernel/sm100_gemm_tma_warpspecialized.hpp"

namespace gemmx::cutlass {

struct Sm100 {
  using ArchTag = ::cutlass::arch::Sm100;
  static constexpr int kThreads = 256;

  template <Mainloop kMainloop>
  using MainloopSchedule =
      std::conditional_t<kMainloop == Mainloop::two_sm, ::cutlass::gemm::KernelTmaWarpSpecialized2SmSm100,
                         ::cutlass::gemm::KernelTmaWarpSpecialized1SmSm100>;
  template <Mainloop kMainloop>
  using EpilogueSchedule = std::conditional_t<kMainloop == Mainloop::two_sm, ::cutlass::epilogue::TmaWarpSpecialized2Sm,
                                              ::cutlass::epilogue::TmaWarpSpecialized1Sm>;
};

}  // namespace gemmx::cutlass

#define GEMMX_CUTLASS_SM100_KERNEL(NAME, ...) GEMMX_CUTLASS_3X_KERNEL(Sm100, NAME, __VA_ARGS__)
