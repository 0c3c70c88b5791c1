// Which kernels may serve numerics batch_invariant: on one architecture a row of D has the same bits whatever M is and
// whichever tile ran (docs/numerics.md). So one class of kernels serves an architecture, with cuts of K that do not
// depend on M, and no other.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx {

// The one class that serves batch_invariant on devices of this capability: that of own kernels on which every 16-bit
// problem can run there. 9.0 has the wgmma family, which packs what TMA can't read; elsewhere mma.sync serves (tcgen05
// kernels are CUTLASS's, for aligned operands).
constexpr NumericsClass batch_invariant_class(int capability) {
  return capability == 90 ? NumericsClass::wgmma : NumericsClass::mma_sync;
}

// The cuts of K of batch_invariant, whatever M, kernel and schedule are: their only source (docs/numerics.md). Cuts
// change the order in which a row is summed, so that nothing else may choose them; M is no argument on purpose. At
// least 1, at most max_splits(). n: columns of B.
GEMMX_API int64_t splits_for(int64_t n, int64_t k, int element_bytes);

// Whether a CTA of the kernel can compute all cuts of its tile, one after the other, and add them up as split_k does:
// data_parallel with splits, under batch_invariant. A large M then pays for no partials.
GEMMX_API bool adds_cuts_itself(const KernelSpec&);

// Empty unless the problem asks for batch_invariant and the kernel, or the schedule and splits asked for, would break
// it: then the reason, to follow the kernel's name. Part of supports_common().
std::string check_batch_invariant(const KernelSpec&, const Problem&, const Device&);

}  // namespace gemmx
