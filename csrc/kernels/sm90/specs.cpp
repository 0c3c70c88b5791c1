#include "kernels/sm90/specs.h"

#include <algorithm>
#include <limits>

#include "core/splits.h"
#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::sm90 {
namespace {

constexpr int kElementBytes = 2;
// TMA reads rows that start at multiples of 16 bytes, with strides below 2^40 bytes.
constexpr int kTmaBytes = 16;
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;

std::string check_extents(const KernelSpec& s, const Problem& p) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 1024;  // coordinates of a tail tile stay in 32 bits
  if (p.m > kMax || p.n > kMax || p.k > kMax || p.batch > kMax) {
    return "takes M, N, K and batch below 2^31 - 1024, got " + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " +
           std::to_string(p.k) + " and " + std::to_string(p.batch);
  }
  if (p.k == 0) return "reads A and B through TMA, which needs K of at least 1; here K or alpha is 0";
  const int64_t splits = std::max<int64_t>(p.splits, 1);
  const auto [m, n] = s.swap_ab ? std::pair{p.n, p.m} : std::pair{p.m, p.n};
  // A cluster's CTAs count too.
  if (device::cta_count(m, n, p.batch, splits * s.cluster.m * s.cluster.n, s.tile.m, s.tile.n) > device::kMaxGridX) {
    return "takes less than 2^31 output tiles";
  }
  const int64_t limit = max_splits(p.k, kElementBytes);
  if (p.splits > limit) {
    return "splits is " + std::to_string(p.splits) + ", but K=" + std::to_string(p.k) + " can be cut into at most " +
           std::to_string(limit) + " (one per " + std::to_string(cut_unit(kElementBytes)) + " elements)";
  }
  return {};
}

std::string check_operand(const char* name, const Matrix& x) {
  const std::string who(name);
  if (vector_bytes(x) < kTmaBytes) {
    return "needs " + who + "'s address and strides to be multiples of 16 bytes, they are multiples of " +
           std::to_string(vector_bytes(x));
  }
  if (x.leading_dimension() == 0) return "takes no " + who + " that is broadcast along its rows or columns";
  const int64_t limit = kMaxStrideBytes / size_of(x.dtype);
  if (x.leading_dimension() >= limit || x.batch_stride >= limit) {
    return "takes strides of " + who + " below 2^40 bytes";
  }
  return {};
}

}  // namespace

std::string supports(const KernelSpec& s, const Problem& p, const Device& device) {
  if (std::string r = supports_common(s, p, device); !r.empty()) return r;
  if (std::string r = check_extents(s, p); !r.empty()) return r;
  if (std::string r = check_operand("A", p.a); !r.empty()) return r;
  return check_operand("B", p.b);
}

// fp32 partials [split][batch][M][N], where the splits do not fit into a cluster.
int64_t workspace_size(const KernelSpec& s, const Problem& p, const Plan& plan, const Device&) {
  if (plan.splits <= 1 || reduces_in_cluster(s, plan.splits)) return 0;
  return int64_t{plan.splits} * p.batch * p.m * p.n * static_cast<int64_t>(sizeof(float));
}

}  // namespace gemmx::sm90
