#include "core/registry.h"

#include <array>
#include <atomic>
#include <unordered_map>

#include "core/build_info.h"
#include "kernels/cublaslt/specs.h"
#include "kernels/cutlass/specs.h"
#include "kernels/ladder/specs.h"
#include "kernels/simt/specs.h"
#include "kernels/sm80/specs.h"
#include "kernels/sm90/specs.h"

namespace gemmx {

// The Kernels of the families that were built; each generated .cu defines the one that its row names.
namespace kernels {
#define GEMMX_DECLARE(NAME, ...) extern const Kernel NAME;
#define GEMMX_SKIP(NAME, ...)
#ifdef GEMMX_ARCHS_SIMT
#define GEMMX_SIMT_KERNEL GEMMX_DECLARE
#else
#define GEMMX_SIMT_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_SM80
#define GEMMX_SM80_KERNEL GEMMX_DECLARE
#else
#define GEMMX_SM80_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_SM90
#define GEMMX_SM90_KERNEL GEMMX_DECLARE
#define GEMMX_SM90_CUSTOM_KERNEL GEMMX_DECLARE
#else
#define GEMMX_SM90_KERNEL GEMMX_SKIP
#define GEMMX_SM90_CUSTOM_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_CUTLASS_SM90
#define GEMMX_CUTLASS_SM90_KERNEL GEMMX_DECLARE
#else
#define GEMMX_CUTLASS_SM90_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_CUTLASS_SM100
#define GEMMX_CUTLASS_SM100_KERNEL GEMMX_DECLARE
#else
#define GEMMX_CUTLASS_SM100_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_LADDER
#define GEMMX_LADDER_KERNEL GEMMX_DECLARE
#else
#define GEMMX_LADDER_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_ARCHS_LADDER_SM90
#define GEMMX_LADDER_SM90_KERNEL GEMMX_DECLARE
#else
#define GEMMX_LADDER_SM90_KERNEL GEMMX_SKIP
#endif
#ifdef GEMMX_HAS_CUDA
#define GEMMX_CUBLASLT_KERNEL GEMMX_DECLARE
#else
#define GEMMX_CUBLASLT_KERNEL GEMMX_SKIP
#endif
#include "kernels/all_instances.inc"
#undef GEMMX_SIMT_KERNEL
#undef GEMMX_SM80_KERNEL
#undef GEMMX_SM90_KERNEL
#undef GEMMX_SM90_CUSTOM_KERNEL
#undef GEMMX_CUTLASS_SM90_KERNEL
#undef GEMMX_CUTLASS_SM100_KERNEL
#undef GEMMX_LADDER_KERNEL
#undef GEMMX_LADDER_SM90_KERNEL
#undef GEMMX_CUBLASLT_KERNEL
#undef GEMMX_DECLARE
#undef GEMMX_SKIP
}  // namespace kernels

namespace {

// Specs of every row, built or not.
#define GEMMX_SIMT_KERNEL(NAME, ...) GEMMX_SIMT_SPEC(NAME, __VA_ARGS__),
#define GEMMX_SM80_KERNEL(NAME, ...) GEMMX_SM80_SPEC(NAME, __VA_ARGS__),
#define GEMMX_SM90_KERNEL(NAME, ...) GEMMX_SM90_SPEC(NAME, __VA_ARGS__),
#define GEMMX_SM90_CUSTOM_KERNEL(NAME, ...) GEMMX_SM90_CUSTOM_SPEC(NAME, __VA_ARGS__),
#define GEMMX_CUTLASS_SM90_KERNEL(NAME, ...) GEMMX_CUTLASS_SM90_SPEC(NAME, __VA_ARGS__),
#define GEMMX_CUTLASS_SM100_KERNEL(NAME, ...) GEMMX_CUTLASS_SM100_SPEC(NAME, __VA_ARGS__),
#define GEMMX_LADDER_KERNEL(NAME, ...) GEMMX_LADDER_SPEC(NAME, __VA_ARGS__),
#define GEMMX_LADDER_SM90_KERNEL(NAME, ...) GEMMX_LADDER_SM90_SPEC(NAME, __VA_ARGS__),
#define GEMMX_CUBLASLT_KERNEL(NAME, ...) GEMMX_CUBLASLT_SPEC(NAME, __VA_ARGS__),
const KernelSpec kSpecs[] = {
#include "kernels/all_instances.inc"
};
#undef GEMMX_SIMT_KERNEL
#undef GEMMX_SM80_KERNEL
#undef GEMMX_SM90_KERNEL
#undef GEMMX_SM90_CUSTOM_KERNEL
#undef GEMMX_CUTLASS_SM90_KERNEL
#undef GEMMX_CUTLASS_SM100_KERNEL
#undef GEMMX_LADDER_KERNEL
#undef GEMMX_LADDER_SM90_KERNEL
#undef GEMMX_CUBLASLT_KERNEL

constexpr size_t kCount = std::size(kSpecs);

// A Kernel and the architectures its code was compiled for: 80 runs on 8x from 8.0 on; -90 is sm_90a, which
// runs on 9.0 only. `any`: host code that runs wherever CUDA does.
struct Built {
  const Kernel* kernel = nullptr;
  std::span<const int> archs;
  bool any = false;
};

#define GEMMX_NOT_BUILT(NAME, ...) Built{},
#ifdef GEMMX_ARCHS_SIMT
constexpr int kArchsSimt[] = {GEMMX_ARCHS_SIMT};
#define GEMMX_SIMT_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsSimt},
#else
#define GEMMX_SIMT_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_SM80
constexpr int kArchsSm80[] = {GEMMX_ARCHS_SM80};
#define GEMMX_SM80_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsSm80},
#else
#define GEMMX_SM80_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_SM90
constexpr int kArchsSm90[] = {GEMMX_ARCHS_SM90};
#define GEMMX_SM90_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsSm90},
#define GEMMX_SM90_CUSTOM_KERNEL GEMMX_SM90_KERNEL
#else
#define GEMMX_SM90_KERNEL GEMMX_NOT_BUILT
#define GEMMX_SM90_CUSTOM_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_CUTLASS_SM90
constexpr int kArchsCutlassSm90[] = {GEMMX_ARCHS_CUTLASS_SM90};
#define GEMMX_CUTLASS_SM90_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsCutlassSm90},
#else
#define GEMMX_CUTLASS_SM90_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_CUTLASS_SM100
constexpr int kArchsCutlassSm100[] = {GEMMX_ARCHS_CUTLASS_SM100};
#define GEMMX_CUTLASS_SM100_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsCutlassSm100},
#else
#define GEMMX_CUTLASS_SM100_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_LADDER
constexpr int kArchsLadder[] = {GEMMX_ARCHS_LADDER};
#define GEMMX_LADDER_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsLadder},
#else
#define GEMMX_LADDER_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_ARCHS_LADDER_SM90
constexpr int kArchsLadderSm90[] = {GEMMX_ARCHS_LADDER_SM90};
#define GEMMX_LADDER_SM90_KERNEL(NAME, ...) Built{&kernels::NAME, kArchsLadderSm90},
#else
#define GEMMX_LADDER_SM90_KERNEL GEMMX_NOT_BUILT
#endif
#ifdef GEMMX_HAS_CUDA
#define GEMMX_CUBLASLT_KERNEL(NAME, ...) Built{&kernels::NAME, {}, true},
#else
#define GEMMX_CUBLASLT_KERNEL GEMMX_NOT_BUILT
#endif
const Built kBuilt[] = {
#include "kernels/all_instances.inc"
};

std::array<std::atomic<uint64_t>, kCount> launches{};

const std::unordered_map<std::string_view, int>& index_by_name() {
  static const auto* const map = [] {
    auto* m = new std::unordered_map<std::string_view, int>;
    for (size_t i = 0; i < kCount; ++i) m->emplace(kSpecs[i].name, static_cast<int>(i));
    return m;
  }();
  return *map;
}

}  // namespace

std::span<const KernelSpec> kernel_specs() { return kSpecs; }

bool has_custom_function(const KernelSpec& spec) { return spec.supports == sm90::supports_custom; }

int find_kernel(std::string_view name) {
  const auto it = index_by_name().find(name);
  return it == index_by_name().end() ? -1 : it->second;
}

const Kernel* kernel(int index) { return kBuilt[index].kernel; }

bool built_for(int index, int capability) {
  const Built& built = kBuilt[index];
  if (built.any) return true;
  for (const int arch : built.archs) {
    if (arch < 0 ? capability == -arch : capability / 10 == arch / 10 && capability >= arch) return true;
  }
  return false;
}

std::string supports(int index, const Problem& problem, const Device& device) {
  const KernelSpec& spec = kSpecs[index];
  if (std::string reason = spec.supports(spec, problem, device); !reason.empty()) return reason;
  if (built_for(index, device.capability)) return {};
  return "not built here for compute capability " + std::to_string(device.capability / 10) + "." +
         std::to_string(device.capability % 10) + " (this library has GEMMX_CUDA_ARCHS=" + std::string(build_archs()) +
         ")";
}

int64_t workspace_size(int index, const Problem& problem, const Plan& plan, const Device& device) {
  const KernelSpec& spec = kSpecs[index];
  return spec.workspace_size == nullptr ? 0 : spec.workspace_size(spec, problem, plan, device);
}

std::vector<uint64_t> launch_counts() {
  std::vector<uint64_t> counts(kCount);
  for (size_t i = 0; i < kCount; ++i) counts[i] = launches[i].load(std::memory_order_relaxed);
  return counts;
}

void reset_launch_counts() {
  for (auto& count : launches) count.store(0, std::memory_order_relaxed);
}

void count_launch(int index) { launches[index].fetch_add(1, std::memory_order_relaxed); }

}  // namespace gemmx
