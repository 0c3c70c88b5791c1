// Where the cuts of split-K begin, in K tiles: cut_begin() of core/splits.h with what it divides by known to the host,
// in 32 bits. A kernel's first load waits for this.
//
// With units = whole * splits + rest, cut i begins at unit ceil(i * units / splits) = i * whole + ceil(i * rest /
// splits). Host and device; tests/test_device_indexing.py compares it with cut_begin().
#pragma once

#include <cstdint>

#include "core/splits.h"
#include "device/scheduler/fast_divisor.cuh"

namespace gemmx::device {

// i * rest stays in 32 bits.
inline constexpr int64_t kMaxSplits = 65535;

struct KCuts {
  uint32_t tiles = 0;  // of all K, the last one perhaps not whole
  uint32_t whole = 0, rest = 0;
  uint32_t tiles_of_unit = 1;
  FastDivisor splits;

  // In K tiles; begin(splits) is `tiles`.
  GEMMX_HOST_DEVICE constexpr uint32_t begin(uint32_t i) const {
    const uint32_t units = i * whole + splits.divide(i * rest + splits.divisor - 1);
    const uint32_t at = units * tiles_of_unit;
    return at < tiles ? at : tiles;
  }
};

// 1 <= splits <= kMaxSplits, and no cut is empty (max_splits()); k below 2^31; tile_k divides the cut unit.
constexpr KCuts make_k_cuts(int64_t k, int element_bytes, int64_t splits, int tile_k) {
  KCuts cuts;
  const int64_t units = ceil_div(k, cut_unit(element_bytes));
  cuts.tiles = static_cast<uint32_t>(ceil_div(k, tile_k));
  cuts.whole = static_cast<uint32_t>(units / splits);
  cuts.rest = static_cast<uint32_t>(units % splits);
  cuts.tiles_of_unit = static_cast<uint32_t>(cut_unit(element_bytes) / tile_k);
  cuts.splits = FastDivisor(static_cast<uint32_t>(splits));
  return cuts;
}

}  // namespace gemmx::device
