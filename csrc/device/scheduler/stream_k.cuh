// Stream-K for the last wave: the tiles that would leave SMs idle are cut along K, so that every worker (a CTA, or a
// cluster of them) gets the same number of K tiles. The waves before are whole tiles, dealt out in turn.
//
//   whole tiles   0 .. first - 1
//   cut tiles     `tiles` of them, fewer than workers: tiles * k_tiles units in one line, of which worker w computes
//                 [begin(w), begin(w + 1)). A worker has parts of at most two tiles.
//
// A part that is a whole tile goes to D. Other parts are fp32 partial tiles in the workspace, and a second launch adds
// those of a tile in ascending order of K (stream_k_reduce.cuh): nobody waits for anybody, and the cuts depend on the
// plan and the number of workers only, so that the same call always gives the same bits.
// After: Osama et al., Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU,
// PPoPP 2023 (there the CTAs of a tile wait for each other in one launch).
// Host and device; tests/test_device_indexing.py proves that every unit comes up once.
#pragma once

#include <cstdint>

#include "core/splits.h"
#include "device/scheduler/fast_divisor.cuh"

namespace gemmx::device {

// One worker's part of one tile. Slots of partial tiles are distinct.
struct StreamKPart {
  uint32_t tile;  // 0 is the first cut tile
  uint32_t k_begin, k_tiles;
  uint32_t slot;
};

struct StreamK {
  uint32_t first = 0;    // whole tiles
  uint32_t tiles = 0;    // cut tiles
  FastDivisor k_tiles;   // of one tile
  uint32_t workers = 1;  // at most tiles * k_tiles
  uint32_t units = 0;    // of a worker, rounded down
  uint32_t longer = 0;   // workers that have one more: the first ones

  GEMMX_HOST_DEVICE constexpr uint32_t begin(uint32_t worker) const {
    return worker * units + (worker < longer ? worker : longer);
  }
  GEMMX_HOST_DEVICE constexpr uint32_t units_of(uint32_t worker) const { return units + (worker < longer ? 1 : 0); }
  // Who computes a unit.
  GEMMX_HOST_DEVICE constexpr uint32_t worker_of(uint32_t unit) const {
    const uint32_t of_longer = longer * (units + 1);
    return unit < of_longer ? unit / (units + 1) : longer + (unit - of_longer) / units;
  }
  // The part of worker `worker` that begins at unit `unit` and has at most `left` units.
  GEMMX_HOST_DEVICE constexpr StreamKPart part(uint32_t worker, uint32_t unit, uint32_t left) const {
    const uint32_t tile = k_tiles.divide(unit);
    const uint32_t k_begin = unit - tile * k_tiles.divisor;
    const uint32_t in_tile = k_tiles.divisor - k_begin;
    return {tile, k_begin, left < in_tile ? left : in_tile, slot(worker, tile)};
  }
  // A step along the line of parts goes to the next worker or to the next tile.
  GEMMX_HOST_DEVICE constexpr uint32_t slot(uint32_t worker, uint32_t tile) const { return worker + tile; }
  GEMMX_HOST_DEVICE constexpr uint32_t slots() const { return tiles == 0 ? 0 : workers + tiles - 1; }
};

// Units are counted in 32 bits.
constexpr bool stream_k_counts(int64_t k_tiles, int64_t workers) { return k_tiles * workers < int64_t{1} << 32; }

// `workers`: that run at the same time. Requires stream_k_counts.
constexpr StreamK make_stream_k(uint32_t tiles, int64_t k_tiles, int workers) {
  StreamK s;
  const auto all = static_cast<uint32_t>(workers);
  s.tiles = tiles % all;
  s.first = tiles - s.tiles;
  s.k_tiles = FastDivisor(static_cast<uint32_t>(k_tiles));
  const uint32_t units = s.tiles * s.k_tiles.divisor;
  s.workers = s.tiles > 0 && units < all ? units : all;
  s.units = units / s.workers;
  s.longer = units % s.workers;
  return s;
}

}  // namespace gemmx::device
