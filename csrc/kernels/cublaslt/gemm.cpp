// D = alpha * A @ B by cuBLASLt; specs.cpp says which problems it takes.
//
// Algorithms are restricted to no reduction across CTAs or one in fp32 through the workspace: by default the
// library may sum bf16 partials, which breaks the error bound of docs/design.md.
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/cublaslt/matmul.h"
#include "kernels/cublaslt/specs.h"

namespace gemmx::cublaslt {
namespace {

struct PreparedMatmul {
  cublasLtHandle_t handle = nullptr;
  Matmul matmul;
  cublasLtMatmulAlgo_t algo{};
  int64_t workspace_bytes = 0;
};

// The algorithm that the plan recorded, if it is of this version of the library.
bool recorded_algorithm(const Plan& plan, const Problem& problem, PreparedMatmul& prepared) {
  if (plan.algo_version == 0 || plan.algo_version != library().get_version()) return false;
  static_assert(sizeof plan.algo == sizeof prepared.algo, "Plan.algo holds a cublasLtMatmulAlgo_t");
  std::memcpy(&prepared.algo, plan.algo.data(), sizeof prepared.algo);
  Matmul m = prepared.matmul;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      library().algo_check(prepared.handle, &m.desc, &m.left, &m.right, &m.d, &m.d, &prepared.algo, &result);
  if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= static_cast<size_t>(kWorkspaceBytes)) {
    prepared.workspace_bytes = static_cast<int64_t>(result.workspaceSize);
    return true;
  }
  throw std::runtime_error("the plan's cuBLASLt algorithm can't run " + to_string(problem) +
                           ": leave algo out of the plan to use the library's choice");
}

Prepared prepare(const KernelSpec& spec, const Problem& problem, const Plan& plan, const Device& device) {
  auto prepared = std::make_shared<PreparedMatmul>();
  prepared->handle = current_handle();
  prepared->matmul = describe(problem);
  if (recorded_algorithm(plan, problem, *prepared)) return prepared;
  const SearchLimits limits{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, kWorkspaceBytes,
                            1};
  const auto found = find_algorithms(prepared->handle, prepared->matmul, problem, limits);
  if (found.empty()) {
    throw std::runtime_error(std::string(spec.name) + ": cuBLASLt has no algorithm for " + to_string(problem) + " on " +
                             device.name + "; name another kernel");
  }
  prepared->algo = found.front().algo;
  prepared->workspace_bytes = static_cast<int64_t>(found.front().workspaceSize);
  return prepared;
}

void run(const KernelSpec&, const Problem&, const Plan&, const void* prepared, const Operands& operands,
         Workspace workspace, Stream stream) {
  const auto& state = *static_cast<const PreparedMatmul*>(prepared);
  launch(state.handle, state.matmul, state.algo, operands, workspace, stream);
}

int64_t workspace_bytes(const void* prepared) { return static_cast<const PreparedMatmul*>(prepared)->workspace_bytes; }

}  // namespace
}  // namespace gemmx::cublaslt

namespace gemmx::kernels {
#define GEMMX_CUBLASLT_KERNEL(NAME, ...) \
  extern const Kernel NAME;              \
  const Kernel NAME = {cublaslt::prepare, cublaslt::run, cublaslt::workspace_bytes};
#include "kernels/cublaslt/instances.inc"
#undef GEMMX_CUBLASLT_KERNEL
}  // namespace gemmx::kernels
