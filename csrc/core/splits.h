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

}  // namespace gemmx
