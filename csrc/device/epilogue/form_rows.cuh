// The epilogue of rows of an mma.sync kernel, which may gate or keep the pre-activation Z:
//
//   plain       Z = alpha * acc + beta * C + bias;  D = act(Z)
//   aux         Z is stored, too
//   gated       D = act(Z gate) * Z up, of the unrounded Z; no C
//   gated, aux  both
//
// Rounding steps are those of linear_combination.cuh; the gate adds one product, rounded in fp32 (as form_store.cuh).
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::device {

// As epilogue_store_rows, for columns n .. n + 3 of D: x[0] has the accumulators or, with two halves, those of gate,
// and x[1] those of up. z: where Z goes, gate and up being two batches of it.
template <int kRows, int kHalves, bool kAux>
__device__ __forceinline__ void form_store_rows(const EpilogueParams& e, const EpilogueParams& z, int64_t batch,
                                                int64_t m, int row_step, int64_t n, float (&x)[kHalves][4 * kRows]) {
  const int count = e.n - n < 4 ? static_cast<int>(e.n - n) : 4;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    pre_activation_rows<kRows>(e, batch, m, row_step, n, half * e.n + n, count, x[half]);
    if constexpr (kAux) store_rows<kRows>(z, batch + half, m, row_step, n, count, x[half]);
  }
  activate_all(x[0], e);
  if constexpr (kHalves == 2) {
#pragma unroll
    for (int i = 0; i < 4 * kRows; ++i) x[0][i] = __fmul_rn(x[0][i], x[1][i]);
  }
  store_rows<kRows>(e, batch, m, row_step, n, count, x[0]);
}

}  // namespace gemmx::device
