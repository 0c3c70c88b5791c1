// The order in which linear CTA indices walk the output tiles: the bands of TileScheduler, or a Hilbert curve.
//
// A Hilbert curve never leaves the neighbourhood it is in, at every scale, so that any stretch of CTAs, however many
// run at a time, shares rows of A and columns of B; a band does so for the width it was cut to. The curve is that of
// the least square of 2^i x 2^i tiles that holds the grid, without the tiles that the grid does not have: the walk
// down the quadrants counts how many of their tiles exist. O(log tiles), no table, every index one tile.
// Host and device; tests/test_device_indexing.py proves that every tile comes up once.
#pragma once

#include "device/scheduler/tile_scheduler.cuh"

namespace gemmx::device {

// Plan::swizzle of a kernel that is ordered by this file: 1 or more is the width of a band, this is Hilbert's curve.
inline constexpr int kHilbert = -1;

// How many of the `side` indices from `at` on are below `end`.
GEMMX_HOST_DEVICE constexpr uint32_t count_below(uint32_t at, uint32_t side, uint32_t end) {
  return at >= end ? 0 : end - at < side ? end - at : side;
}

// The tile at place `index` of the curve over tiles_m x tiles_n tiles.
GEMMX_HOST_DEVICE constexpr TileCoord hilbert_coord(uint32_t index, uint32_t tiles_m, uint32_t tiles_n) {
  uint32_t side = 1;
  while (side < tiles_m || side < tiles_n) side *= 2;
  uint32_t m = 0, n = 0;
  // How the curve lies in the present square: mirrored at the diagonal, turned by half a turn.
  bool mirrored = false, turned = false;
  while (side > 1) {
    side /= 2;
    for (uint32_t quadrant = 0; quadrant < 4; ++quadrant) {
      // The plain curve visits (m, n) = (0, 0) (0, 1) (1, 1) (1, 0).
      const uint32_t first = quadrant >> 1, second = (quadrant ^ (quadrant >> 1)) & 1;
      const uint32_t at_m = m + ((mirrored ? second : first) ^ (turned ? 1u : 0u)) * side;
      const uint32_t at_n = n + ((mirrored ? first : second) ^ (turned ? 1u : 0u)) * side;
      const uint32_t tiles = count_below(at_m, side, tiles_m) * count_below(at_n, side, tiles_n);
      if (index < tiles) {
        m = at_m, n = at_n;
        mirrored ^= quadrant == 0 || quadrant == 3;
        turned ^= quadrant == 3;
        break;
      }
      index -= tiles;
    }
  }
  return {0, 0, m, n};
}

// One batch, no splits.
struct TileOrder {
  TileScheduler bands;
  bool hilbert;

  GEMMX_HOST_DEVICE constexpr TileCoord coord(uint32_t index) const {
    return hilbert ? hilbert_coord(index, bands.tiles_m, bands.tiles_n) : bands.coord(index);
  }
};

constexpr TileOrder make_tile_order(int64_t m, int64_t n, int tile_m, int tile_n, RasterOrder raster, int swizzle) {
  return {make_tile_scheduler(m, n, 1, tile_m, tile_n, raster, swizzle), swizzle == kHilbert};
}

}  // namespace gemmx::device
