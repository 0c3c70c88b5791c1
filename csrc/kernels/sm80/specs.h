// The KernelSpecs of the mma.sync family: a row of instances.inc as host-only data.
#pragma once

#include "core/kernel_spec.h"
#include "kernels/form.h"

namespace gemmx::sm80 {

// aligned: both operands 16-byte aligned in every row. any: every stride and alignment.
enum class Access : uint8_t { aligned, any };

// The columns of a row after its name.
struct Row {
  DType dtype;
  Major major_a, major_b;
  Access access;
  Form form;  // form_rows.cuh
  TileShape tile;
  int warps_m, warps_n;
  int stages;
  int ctas_per_sm;
  int priority;
};

// Bytes of dynamic shared memory: the ring of stages of the mainloop, which the epilogue reuses.
constexpr int smem_bytes(const Row& r) { return r.stages * (r.tile.m + r.tile.n) * r.tile.k * 2; }

constexpr int threads(const Row& r) { return 32 * r.warps_m * r.warps_n; }

std::string supports(const KernelSpec&, const Problem&, const Device&);
std::string supports_aligned(const KernelSpec&, const Problem&, const Device&);
int64_t workspace_size(const KernelSpec&, const Problem&, const Plan&, const Device&);

constexpr KernelSpec make_spec(const char* name, const Row& r) {
  KernelSpec s;
  s.name = name;
  s.family = "sm80";
  s.min_capability = 80;
  s.dtype_a = s.dtype_b = r.dtype;
  s.major_a = r.major_a;
  s.major_b = r.major_b;
  s.tile = r.tile;
  s.stages = r.stages;
  s.mma = "HMMA";
  s.numerics = NumericsClass::mma_sync;
  s.threads = threads(r);
  s.smem_bytes = smem_bytes(r);
  s.priority = r.priority;
  s.gated = is_gated(r.form);
  s.aux = is_aux(r.form);
  s.split_k = r.form == Form::plain;  // whose reduction knows no other form
  s.supports = r.access == Access::aligned ? supports_aligned : supports;
  s.workspace_size = workspace_size;
  return s;
}

}  // namespace gemmx::sm80

// The columns as documented in instances.inc.
#define GEMMX_SM80_ROW(DTYPE, MAJOR_A, MAJOR_B, ACCESS, FORM, TM, TN, TK, WARPS_M, WARPS_N, STAGES, CTAS, PRIORITY) \
  ::gemmx::sm80::Row {                                                                                              \
    ::gemmx::DType::DTYPE, ::gemmx::Major::MAJOR_A, ::gemmx::Major::MAJOR_B, ::gemmx::sm80::Access::ACCESS,         \
        ::gemmx::Form::FORM, {TM, TN, TK}, WARPS_M, WARPS_N, STAGES, CTAS, PRIORITY                                 \
  }
#define GEMMX_SM80_SPEC(NAME, ...) ::gemmx::sm80::make_spec(#NAME, GEMMX_SM80_ROW(__VA_ARGS__))
