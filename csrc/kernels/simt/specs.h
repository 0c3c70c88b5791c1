// Specs of the simt family (instances.inc). Host-only, compiled in every build.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::simt {

// Floats after each row of a shared-memory tile. With rows of 4 (mod 8) floats the transposing store of
// gemm.cuh has no bank conflict, and every row stays aligned for 16-byte loads.
inline constexpr int kRowPadding = 4;
inline constexpr int kStages = 2;

std::string supports(const KernelSpec& spec, const Problem& problem, const Device& device);

constexpr KernelSpec make_spec(const char* name, DType element, TileShape tile, int thread_m, int thread_n,
                               int priority) {
  KernelSpec s;
  s.name = name;
  s.family = "simt";
  s.min_capability = 80;
  s.dtype_a = element;
  s.dtype_b = element;
  s.tile = tile;
  s.stages = kStages;
  s.mma = "FFMA";
  s.numerics = NumericsClass::simt;
  s.threads = (tile.m / thread_m) * (tile.n / thread_n);
  s.smem_bytes = kStages * tile.k * (tile.m + tile.n + 2 * kRowPadding) * size_of(DType::f32);
  s.priority = priority;
  s.supports = supports;
  return s;
}

}  // namespace gemmx::simt

#define GEMMX_SIMT_SPEC(NAME, ELEMENT, TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PRIORITY)                     \
  ::gemmx::simt::make_spec(#NAME, ::gemmx::DType::ELEMENT, ::gemmx::TileShape{TILE_M, TILE_N, TILE_K}, THREAD_M, \
                           THREAD_N, PRIORITY)
