// KernelSpec: what a kernel is, as host-only data. Every build has every spec, also the kernels that it was
// built without, so that selection and explain can speak of all of them on any machine.
//
// A spec is a row of csrc/kernels/<family>/instances.inc. The family's specs.h turns the row into a
// KernelSpec; its .cu turns the same row into a Kernel and static_asserts that the two agree.
#pragma once

#include <memory>
#include <string>

#include "core/device.h"
#include "core/plan.h"
#include "core/problem.h"

struct CUstream_st;  // of the CUDA headers; declared here, outside gemmx, so that Stream is cudaStream_t

namespace gemmx {

using Stream = CUstream_st*;

struct TileShape {
  int m = 0, n = 0, k = 0;
};
struct ClusterShape {
  int m = 1, n = 1, k = 1;
};

// Kernels with one accumulation order and width. Two kernels of one class give the same bits for the same
// cuts of K (docs/design.md, Numerics contract).
enum class NumericsClass : uint8_t { library, simt, mma_sync, wgmma, tcgen05 };
GEMMX_API std::string_view name(NumericsClass);

struct KernelSpec {
  const char* name = "";
  const char* family = "";   // folder under csrc/kernels
  int min_capability = 0;    // least compute capability, e.g. 80
  int max_capability = 999;  // greatest, inclusive; equal to min for architecture-specific code (sm_90a)
  DType dtype_a = DType::none;
  DType dtype_b = DType::none;
  DType dtype_acc = DType::f32;
  DType dtype_d = DType::none;  // none: any of f32, f16, bf16, chosen at run time
  Major major_a = Major::none;  // none: any
  Major major_b = Major::none;
  TileShape tile;
  ClusterShape cluster;
  int stages = 1;
  const char* mma = "";  // SASS mnemonic that must appear in the kernel: FFMA, HMMA, HGMMA, UTCHMMA
  NumericsClass numerics = NumericsClass::library;
  int threads = 0;             // per CTA
  int smem_bytes = 0;          // dynamic shared memory per CTA
  int priority = 0;            // used only where no selector is set: the highest wins
  bool teaching = false;       // never chosen, only called by name
  bool swap_ab = false;        // computes D^T = B^T A^T: the tile's M runs over N
  bool gated = false;          // computes gated problems and no others; half the tile's columns are gate, half up
  bool aux = false;            // computes problems with aux and no others
  bool gate_gradient = false;  // computes problems with gate_gradient and no others
  bool data_parallel = true;   // schedules that it can run
  bool split_k = false;
  bool stream_k = false;

  bool has_form() const { return gated || aux || gate_gradient; }
  bool has_form_of(const Problem& p) const {
    return gated == p.gated && aux == p.aux && gate_gradient == p.gate_gradient;
  }

  // Empty when the kernel can run the problem on the device; otherwise one sentence that says why not.
  std::string (*supports)(const KernelSpec&, const Problem&, const Device&) = nullptr;
  // Bytes of device memory that run() needs, all of it scratch. nullptr: none.
  int64_t (*workspace_size)(const KernelSpec&, const Problem&, const Plan&, const Device&) = nullptr;
};

struct Workspace {
  void* data = nullptr;  // 256-byte aligned; its contents on entry are arbitrary
  int64_t bytes = 0;
};

// State that a kernel prepares once for a (Problem, Plan, Device) and that its runs share: function
// attributes set, descriptors encoded. Immutable after prepare(), so that any thread may run with it.
using Prepared = std::shared_ptr<const void>;

// Kernel: a spec and the code that runs it. Both functions throw std::runtime_error with one sentence.
struct Kernel {
  // Optional. The caller has made the device current.
  Prepared (*prepare)(const KernelSpec&, const Problem&, const Plan&, const Device&) = nullptr;
  // Launches on `stream` of the current device, does not synchronise and allocates nothing.
  void (*run)(const KernelSpec&, const Problem&, const Plan&, const void* prepared, const Operands&, Workspace,
              Stream) = nullptr;
  // Optional, for kernels whose need only preparing tells: bytes of workspace that runs with this state take, at
  // most what the spec's workspace_size says.
  int64_t (*workspace_bytes)(const void* prepared) = nullptr;
};

// The checks that every kernel shares: capability, dtypes, majors, shared memory, requested schedule.
// Families call it first in their supports(). Empty when all hold.
GEMMX_API std::string supports_common(const KernelSpec&, const Problem&, const Device&);

}  // namespace gemmx
