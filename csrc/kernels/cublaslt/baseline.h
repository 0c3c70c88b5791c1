// cuBLASLt at its best, for benchmarks only: every heuristic it offers, unrestricted.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::cublaslt {

// Launches cuBLASLt's index-th choice of the 16 that are asked for, with any reduction scheme that fits the
// workspace; false when it has no such one. What it found is remembered per problem, device and workspace size,
// so that later calls cost a lookup and may be captured.
// Throws std::invalid_argument for a problem that the family does not take.
GEMMX_API bool run_baseline(const Problem& problem, const Operands& operands, Workspace workspace, Stream stream,
                            int index);

}  // namespace gemmx::cublaslt
