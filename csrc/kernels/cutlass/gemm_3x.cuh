// Builds a CUTLASS 3.x kernel from a Row and launches it. The only place that does either.
//
//   D = act(alpha * A @ B + beta * C + bias)     A, B, C, D, bias of one 16-bit type, sums in fp32
//
// Persistent and warp-specialised: a producer warp moves tiles of A and B into a ring of `stages` shared-memory
// buffers by TMA; math warp groups multiply them with wgmma (sm_90) or tcgen05.mma (sm_100); the epilogue goes
// through shared memory and TMA. M, N and K tails are TMA's: it reads zeros outside and writes nothing there.
//
// prepare() does what one Problem needs once: it encodes the TMA descriptors around a placeholder address, works
// out the scheduler and sets the kernel's attributes. run() copies the parameters, puts the addresses into the
// descriptors and launches. The driver's two TMA functions are looked up at run time, so that the library needs
// no libcuda.so to load.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cute/tensor.hpp>

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

#include "core/kernel_spec.h"
#include "kernels/cutlass/epilogues/linear_combination_activation.cuh"
#include "kernels/cutlass/specs.h"

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace gemmx::cutlass {

template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::bf16> {
  using type = ::cutlass::bfloat16_t;
};
template <>
struct ElementOf<DType::f16> {
  using type = ::cutlass::half_t;
};

// The types that CUTLASS makes of a Row. Config has `static constexpr Row kRow`; Arch (gemm_sm90.cuh,
// gemm_sm100.cuh) has ArchTag and the schedules for kRow.mainloop.
template <class Config, class Arch>
struct Gemm3x {
  static constexpr Row kRow = Config::kRow;
  static constexpr bool kSwap = kRow.operands == OperandOrder::swap_ab;
  static constexpr bool kStreamK = kRow.schedule == Schedule::stream_k;

  using Element = typename ElementOf<kRow.element>::type;
  using RowMajor = ::cutlass::layout::RowMajor;
  using ColumnMajor = ::cutlass::layout::ColumnMajor;
  // The kernel's A is (M, K) and its B is (K, N); swapped, they are B^T and A^T, and D^T is column-major.
  static constexpr bool kAKMajor = (kSwap ? kRow.major_b : kRow.major_a) == Major::k;
  static constexpr bool kBKMajor = (kSwap ? kRow.major_a : kRow.major_b) == Major::k;
  using LayoutA = std::conditional_t<kAKMajor, RowMajor, ColumnMajor>;
  using LayoutB = std::conditional_t<kBKMajor, ColumnMajor, RowMajor>;
  using LayoutD = std::conditional_t<kSwap, ColumnMajor, RowMajor>;
  static constexpr int kAlignment = 16 / sizeof(Element);  // TMA's 16 bytes

  using Tile = cute::Shape<cute::Int<kRow.tile.m>, cute::Int<kRow.tile.n>, cute::Int<kRow.tile.k>>;
  using Cluster = cute::Shape<cute::Int<kRow.cluster.m>, cute::Int<kRow.cluster.n>, cute::_1>;

  using Epilogue = typename ::cutlass::epilogue::collective::CollectiveBuilder<
      typename Arch::ArchTag, ::cutlass::arch::OpClassTensorOp, Tile, Cluster,
      ::cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element, LayoutD, kAlignment, Element, LayoutD,
      kAlignment, typename Arch::template EpilogueSchedule<kRow.mainloop>,
      typename LinearCombinationActivation<Element, kRow.operands>::Operation>::CollectiveOp;

  using Mainloop = typename ::cutlass::gemm::collective::CollectiveBuilder<
      typename Arch::ArchTag, ::cutlass::arch::OpClassTensorOp, Element, LayoutA, kAlignment, Element, LayoutB,
      kAlignment, float, Tile, Cluster, ::cutlass::gemm::collective::StageCount<kRow.stages>,
      typename Arch::template MainloopSchedule<kRow.mainloop>>::CollectiveOp;

  using Scheduler =
      std::conditional_t<kStreamK, ::cutlass::gemm::StreamKScheduler, ::cutlass::gemm::PersistentScheduler>;
  using Kernel = ::cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler>;
  using Params = typename Kernel::Params;

  static_assert(Kernel::SharedStorageSize == kRow.smem_bytes, "the row's smem_bytes is not the kernel's");
  static_assert(Kernel::MaxThreadsPerBlock == Arch::kThreads, "the spec's threads is not the kernel's");
};

// Named by the row's Config, so that the registry's name is in the symbol.
template <class Config, class Arch>
__global__ __launch_bounds__(Arch::kThreads, 1) void gemm_3x_kernel(const __grid_constant__
                                                                    typename Gemm3x<Config, Arch>::Params params) {
  extern __shared__ char smem[];
  typename Gemm3x<Config, Arch>::Kernel{}(params, smem);
}

inline void check(cudaError_t status, const char* what, const char* kernel) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(kernel) + ": " + what + " failed: " + cudaGetErrorString(status));
}

// An operand's stride as CuTe writes it: (row, column, batch) with a static 1 where elements are contiguous.
template <class Stride>
Stride make_stride(const Matrix& x) {
  Stride stride{};
  if constexpr (cute::is_static_v<cute::tuple_element_t<0, Stride>>) {
    cute::get<1>(stride) = x.leading_dimension();
  } else {
    cute::get<0>(stride) = x.leading_dimension();
  }
  cute::get<2>(stride) = x.batch_stride;
  return stride;
}

// The driver's cuTensorMapReplaceAddress, looked up once.
inline PFN_cuTensorMapReplaceAddress_v12000 replace_address() {
  static const auto function = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapReplaceAddress", &f, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      throw std::runtime_error("the CUDA driver has no cuTensorMapReplaceAddress: it must be 525 or newer");
    }
    return reinterpret_cast<PFN_cuTensorMapReplaceAddress_v12000>(f);
  }();
  return function;
}

// Points a TMA copy, a member of a call's own parameters, at another tensor of the same layout.
template <class TmaCopy>
void set_address(TmaCopy& copy, const void* address, const char* kernel) {
  auto* const descriptor = const_cast<cute::TmaDescriptor*>(copy.get_tma_descriptor());
  if (replace_address()(descriptor, const_cast<void*>(address)) != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(kernel) + ": the driver refused an operand's address for TMA");
  }
}

// CUTLASS leaves the descriptor zero, and only prints, where the driver refuses to encode it.
template <class TmaCopy>
bool encoded(const TmaCopy& copy) {
  static constexpr cute::TmaDescriptor kZero{};
  return std::memcmp(copy.get_tma_descriptor(), &kZero, sizeof(kZero)) != 0;
}

template <class Config, class Arch>
struct Launcher {
  using Types = Gemm3x<Config, Arch>;
  using Kernel = typename Types::Kernel;
  using Params = typename Types::Params;
  using Element = typename Types::Element;
  using Arguments = typename Kernel::Arguments;
  static constexpr Row kRow = Config::kRow;

  // What prepare() works out and every run() starts from.
  struct State {
    Arguments arguments;
    Params params;
    dim3 grid;
  };

  static Prepared prepare(const KernelSpec& spec, const Problem& p, const Plan& plan, const Device& device) {
    auto state = std::make_shared<State>();
    state->arguments = make_arguments(p, plan, device);
    if (!Kernel::can_implement(state->arguments)) {
      throw std::runtime_error(std::string(spec.name) + ": CUTLASS can't implement " + to_string(p));
    }
    const int64_t has = spec.workspace_size == nullptr ? 0 : spec.workspace_size(spec, p, plan, device);
    const int64_t needs = static_cast<int64_t>(Kernel::get_workspace_size(state->arguments));
    if (needs > has) {
      throw std::runtime_error(std::string(spec.name) + ": CUTLASS needs " + std::to_string(needs) +
                               " bytes of workspace for " + to_string(p) + ", the spec says " + std::to_string(has));
    }
    state->params = Kernel::to_underlying_arguments(state->arguments, nullptr);
    const Params& params = state->params;
    if (!encoded(params.mainloop.tma_load_a) || !encoded(params.mainloop.tma_load_b) ||
        !encoded(params.epilogue.tma_load_c) || !encoded(params.epilogue.tma_store_d)) {
      throw std::runtime_error(std::string(spec.name) + ": the driver refused a TMA descriptor for " + to_string(p));
    }
    state->grid = Kernel::get_grid_shape(params);
    check(cudaFuncSetAttribute(kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize),
          "asking for shared memory", spec.name);
    return state;
  }

  static void run(const KernelSpec& spec, const Problem& p, const Plan&, const void* prepared, const Operands& o,
                  Workspace workspace, Stream stream) {
    const State& state = *static_cast<const State*>(prepared);
    Params params = state.params;
    const bool swap = Types::kSwap;
    set_address(params.mainloop.tma_load_a, swap ? o.b : o.a, spec.name);
    set_address(params.mainloop.tma_load_b, swap ? o.a : o.b, spec.name);
    // Without C its descriptor is prefetched but not used; D's address keeps it valid.
    set_address(params.epilogue.tma_load_c, p.has_c() ? o.c : o.d, spec.name);
    set_address(params.epilogue.tma_store_d, o.d, spec.name);
    using Fusion = typename Types::Epilogue::FusionCallbacks;
    params.epilogue.thread = Fusion::to_underlying_arguments(
        params.problem_shape, fusion_arguments<typename Fusion::Arguments>(p, o), nullptr);
    if constexpr (Types::kStreamK) {
      // The barriers behind the partials are cleared in stream order on every call, also inside a graph.
      params.scheduler.reduction_workspace_ = workspace.data;
      if (Kernel::initialize_workspace(state.arguments, workspace.data, stream) != ::cutlass::Status::kSuccess) {
        throw std::runtime_error(std::string(spec.name) + ": clearing the stream-K barriers failed");
      }
    }
    launch(spec, params, state.grid, stream);
  }

 private:
  static const void* kernel() { return reinterpret_cast<const void*>(&gemm_3x_kernel<Config, Arch>); }

  // Everything but addresses and values. A descriptor needs some address: any multiple of 16 that is not null.
  static Arguments make_arguments(const Problem& p, const Plan& plan, const Device& device) {
    auto* const placeholder = reinterpret_cast<Element*>(uintptr_t{4096});
    const Matrix& a = Types::kSwap ? p.b : p.a;
    const Matrix& b = Types::kSwap ? p.a : p.b;
    const Matrix& c = p.has_c() ? p.c : p.d;
    Arguments args{};
    args.mode = ::cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {static_cast<int>(Types::kSwap ? p.n : p.m), static_cast<int>(Types::kSwap ? p.m : p.n),
                          static_cast<int>(p.k), static_cast<int>(p.batch)};
    args.mainloop.ptr_A = placeholder;
    args.mainloop.dA = make_stride<typename Kernel::StrideA>(a);
    args.mainloop.ptr_B = placeholder;
    args.mainloop.dB = make_stride<typename Kernel::StrideB>(b);
    args.epilogue.ptr_C = placeholder;
    args.epilogue.dC = make_stride<typename Kernel::StrideC>(c);
    args.epilogue.ptr_D = placeholder;
    args.epilogue.dD = make_stride<typename Kernel::StrideD>(p.d);
    args.hw_info.sm_count = device.sm_count;
    set_scheduler(args.scheduler, plan);
    return args;
  }

  template <class SchedulerArguments>
  static void set_scheduler(SchedulerArguments& scheduler, const Plan& plan) {
    using Raster = decltype(scheduler.raster_order);
    // With swapped operands the kernel's M is the problem's N.
    const bool along_m = (plan.raster == RasterOrder::along_m) != Types::kSwap;
    scheduler.raster_order = along_m ? Raster::AlongM : Raster::AlongN;
    scheduler.max_swizzle_size = plan.swizzle;
    if constexpr (Types::kStreamK) {
      // CUTLASS's default may decide for data-parallel or split-K; supports() has made sure that there is
      // something to cut, so it is cut.
      scheduler.decomposition_mode = std::decay_t<decltype(scheduler.decomposition_mode)>::StreamK;
      scheduler.reduction_mode = std::decay_t<decltype(scheduler.reduction_mode)>::Deterministic;
    }
  }

  // cudaLaunchKernelExC and not CUTLASS's ClusterLauncher, which sets a function attribute on every launch.
  static void launch(const KernelSpec& spec, Params& params, dim3 grid, Stream stream) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = kRow.cluster.m;
    cluster.val.clusterDim.y = kRow.cluster.n;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    void* args[] = {&params};
    check(cudaLaunchKernelExC(&config, kernel(), args), "the launch", spec.name);
  }
};

}  // namespace gemmx::cutlass

// Defines the Kernel of one row.
#define GEMMX_CUTLASS_3X_KERNEL(ARCH, NAME, ...)                                          \
  namespace gemmx::cutlass {                                                              \
  struct NAME##_config {                                                                  \
    static constexpr Row kRow = GEMMX_CUTLASS_ROW(__VA_ARGS__);                           \
  };                                                                                      \
  }                                                                                       \
  namespace gemmx::kernels {                                                              \
  extern const Kernel NAME;                                                               \
  const Kernel NAME = {cutlass::Launcher<cutlass::NAME##_config, cutlass::ARCH>::prepare, \
                       cutlass::Launcher<cutlass::NAME##_config, cutlass::ARCH>::run};    \
  }
