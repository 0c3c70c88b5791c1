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
  uint32_t k_tiles = 1;  // of one tile
  uint32_t workers = 1;  // at most tiles * k_tiles

  GEMMX_HOST_DEVICE constexpr uint64_t begin(uint32_t worker) const {
    return uint64_t{worker} * (uint64_t{tiles} * k_tiles) / workers;
  }
  // Who computes a unit: the last worker that begins at it or before.
  GEMMX_HOST_DEVICE constexpr uint32_t worker_of(uint64_t unit) const {
    return static_cast<uint32_t>(((unit + 1) * workers - 1) / (uint64_t{tiles} * k_tiles));
  }
  // The part of worker `worker` that begins at unit `unit` and has at most `left` units.
  GEMMX_HOST_DEVICE constexpr StreamKPart part(uint32_t worker, uint64_t unit, uint32_t left) const {
    const auto tile = static_cast<uint32_t>(unit / k_tiles);
    const auto k_begin = static_cast<uint32_t>(unit - uint64_t{tile} * k_tiles);
    const uint32_t in_tile = k_tiles - k_begin;
    return {tile, k_begin, left < in_tile ? left : in_tile, slot(worker, tile)};
  }
  // A step along the line of parts goes to the next worker or to the next tile.
  GEMMX_HOST_DEVICE constexpr uint32_t slot(uint32_t worker, uint32_t tile) const { return worker + tile; }
  GEMMX_HOST_DEVICE constexpr uint32_t slots() const { return tiles == 0 ? 0 : workers + tiles - 1; }
};

// `workers`: that run at the same time.
constexpr StreamK make_stream_k(uint32_t tiles, int64_t k_tiles, int workers) {
  StreamK s;
  const auto all = static_cast<uint32_t>(workers);
  s.tiles = tiles % all;
  s.first = tiles - s.tiles;
  s.k_tiles = static_cast<uint32_t>(k_tiles);
  const int64_t units = int64_t{s.tiles} * k_tiles;
  s.workers = s.tiles > 0 && units < workers ? static_cast<uint32_t>(units) : all;
  return s;
}

}  // namespace gemmx::device
