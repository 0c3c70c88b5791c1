#include "core/numerics.h"

#include <algorithm>

#include "core/splits.h"

namespace gemmx {

// With few rows, N alone does not fill the GPU: an H200 has 132 SMs for tiles of 64 columns. Cuts do, and pay where a
// tile's K is long beside the 1 us that adding them up takes. A large M pays nearly nothing for them, since a CTA adds
// them up itself; but a kernel that can't, or whose M is in between, pays for each, so that there are four at most.
int64_t splits_for(int64_t n, int64_t k, int element_bytes) {
  constexpr int64_t kColumnsOfWave = 132 * 64;
  constexpr int64_t kLongBytes = 16384;  // of K that stay one cut: 8,192 16-bit elements
  constexpr int64_t kMost = 4;
  const int64_t to_fill = kColumnsOfWave / std::max<int64_t>(n, 1);
  const int64_t by_length = ceil_div(std::min(k, kMost * kLongBytes) * element_bytes, kLongBytes);
  return std::clamp<int64_t>(std::min(to_fill, by_length), 1, kMost);
}

// The plain kernels of the wgmma family, whose consumers do (kernels/sm90/gemm.cuh); no form has cuts of K.
bool adds_cuts_itself(const KernelSpec& s) { return s.numerics == NumericsClass::wgmma && s.split_k; }

std::string check_batch_invariant(const KernelSpec& s, const Problem& p, const Device& device) {
  if (p.numerics != Numerics::batch_invariant) return {};
  if (p.a.dtype != DType::bf16 && p.a.dtype != DType::f16) {
    return "serves batch_invariant for no inputs but bf16 and f16, got " + std::string(name(p.a.dtype));
  }
  // With K = 0 nothing is accumulated, and D is what the epilogue makes of C and bias: one code for all own kernels
  // (device/epilogue/linear_combination.cuh), so that any of them may serve. The wgmma family can't, as TMA needs a K.
  if (p.k == 0)
    return s.numerics == NumericsClass::library ? "has an epilogue of its own, not compared" : std::string();
  const NumericsClass serves = batch_invariant_class(device.capability);
  if (s.numerics != serves) {
    return "is of numerics class " + std::string(name(s.numerics)) + ", and batch_invariant on this device is served " +
           "by class " + std::string(name(serves)) + " alone";
  }
  if (p.schedule == Schedule::stream_k) {
    return "cuts K under stream_k where the number of tiles says, which depends on M: not with batch_invariant";
  }
  const int64_t splits = splits_for(p.b_columns(), p.k, size_of(p.a.dtype));
  // Of a form then: the call takes two steps, whose plain product is cut.
  if (splits > 1 && !adds_cuts_itself(s) && (p.schedule == Schedule::data_parallel || !s.split_k)) {
    return "can't add up cuts of K" + std::string(s.split_k ? " under data_parallel" : "") +
           ", and batch_invariant cuts this K into " + std::to_string(splits) + " whatever M is";
  }
  // An open request leaves the splits to the selector, whose plan comes here once more (check_plan).
  if (p.splits > 0 && p.splits != splits) {
    return "cuts K into " + std::to_string(splits) + " with batch_invariant, whatever M is, and not into " +
           std::to_string(p.splits);
  }
  return {};
}

}  // namespace gemmx
