// A Problem in cuBLASLt's terms: descriptors, heuristics and the launch, shared by the kernels and the baseline.
#pragma once

#include <vector>

#include "core/kernel_spec.h"
#include "kernels/cublaslt/lt.h"

namespace gemmx::cublaslt {

// cuBLASLt's matrices are column-major. A row-major D is therefore computed as the column-major
// D^T = B^T A^T: `swapped`, and `left` describes B. A column-major D takes A and B as they are.
struct Matmul {
  bool swapped = false;
  cublasLtMatmulDescOpaque_t desc{};
  cublasLtMatrixLayoutOpaque_t left{}, right{}, d{};
};

struct SearchLimits {
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  int64_t workspace_bytes = 0;
  int count = 1;
};

Matmul describe(const Problem& problem);

// The heuristic's choices, best first; may be empty.
std::vector<cublasLtMatmulHeuristicResult_t> find_algorithms(cublasLtHandle_t handle, const Matmul& matmul,
                                                             const Problem& problem, const SearchLimits& limits);

// alpha * A @ B. Leaves `matmul` as it is, so that threads may share it.
void launch(cublasLtHandle_t handle, const Matmul& matmul, const cublasLtMatmulAlgo_t& algo, const Operands& operands,
            Workspace workspace, Stream stream);

}  // namespace gemmx::cublaslt
