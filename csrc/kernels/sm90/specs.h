// The KernelSpecs of the wgmma family: a row of instances.inc as host-only data.
#pragma once

#include "core/kernel_spec.h"
#include "kernels/form.h"

namespace gemmx::sm90 {

// How the consumer warpgroups share the work.
enum class Consumers : uint8_t {
  cooperative,  // all work on one tile, each on its share of the rows
  pingpong,     // each has its own tile: one's epilogue hides behind the other's wgmma
};

enum class OperandOrder : uint8_t {
  as_is,
  swap_ab,  // computes D^T = B^T A^T: the tile's M runs over N
};

// The columns of a row after its name.
struct Row {
  DType dtype;  // of A and B
  Major major_a, major_b;
  OperandOrder operands;
  Form form;       // form_store.cuh
  TileShape tile;  // of the kernel: with swap_ab, tile.m runs over N and tile.n over M
  ClusterShape cluster;
  Consumers consumers;
  int stages;
  int priority;
};

constexpr int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

inline constexpr int kConsumerWarpgroups = 2, kConsumerWarps = 4 * kConsumerWarpgroups;
inline constexpr int kBoxesOfWarp = 2;  // of box_store.cuh

// What a consumer warp's epilogue needs of shared memory: boxes of 16 x 128 bytes of C and D, which the staged epilogue
// of other cases reuses (at most 2,560 bytes). With swapped operands D leaves from registers; 16 bytes keep the array.
constexpr int epilogue_bytes_of_warp(const Row& r) {
  return r.operands == OperandOrder::swap_ab ? 16 : kBoxesOfWarp * 16 * 128;
}

constexpr int stage_bytes(const Row& r) { return (r.tile.m + r.tile.n) * r.tile.k * 2; }

// Dynamic shared memory: stages, the epilogue's buffers, the barriers of the ring and of C's boxes.
constexpr int smem_bytes(const Row& r) {
  return r.stages * stage_bytes(r) + kConsumerWarps * epilogue_bytes_of_warp(r) +
         round_up((2 * r.stages + kConsumerWarps * kBoxesOfWarp) * 8, 128);
}

inline constexpr int kThreads = 128 * (kConsumerWarpgroups + 1);  // and a warpgroup of producers

// CTAs of a cluster that the hardware surely takes.
inline constexpr int kMaxClusterCtas = 8;

// Whether the CTAs that have a cut each of a tile's K (and share operands) fit into a cluster; otherwise partials go
// through the workspace.
constexpr bool splits_fit_cluster(const ClusterShape& cluster, int64_t splits) {
  return splits > 1 && splits * cluster.m * cluster.n <= kMaxClusterCtas;
}

// The most cuts of K that a CTA adds up itself, one after the other (running_sum.cuh).
inline constexpr int kMaxCutsOfCta = 8;

// Whether TMA reads the operand as it lies; otherwise it is packed into the workspace first (pack.cuh).
bool tma_reads(const Matrix&);

// Bytes at the start of the workspace that packed copies of A and B take, each a multiple of 256.
struct PackedBytes {
  int64_t a = 0, b = 0;
};
PackedBytes packed_bytes(const KernelSpec&, const Problem&);

std::string supports(const KernelSpec&, const Problem&, const Device&);
std::string supports_custom(const KernelSpec&, const Problem&, const Device&);
int64_t workspace_size(const KernelSpec&, const Problem&, const Plan&, const Device&);

constexpr KernelSpec make_spec(const char* name, const Row& r) {
  KernelSpec s;
  s.name = name;
  s.family = "sm90";
  s.min_capability = s.max_capability = 90;
  s.dtype_a = s.dtype_b = r.dtype;
  s.major_a = r.major_a;
  s.major_b = r.major_b;
  s.tile = r.tile;
  s.cluster = r.cluster;
  s.stages = r.stages;
  s.mma = "HGMMA";
  s.numerics = NumericsClass::wgmma;
  s.threads = kThreads;
  s.smem_bytes = smem_bytes(r);
  s.priority = r.priority;
  s.swap_ab = r.operands == OperandOrder::swap_ab;
  s.gated = is_gated(r.form);
  s.aux = is_aux(r.form);
  s.gate_gradient = r.form == Form::gate_gradient;
  s.split_k = s.stream_k = r.form == Form::plain;  // whose reductions know no other form
  s.supports = supports;
  s.workspace_size = workspace_size;
  return s;
}

// A kernel with a function of its own: only called by name.
constexpr KernelSpec make_custom_spec(const char* name, const Row& r) {
  KernelSpec s = make_spec(name, r);
  s.teaching = true;
  s.supports = supports_custom;
  return s;
}

}  // namespace gemmx::sm90

// The columns as documented in instances.inc.
#define GEMMX_SM90_ROW(DTYPE, MAJOR_A, MAJOR_B, OPERANDS, FORM, TM, TN, TK, CM, CN, CONSUMERS, STAGES, PRIORITY)    \
  ::gemmx::sm90::Row {                                                                                              \
    ::gemmx::DType::DTYPE, ::gemmx::Major::MAJOR_A, ::gemmx::Major::MAJOR_B, ::gemmx::sm90::OperandOrder::OPERANDS, \
        ::gemmx::Form::FORM, {TM, TN, TK}, {CM, CN, 1}, ::gemmx::sm90::Consumers::CONSUMERS, STAGES, PRIORITY       \
  }
#define GEMMX_SM90_SPEC(NAME, ...) ::gemmx::sm90::make_spec(#NAME, GEMMX_SM90_ROW(__VA_ARGS__))
#define GEMMX_SM90_CUSTOM_SPEC(NAME, FUNCTION, ...) ::gemmx::sm90::make_custom_spec(#NAME, GEMMX_SM90_ROW(__VA_ARGS__))
