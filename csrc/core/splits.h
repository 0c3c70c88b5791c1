// Where K may be cut. One unit is 512 bytes of K (256 elements of a 16-bit type): kernels whose K tiles
// divide the unit cut at the same places whatever their tile is, and so sum in the same order.
//
// Usable on the device and on the host; tests/test_splits.py checks the properties on the CPU.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GEMMX_HOST_DEVICE __host__ __device__
#else
#define GEMMX_HOST_DEVICE
#endif

namespace gemmx {

inline constexpr int kCutBytes = 512;

GEMMX_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements of K in one cut unit.
GEMMX_HOST_DEVICE constexpr int64_t cut_unit(int element_bytes) { return kCutBytes / element_bytes; }

// The first element of K of cut i of s, for 0 <= i <= s; cut(s) is K. Cut i covers [cut(i), cut(i+1)), which
// is empty where there are more cuts than units.
GEMMX_HOST_DEVICE constexpr int64_t cut_begin(int64_t k, int element_bytes, int64_t i, int64_t s) {
  const int64_t unit = cut_unit(element_bytes);
  const int64_t units = ceil_div(k, unit);
  const int64_t begin = ceil_div(i * units, s) * unit;
  return begin < k ? begin : k;
}

// The greatest number of splits that leaves no cut empty.
GEMMX_HOST_DEVICE constexpr int64_t max_splits(int64_t k, int element_bytes) {
  const int64_t units = ceil_div(k, cut_unit(element_bytes));
  return units > 0 ? units : 1;
}

// The cuts of K of numerics batch_invariant, whatever M, kernel and schedule are: their only source (docs/numerics.md).
// Cuts change the order in which a row is summed, so that nothing else may choose them; M is no argument on purpose.
//
// 1: no cut. More would help where M is small and lose where it is large, since the same number serves both. To change
// it, measure both on one GPU: rows of decode with 2, 4 and 8 splits against 1, and the same N and K at M of 512 and
// more. Every function of N, K and the element's size works that returns 1 to max_splits().
constexpr int64_t splits_for([[maybe_unused]] int64_t n, [[maybe_unused]] int64_t k,
                             [[maybe_unused]] int element_bytes) {
  return 1;
}

}  // namespace gemmx
