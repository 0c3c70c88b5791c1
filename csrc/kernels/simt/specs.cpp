#include "kernels/simt/specs.h"

#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::simt {

std::string supports(const KernelSpec& spec, const Problem& problem, const Device& device) {
  if (std::string reason = supports_common(spec, problem, device); !reason.empty()) return reason;
  // tf32 and 3xtf32 allow a larger error, so that products in full fp32 serve them too. batch_invariant comes here with
  // K = 0 only (core/numerics.h).
  if (device::cta_count(problem.m, problem.n, 1, 1, spec.tile.m, spec.tile.n) > device::kMaxGridX) {
    return "needs more than 2^31 - 1 CTAs for one batch";
  }
  return {};
}

}  // namespace gemmx::simt
