#include "kernels/sm80/specs.h"

#include <algorithm>

#include "core/splits.h"
#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::sm80 {
namespace {

constexpr int kElementBytes = 2;

std::string too_many_splits(const Problem& p) {
  const int64_t limit = max_splits(p.k, kElementBytes);
  if (p.splits <= limit) return "";
  return "splits is " + std::to_string(p.splits) + ", but K=" + std::to_string(p.k) + " can be cut into at most " +
         std::to_string(limit) + " (one per " + std::to_string(cut_unit(kElementBytes)) + " elements)";
}

std::string too_many_tiles(const KernelSpec& s, const Problem& p) {
  const int64_t splits = std::max<int64_t>(p.splits, 1);
  if (device::cta_count(p.m, p.n, p.batch, splits, s.tile.m, s.tile.n) <= device::kMaxGridX) return "";
  return "the problem has more than 2147483647 tiles of " + std::to_string(s.tile.m) + "x" + std::to_string(s.tile.n) +
         ", the most that one launch can have; use a kernel with a larger tile";
}

}  // namespace

std::string supports(const KernelSpec& s, const Problem& p, const Device& d) {
  // An operand with no unit stride is loaded element by element, which serves every major alike.
  Problem as_majors = p;
  if (p.a.major == Major::none) as_majors.a.major = s.major_a;
  if (p.b.major == Major::none) as_majors.b.major = s.major_b;
  std::string reason = supports_common(s, as_majors, d);
  if (reason.empty()) reason = too_many_splits(p);
  if (reason.empty()) reason = too_many_tiles(s, p);
  return reason;
}

std::string supports_aligned(const KernelSpec& s, const Problem& p, const Device& d) {
  std::string reason = supports_common(s, p, d);
  if (reason.empty()) reason = supports(s, p, d);
  if (!reason.empty()) return reason;
  for (const auto& [label, matrix] : {std::pair{"a", &p.a}, std::pair{"b", &p.b}}) {
    const int bytes = vector_bytes(*matrix);
    if (bytes < 16) {
      return std::string("needs every row of ") + label + " aligned to 16 bytes, got " + std::to_string(bytes);
    }
  }
  return "";
}

// fp32 partials [split][batch][M][N].
int64_t workspace_size(const KernelSpec&, const Problem& p, const Plan& plan, const Device&) {
  if (plan.splits <= 1) return 0;
  return int64_t{plan.splits} * p.batch * p.m * p.n * static_cast<int64_t>(sizeof(float));
}

}  // namespace gemmx::sm80
