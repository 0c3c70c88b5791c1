// Division of 32-bit unsigned integers by a divisor that the host knows: a multiplication and two shifts, in place of
// the 40 or so instructions of a division at run time. A kernel's first load waits for the place of its first tile.
//
// Formula: T. Granlund, P. Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994, figure 4.1.
// Host and device; tests/test_device_indexing.py compares it with division.
#pragma once

#include <cstdint>

#include "core/splits.h"

namespace gemmx::device {

struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift1 = 0, shift2 = 0;

  FastDivisor() = default;
  explicit constexpr FastDivisor(uint32_t d) : divisor(d) {  // d >= 1
    uint32_t log2 = 0;                                       // rounded up
    while ((uint64_t{1} << log2) < d) ++log2;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << log2) - d)) / d + 1);
    shift1 = log2 < 1 ? log2 : 1;
    shift2 = log2 < 1 ? 0 : log2 - 1;
  }

  GEMMX_HOST_DEVICE constexpr uint32_t divide(uint32_t n) const {
    const auto high = static_cast<uint32_t>((uint64_t{multiplier} * n) >> 32);
    return (high + ((n - high) >> shift1)) >> shift2;
  }
};

}  // namespace gemmx::device
