// Plan: how one Problem runs. Printable, comparable, serialisable; the same Plan always runs the same way.
#pragma once

#include <array>
#include <string>

#include "core/types.h"

namespace gemmx {

struct Plan {
  int32_t kernel = -1;  // index into the registry (registry.h)
  Schedule schedule = Schedule::data_parallel;
  int32_t splits = 1;  // cuts of K that are reduced in ascending order; 1 unless schedule is split_k
  RasterOrder raster = RasterOrder::along_m;
  int32_t swizzle = 1;  // tiles of the minor dimension that are walked together
  // cuBLASLt plans only: the algorithm's configuration and the library version it belongs to.
  // All zero: the heuristic's first choice.
  std::array<uint64_t, 8> algo{};
  uint64_t algo_version = 0;

  friend bool operator==(const Plan&, const Plan&) = default;
};

GEMMX_API std::string to_string(const Plan& p);

}  // namespace gemmx
