#include "core/numerics.h"

#include "core/splits.h"

namespace gemmx {

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
  // An open request leaves the splits to the selector, whose plan comes here once more (check_plan).
  const int64_t splits = splits_for(p.b_columns(), p.k, size_of(p.a.dtype));
  const bool open = p.splits == 0 && p.schedule != Schedule::data_parallel;
  if (!open && (p.splits > 0 ? p.splits : 1) != splits) {
    return "cuts K into " + std::to_string(splits) + " with batch_invariant, whatever M is, and not into " +
           std::to_string(p.splits > 0 ? p.splits : 1);
  }
  return {};
}

}  // namespace gemmx
