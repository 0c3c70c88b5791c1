#include "kernels/cublaslt/matmul.h"

#include <algorithm>

namespace gemmx::cublaslt {
namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

template <class Value>
void set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check(library().matmul_desc_set_attribute(&desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void set(cublasLtMatrixLayoutOpaque_t& layout, cublasLtMatrixLayoutAttribute_t attribute, const Value& value) {
  check(library().matrix_layout_set_attribute(&layout, attribute, &value, sizeof value),
        "cublasLtMatrixLayoutSetAttribute");
}

template <class Value>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check(library().preference_set_attribute(&preference, attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

// `x` of rows x cols as the column-major matrix that lies in the same memory, its transpose where rows are
// contiguous.
cublasLtMatrixLayoutOpaque_t layout_of(const Matrix& x, bool row_major, int64_t rows, int64_t cols, int64_t batch) {
  cublasLtMatrixLayoutOpaque_t layout{};
  if (row_major) std::swap(rows, cols);
  check(library().matrix_layout_init(&layout, sizeof layout, data_type(x.dtype), rows, cols, x.leading_dimension()),
        "cublasLtMatrixLayoutInit");
  if (batch > 1) {
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.batch_stride);
  }
  return layout;
}

// Alignment of the operand's start in every batch.
uint32_t min_alignment(const Matrix& x) {
  const int64_t stride = x.batch_stride * size_of(x.dtype);
  const int64_t from_stride = stride == 0 ? 16 : stride & -stride;
  return static_cast<uint32_t>(std::min<int64_t>(x.pointer_align, from_stride));
}

}  // namespace

Matmul describe(const Problem& p) {
  Matmul m;
  const bool d_row_major = p.d.major == Major::n;
  const bool a_row_major = p.a.major == Major::k;
  const bool b_row_major = p.b.major == Major::n;
  m.swapped = d_row_major;

  const cublasComputeType_t compute =
      p.a.dtype == DType::f32 && p.precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(library().matmul_desc_init(&m.desc, sizeof m.desc, compute, CUDA_R_32F), "cublasLtMatmulDescInit");
  // The memory of a row-major operand is its transpose. D^T = B^T A^T wants transposes, D = A B does not.
  const auto op = [&](bool row_major) -> int32_t { return row_major == m.swapped ? CUBLAS_OP_N : CUBLAS_OP_T; };
  set(m.desc, CUBLASLT_MATMUL_DESC_TRANSA, op(m.swapped ? b_row_major : a_row_major));
  set(m.desc, CUBLASLT_MATMUL_DESC_TRANSB, op(m.swapped ? a_row_major : b_row_major));

  m.left = layout_of(p.a, a_row_major, p.m, p.k, p.batch);
  m.right = layout_of(p.b, b_row_major, p.k, p.n, p.batch);
  if (m.swapped) std::swap(m.left, m.right);
  m.d = layout_of(p.d, d_row_major, p.m, p.n, p.batch);
  return m;
}

std::vector<cublasLtMatmulHeuristicResult_t> find_algorithms(cublasLtHandle_t handle, const Matmul& m, const Problem& p,
                                                             const SearchLimits& limits) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(library().preference_init(&preference, sizeof preference), "cublasLtMatmulPreferenceInit");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(limits.workspace_bytes));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, limits.reduction_schemes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, min_alignment(m.swapped ? p.b : p.a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, min_alignment(m.swapped ? p.a : p.b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, min_alignment(p.d));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, min_alignment(p.d));

  // The C API takes descriptors as pointers to non-const, and this call does not write them; copies keep that
  // from being an assumption.
  Matmul copy = m;
  std::vector<cublasLtMatmulHeuristicResult_t> results(limits.count);
  int found = 0;
  const cublasStatus_t status = library().algo_get_heuristic(
      handle, &copy.desc, &copy.left, &copy.right, &copy.d, &copy.d, &preference, limits.count, results.data(), &found);
  // "Not supported" is how cuBLASLt says that it has no algorithm.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(status == CUBLAS_STATUS_SUCCESS ? found : 0);
  std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return results;
}

void launch(cublasLtHandle_t handle, const Matmul& m, const cublasLtMatmulAlgo_t& algo, const Operands& o,
            Workspace workspace, Stream stream) {
  // beta is 0, so that C, given as D, is not read.
  const float beta = 0.0f;
  const void* const left = m.swapped ? o.b : o.a;
  const void* const right = m.swapped ? o.a : o.b;
  // The C API takes descriptors as pointers to non-const; threads share `m`, so that each call has its copy.
  Matmul copy = m;
  check(library().matmul(handle, &copy.desc, &o.alpha, left, &copy.left, right, &copy.right, &beta, o.d, &copy.d, o.d,
                         &copy.d, &algo, workspace.data, static_cast<size_t>(workspace.bytes), stream),
        "cublasLtMatmul");
}

}  // namespace gemmx::cublaslt
