#include "kernels/cublaslt/baseline.h"

#include <memory>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "kernels/cublaslt/matmul.h"
#include "kernels/cublaslt/specs.h"

namespace gemmx::cublaslt {
namespace {

constexpr int kHeuristics = 16;
constexpr size_t kCapacity = 256;  // problems; a suite has about 50

struct Baseline {
  cublasLtHandle_t handle = nullptr;
  Matmul matmul;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms;
};

struct Key {
  Problem problem;
  int device = 0;
  int64_t workspace_bytes = 0;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return hash(key.problem) + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(key.workspace_bytes) * 64 + key.device);
  }
};

constexpr KernelSpec kSpecs[] = {
#define GEMMX_CUBLASLT_KERNEL(NAME, ...) GEMMX_CUBLASLT_SPEC(NAME, __VA_ARGS__),
#include "kernels/cublaslt/instances.inc"
#undef GEMMX_CUBLASLT_KERNEL
};

// Any device that the family takes: what a benchmark names runs on the one at hand.
void check_supported(const Problem& problem) {
  const Device device{.name = "", .capability = 999};
  std::string reason;
  for (const KernelSpec& spec : kSpecs) {
    if (spec.dtype_a != problem.a.dtype) continue;
    reason = spec.supports(spec, problem, device);
    if (reason.empty()) return;
  }
  throw std::invalid_argument("problem: cuBLASLt can't run " + to_string(problem) +
                              (reason.empty() ? "" : ": it " + reason));
}

std::shared_ptr<const Baseline> find(const Problem& problem, int64_t workspace_bytes) {
  static std::mutex mutex;
  static auto* const cache = new std::unordered_map<Key, std::shared_ptr<const Baseline>, KeyHash>;
  const Key key{problem, current_device(), workspace_bytes};
  const std::lock_guard lock(mutex);
  if (const auto it = cache->find(key); it != cache->end()) return it->second;
  check_supported(problem);
  auto baseline = std::make_shared<Baseline>();
  baseline->handle = current_handle();
  baseline->matmul = describe(problem);
  baseline->algorithms = find_algorithms(baseline->handle, baseline->matmul, problem,
                                         {CUBLASLT_REDUCTION_SCHEME_MASK, workspace_bytes, kHeuristics});
  if (cache->size() >= kCapacity) cache->clear();
  return cache->emplace(key, std::move(baseline)).first->second;
}

}  // namespace

bool run_baseline(const Problem& problem, const Operands& operands, Workspace workspace, Stream stream, int index) {
  const auto baseline = find(problem, workspace.bytes);
  if (index < 0 || index >= static_cast<int>(baseline->algorithms.size())) return false;
  launch(baseline->handle, baseline->matmul, baseline->algorithms[index].algo, operands, workspace, stream);
  return true;
}

}  // namespace gemmx::cublaslt
