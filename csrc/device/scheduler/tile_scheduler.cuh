// Static tile scheduler: linear CTA index -> (batch, split, tile_m, tile_n), one output tile per CTA.
//
// The batch is slowest, then the split, then the tile. Tiles are walked in bands of `swizzle` tiles of the
// minor dimension: with raster along_m and swizzle 4 the order is (m0: n0 n1 n2 n3) (m1: n0 n1 n2 n3) ..., then
// the next four columns, so that the CTAs of one wave form a near-square patch and share A and B in L2.
// The last band may be narrower. The grid is one-dimensional, so a batch has no limit of 65535.
// A kernel's first load waits for the place of its first tile, so that divisions are skipped where they have nothing to
// divide: a matrix alone, a single band. One row of tiles along M or N, as decode has it, is one band.
// Host and device; tests/test_device_indexing.py proves that every tile comes up once.
#pragma once

#include <cstdint>

#include "core/splits.h"
#include "core/types.h"
#include "device/scheduler/fast_divisor.cuh"

namespace gemmx::device {

struct TileCoord {
  uint32_t batch, split, m, n;
};

struct TileScheduler {
  uint32_t tiles_m = 0, tiles_n = 0;
  uint32_t splits = 1;
  uint32_t swizzle = 1;  // 1 .. tiles of the minor dimension
  bool along_m = true;
  FastDivisor plane;       // tiles of a matrix
  FastDivisor splits_;     // of a matrix
  FastDivisor band;        // tiles of a band of full width
  FastDivisor width;       // of a band
  FastDivisor last_width;  // of the last band
  uint32_t full_bands = 0;

  GEMMX_HOST_DEVICE constexpr TileCoord coord(uint32_t index) const {
    TileCoord at{0, 0, 0, 0};
    uint32_t in_band = index, at_minor = 0;
    if (in_band >= plane.divisor) {
      const uint32_t at_plane = plane.divide(index);
      in_band -= at_plane * plane.divisor;
      at.batch = splits_.divide(at_plane);
      at.split = at_plane - at.batch * splits;
    }
    bool full = true;
    if (in_band >= band.divisor) {
      const uint32_t at_band = band.divide(in_band);
      in_band -= at_band * band.divisor;
      at_minor = at_band * swizzle;
      full = at_band < full_bands;
    }
    // As measured; a reference makes 12 instructions fewer, and the same loads at an address that is chosen first.
    const FastDivisor all = width, rest = last_width;
    const FastDivisor across = full ? all : rest;
    const uint32_t at_major = across.divide(in_band);
    at_minor += in_band - at_major * across.divisor;
    at.m = along_m ? at_major : at_minor;
    at.n = along_m ? at_minor : at_major;
    return at;
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
  TileScheduler s;
  s.tiles_m = static_cast<uint32_t>(ceil_div(m, tile_m));
  s.tiles_n = static_cast<uint32_t>(ceil_div(n, tile_n));
  s.along_m = raster == RasterOrder::along_m;
  s.splits = static_cast<uint32_t>(splits);
  const uint32_t major = s.along_m ? s.tiles_m : s.tiles_n;
  const uint32_t minor = s.along_m ? s.tiles_n : s.tiles_m;
  const uint32_t wanted = swizzle < 1 ? 1 : static_cast<uint32_t>(swizzle);
  s.swizzle = wanted < minor && major > 1 ? wanted : minor;  // with one row of tiles all bands are the same order
  s.full_bands = minor / s.swizzle;
  s.plane = FastDivisor(s.tiles_m * s.tiles_n);
  s.splits_ = FastDivisor(s.splits);
  s.band = FastDivisor(major * s.swizzle);
  s.width = FastDivisor(s.swizzle);
  s.last_width = FastDivisor(minor % s.swizzle == 0 ? s.swizzle : minor % s.swizzle);
  return s;
}

}  // namespace gemmx::device
