#include "kernels/simt/specs.h"

#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::simt {

std::string supports(const KernelSpec& spec, const Problem& problem, const Device& device) {
  if (std::string reason = supports_common(spec, problem, device); !reason.empty()) return reason;
  if (problem.a.dtype == DType::f32 && problem.precision != Precision::ieee) {
    return "multiplies in full fp32 (precision ieee), asked for " + std::string(name(problem.precision));
  }
  if (problem.numerics == Numerics::batch_invariant) {
    return "is of numerics class simt, which does not serve batch_invariant";
  }
  if (device::cta_count(problem.m, problem.n, 1, 1, spec.tile.m, spec.tile.n) > device::kMaxGridX) {
    return "needs more than 2^31 - 1 CTAs for one batch";
  }
  return {};
}

}  // namespace gemmx::simt
