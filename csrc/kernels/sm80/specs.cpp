#include "kernels/sm80/specs.h"

#include <algorithm>

#include "core/splits.h"
#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::sm80 {
namespace {

constexpr int kElementBytes = 2;
constexpr int kVectorBytes = 16;  // of an aligned load

std::string too_many_splits(const Problem& p) {
  const int64_t limit = max_splits(p.k, kElementBytes);
  if (p.splits <= limit) return "";
  return "splits is " + std::to_string(p.splits) + ", but K=" + std::to_string(p.k) + " can be cut into at most " +
         std::to_string(limit) + " (one per " + std::to_string(cut_unit(kElementBytes)) + " elements)";
}

std::string too_many_tiles(const KernelSpec& s, const Problem& p) {
  const int64_t splits = std::max<int64_t>(p.splits, 1);
  if (device::cta_count(p.m, p.b_columns(), p.batch, splits, s.tile.m, s.tile.n) <= device::kMaxGridX) return "";
  return "the problem has more than 2147483647 tiles of " + std::to_string(s.tile.m) + "x" + std::to_string(s.tile.n) +
         ", the most that one launch can have; use a kernel with a larger tile";
}

// Whether the tensor cores have an instruction of their own, wgmma or tcgen05, that mma.sync falls behind.
constexpr bool outgrew_mma_sync(int capability) { return capability >= 90 && capability < 120; }

// There two steps, the plain product by such kernels, are expected to take less time than one launch of a form.
std::string left_to_two_steps(const KernelSpec& s, const Problem& p, const Device& d) {
  const bool has_form = s.gated || s.aux;
  if (!has_form || !outgrew_mma_sync(d.capability) || p.kernel >= 0) return "";
  return "is left out on compute capability " + std::to_string(d.capability / 10) + "." +
         std::to_string(d.capability % 10) +
         ", where mma.sync is not the tensor cores' own instruction, unless it is asked for by name";
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
  if (reason.empty()) reason = left_to_two_steps(s, p, d);
  return reason;
}

std::string supports_aligned(const KernelSpec& s, const Problem& p, const Device& d) {
  std::string reason = supports_common(s, p, d);
  if (reason.empty()) reason = supports(s, p, d);
  if (!reason.empty()) return reason;
  for (const auto& [label, matrix] : {std::pair{"a", &p.a}, std::pair{"b", &p.b}}) {
    const int bytes = vector_bytes(*matrix);
    if (bytes < kVectorBytes) {
      return std::string("needs every row of ") + label + " aligned to 16 bytes, got " + std::to_string(bytes);
    }
  }
  if (s.gated && s.major_b == Major::n && p.n * kElementBytes % kVectorBytes != 0) {
    return "needs up aligned to 16 bytes in every row of b, where it begins at column N, got N=" + std::to_string(p.n);
  }
  return "";
}

// fp32 partials [split][batch][M][N].
int64_t workspace_size(const KernelSpec&, const Problem& p, const Plan& plan, const Device&) {
  if (plan.splits <= 1) return 0;
  return int64_t{plan.splits} * p.batch * p.m * p.n * static_cast<int64_t>(sizeof(float));
}

}  // namespace gemmx::sm80
