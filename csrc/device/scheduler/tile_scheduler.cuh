// Static tile scheduler: linear CTA index -> (batch, split, tile_m, tile_n), one output tile per CTA.
//
// The batch is slowest, then the split, then the tile. Tiles are walked in bands of `swizzle` tiles of the
// minor dimension: with raster along_m and swizzle 4 the order is (m0: n0 n1 n2 n3) (m1: n0 n1 n2 n3) ..., then
// the next four columns, so that the CTAs of one wave form a near-square patch and share A and B in L2.
// The last band may be narrower. The grid is one-dimensional, so a batch has no limit of 65535.
// Host and device; tests/test_device_indexing.py proves that every tile comes up once.
#pragma once

#include <cstdint>

#include "core/splits.h"
#include "core/types.h"

namespace gemmx::device {

struct TileCoord {
  uint32_t batch, split, m, n;
};

struct TileScheduler {
  uint32_t tiles_m, tiles_n;
  uint32_t splits;
  uint32_t swizzle;  // 1 .. tiles of the minor dimension
  bool along_m;

  GEMMX_HOST_DEVICE constexpr TileCoord coord(uint32_t index) const {
    const uint32_t tiles = tiles_m * tiles_n;
    const uint32_t plane = index / tiles;
    const uint32_t in_plane = index - plane * tiles;
    const uint32_t major = along_m ? tiles_m : tiles_n;
    const uint32_t minor = along_m ? tiles_n : tiles_m;
    const uint32_t band = in_plane / (major * swizzle);
    const uint32_t in_band = in_plane - band * major * swizzle;
    const uint32_t left = minor - band * swizzle;
    const uint32_t width = left < swizzle ? left : swizzle;
    const uint32_t at_major = in_band / width;
    const uint32_t at_minor = band * swizzle + (in_band - at_major * width);
    return {plane / splits, plane % splits, along_m ? at_major : at_minor, along_m ? at_minor : at_major};
  }
};

inline constexpr int64_t kMaxGridX = 2147483647;

// CTAs that a problem of non-zero m, n and batch needs: a launch takes at most kMaxGridX. Saturates there + 1.
constexpr int64_t cta_count(int64_t m, int64_t n, int64_t batch, int64_t splits, int tile_m, int tile_n) {
  int64_t count = 1;
  for (const int64_t factor : {ceil_div(m, tile_m), ceil_div(n, tile_n), batch, splits}) {
    if (factor > kMaxGridX / count) return kMaxGridX + 1;
    count *= factor;
  }
  return count;
}

// Requires cta_count(...) <= kMaxGridX.
constexpr TileScheduler make_tile_scheduler(int64_t m, int64_t n, int64_t splits, int tile_m, int tile_n,
                                            RasterOrder raster, int swizzle) {
  const auto tiles_m = static_cast<uint32_t>(ceil_div(m, tile_m));
  const auto tiles_n = static_cast<uint32_t>(ceil_div(n, tile_n));
  const bool along_m = raster == RasterOrder::along_m;
  const uint32_t minor = along_m ? tiles_n : tiles_m;
  const uint32_t wanted = swizzle < 1 ? 1 : static_cast<uint32_t>(swizzle);
  return {tiles_m, tiles_n, static_cast<uint32_t>(splits), wanted < minor ? wanted : minor, along_m};
}

}  // namespace gemmx::device
