#include "kernels/cublaslt/specs.h"

#include <algorithm>
#include <limits>

namespace gemmx::cublaslt {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

std::string check_sizes(const Problem& p) {
  if (p.k == 0) return "needs K > 0 (an alpha of 0 counts as K = 0)";
  if (std::max({p.m, p.n, p.k}) > kMaxInt) return "takes M, N and K up to 2^31 - 1";
  // Batches above the grid's y and z limit, and batch offsets past 32 bits, have given launch failures and
  // wrong results in public reports of several versions.
  if (p.batch > 65535) return "takes up to 65535 batches, got " + std::to_string(p.batch);
  for (const Matrix* x : {&p.a, &p.b, &p.d}) {
    if (x->batch_stride > kMaxInt / p.batch) return "takes batched operands of up to 2^31 - 1 elements";
  }
  return {};
}

// cuBLASLt sees an operand as columns of `length` contiguous elements, a leading dimension apart.
std::string check_layout(const char* operand, const Matrix& x, int64_t length) {
  if (x.major == Major::none) return "needs a dimension of stride 1 in " + std::string(operand);
  const int64_t ld = x.leading_dimension();
  if (ld >= length && ld <= kMaxInt) return {};
  return "needs a leading dimension of " + std::string(operand) + " from " + std::to_string(length) +
         " to 2^31 - 1, got " + std::to_string(ld);
}

std::string check_layouts(const Problem& p) {
  if (std::string r = check_layout("A", p.a, p.a.major == Major::k ? p.k : p.m); !r.empty()) return r;
  if (std::string r = check_layout("B", p.b, p.b.major == Major::n ? p.n : p.k); !r.empty()) return r;
  return check_layout("D", p.d, p.d.major == Major::n ? p.n : p.m);
}

// cuBLASLt's own epilogues round alpha * A @ B to D's type before they add C or bias: on an H200 with cuBLASLt 13.1,
// 16-bit D with bias (aligned, M-major A) and batched D += C left the error bound of docs/design.md by up to
// 230 times, and its gelu_tanh left it in fp32. So it serves plain products.
std::string check_epilogue(const Problem& p) {
  if (p.has_c() || p.has_bias() || p.activation != Activation::none) {
    return "computes alpha * A @ B only: its C, bias and activation round in between";
  }
  return {};
}

std::string check(const KernelSpec& spec, const Problem& p, const Device& device, Precision precision) {
  if (std::string r = supports_common(spec, p, device); !r.empty()) return r;
  if (p.a.dtype == DType::f32 && p.precision != precision) {
    return "computes in precision " + std::string(name(precision)) + ", asked for " + std::string(name(p.precision));
  }
  if (p.d.dtype != DType::f32 && p.d.dtype != p.a.dtype) return "writes D in f32 or in A's type only";
  if (std::string r = check_sizes(p); !r.empty()) return r;
  if (std::string r = check_layouts(p); !r.empty()) return r;
  return check_epilogue(p);
}

}  // namespace

std::string supports_ieee(const KernelSpec& spec, const Problem& problem, const Device& device) {
  return check(spec, problem, device, Precision::ieee);
}

std::string supports_tf32(const KernelSpec& spec, const Problem& problem, const Device& device) {
  return check(spec, problem, device, Precision::tf32);
}

int64_t workspace_size(const KernelSpec&, const Problem&, const Plan&, const Device&) { return kWorkspaceBytes; }

}  // namespace gemmx::cublaslt
