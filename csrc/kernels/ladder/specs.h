// Specs of the ladder: teaching kernels, one a rung, from the naive loop to a warp-specialised Hopper kernel
// (instances*.inc). Host-only, compiled in every build.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::ladder {

// The columns of a row after its name.
struct Row {
  DType dtype;
  TileShape tile;
  ClusterShape cluster;
  int stages, threads, smem_bytes;
  const char* mma;
};

// An operand as the rungs read it: elements from row to row, and whether every row starts at a multiple of 16 bytes.
// A has rows along K; so has B where it is K-major, and otherwise rows along N.
struct Rows {
  int64_t stride;
  bool aligned;
};
Rows rows_of_a(const Problem&);
Rows rows_of_b(const KernelSpec&, const Problem&);

// Rungs 0 to 5: any alignment.
std::string supports(const KernelSpec&, const Problem&, const Device&);
// Rungs 6 and 7: what TMA can describe.
std::string supports_tma(const KernelSpec&, const Problem&, const Device&);
// Whether D can leave by TMA; otherwise rung 7 takes the general epilogue.
bool can_store_by_tma(const Problem&);

constexpr KernelSpec make_spec(const char* name, const Row& r) {
  KernelSpec s;
  s.name = name;
  s.family = "ladder";
  s.min_capability = 80;
  s.dtype_a = s.dtype_b = r.dtype;
  if (r.dtype == DType::f32) s.dtype_d = DType::f32;
  s.major_a = Major::k;
  s.major_b = r.dtype == DType::f32 ? Major::n : Major::k;
  s.tile = r.tile;
  s.cluster = r.cluster;
  s.stages = r.stages;
  s.mma = r.mma;
  s.numerics = r.dtype == DType::f32 ? NumericsClass::simt : NumericsClass::mma_sync;
  s.threads = r.threads;
  s.smem_bytes = r.smem_bytes;
  s.teaching = true;
  s.supports = supports;
  return s;
}

constexpr KernelSpec make_sm90_spec(const char* name, const Row& r) {
  KernelSpec s = make_spec(name, r);
  s.min_capability = s.max_capability = 90;
  s.numerics = NumericsClass::wgmma;
  s.supports = supports_tma;
  return s;
}

}  // namespace gemmx::ladder

// The columns as documented in instances.inc.
#define GEMMX_LADDER_ROW(DTYPE, TM, TN, TK, CM, CN, STAGES, THREADS, SMEM, MMA) \
  ::gemmx::ladder::Row { ::gemmx::DType::DTYPE, {TM, TN, TK}, {CM, CN, 1}, STAGES, THREADS, SMEM, #MMA }
#define GEMMX_LADDER_SPEC(NAME, RUNG, ...) ::gemmx::ladder::make_spec(#NAME, GEMMX_LADDER_ROW(__VA_ARGS__))
#define GEMMX_LADDER_SM90_SPEC(NAME, RUNG, ...) ::gemmx::ladder::make_sm90_spec(#NAME, GEMMX_LADDER_ROW(__VA_ARGS__))
