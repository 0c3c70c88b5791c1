#include "kernels/ladder/specs.h"

#include <limits>

#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::ladder {
namespace {

// What every rung leaves to the kernels that are no lesson.
std::string check_terms(const Problem& p) {
  if (p.batch != 1) return "multiplies two matrices, got a batch of " + std::to_string(p.batch);
  if (p.has_bias()) return "computes alpha * A @ B + beta * C and adds no bias";
  if (p.activation != Activation::none) {
    return "computes alpha * A @ B + beta * C and applies no activation, got " + std::string(name(p.activation));
  }
  if (p.a.dtype == DType::f32 && p.precision != Precision::ieee) {
    return "multiplies in full fp32 (precision ieee), asked for " + std::string(name(p.precision));
  }
  if (p.numerics == Numerics::batch_invariant) return "is a teaching kernel, which does not serve batch_invariant";
  return {};
}

std::string check_extents(const KernelSpec& s, const Problem& p) {
  // Extents, and extents rounded up to tiles, are 32-bit numbers in the kernels.
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 1024;
  if (p.m > kMax || p.n > kMax || p.k > kMax) {
    return "takes M, N and K up to " + std::to_string(kMax) + ", got " + std::to_string(p.m) + ", " +
           std::to_string(p.n) + " and " + std::to_string(p.k);
  }
  if (device::cta_count(p.m, p.n, 1, 1, s.tile.m, s.tile.n) > device::kMaxGridX) {
    return "needs more than 2147483647 CTAs, the most that one launch can have";
  }
  return {};
}

// TMA takes addresses and strides that are multiples of 16 bytes, strides positive and below 2^40.
std::string check_tma(const char* name, const Matrix& x, const Rows& rows) {
  const std::string who(name);
  const int64_t stride = rows.stride * size_of(x.dtype);
  if (!rows.aligned) {
    return "moves " + who + " by TMA, which needs its address and row stride at multiples of 16 bytes, got " +
           std::to_string(stride) + " bytes from row to row and an address at a multiple of " +
           std::to_string(x.pointer_align);
  }
  if (stride <= 0 || stride >= (int64_t{1} << 40)) {
    return "moves " + who + " by TMA, which needs a row stride between 16 and 2^40 bytes, got " +
           std::to_string(stride);
  }
  return {};
}

Rows rows(const Matrix& x, int64_t stride) {
  return {stride, x.pointer_align >= 16 && stride * size_of(x.dtype) % 16 == 0};
}

}  // namespace

Rows rows_of_a(const Problem& p) { return rows(p.a, p.a.row_stride); }

Rows rows_of_b(const KernelSpec& s, const Problem& p) {
  return rows(p.b, s.major_b == Major::k ? p.b.col_stride : p.b.row_stride);
}

std::string supports(const KernelSpec& s, const Problem& p, const Device& d) {
  // Rows of one element are contiguous whatever their stride says.
  Problem as_rows = p;
  if (p.k == 1) as_rows.a.major = s.major_a;
  if ((s.major_b == Major::k ? p.k : p.n) == 1) as_rows.b.major = s.major_b;
  std::string reason = supports_common(s, as_rows, d);
  if (reason.empty()) reason = check_terms(p);
  if (reason.empty()) reason = check_extents(s, p);
  return reason;
}

std::string supports_tma(const KernelSpec& s, const Problem& p, const Device& d) {
  std::string reason = supports(s, p, d);
  if (p.k == 0) return reason;  // A and B are not read
  if (reason.empty()) reason = check_tma("a", p.a, rows_of_a(p));
  if (reason.empty()) reason = check_tma("b", p.b, rows_of_b(s, p));
  return reason;
}

// TMA clips rows of D at multiples of 16 bytes only, so that N must be one.
bool can_store_by_tma(const Problem& p) {
  return !p.has_c() && p.d.major == Major::n && p.n * size_of(p.d.dtype) % 16 == 0 &&
         check_tma("out", p.d, rows(p.d, p.d.row_stride)).empty();
}

}  // namespace gemmx::ladder
