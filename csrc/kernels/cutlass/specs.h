// The rows of the CUTLASS 3.x kernels as host-only data: one Row per line of instances_sm90.inc and
// instances_sm100.inc. gemm_3x.cuh builds the kernel from the same Row and static_asserts that the two agree.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::cutlass {

// How the warps of a CTA share the work.
enum class Mainloop : uint8_t {
  cooperative,  // sm_90: two math warp groups work on one tile
  pingpong,     // sm_90: each math warp group has its own tile; one's epilogue hides behind the other's MMAs
  one_sm,       // sm_100: tcgen05.mma of one SM
  two_sm,       // sm_100: tcgen05.mma of a pair of SMs; the tile is the pair's
};

enum class OperandOrder : uint8_t {
  as_is,
  swap_ab,  // computes D^T = B^T A^T: the tile's M runs over N
};

struct Row {
  DType element;  // of A, B, C, D and bias; products are summed in fp32
  Major major_a, major_b;
  TileShape tile;  // of the kernel: with swap_ab, tile.m runs over N and tile.n over M
  ClusterShape cluster;
  Mainloop mainloop;
  Schedule schedule;  // data_parallel or stream_k
  OperandOrder operands;
  int stages;
  int smem_bytes;
  int priority;
};

KernelSpec sm90_spec(const char* name, const Row& row);
KernelSpec sm100_spec(const char* name, const Row& row);

}  // namespace gemmx::cutlass

// The columns of a row, after its name. Documented in instances_sm90.inc.
#define GEMMX_CUTLASS_ROW(ELEMENT, MAJOR_A, MAJOR_B, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, MAINLOOP, SCHEDULE, \
                          OPERANDS, STAGES, SMEM_BYTES, PRIORITY)                                                      \
  ::gemmx::cutlass::Row {                                                                                              \
    .element = ::gemmx::DType::ELEMENT, .major_a = ::gemmx::Major::MAJOR_A, .major_b = ::gemmx::Major::MAJOR_B,        \
    .tile = {TILE_M, TILE_N, TILE_K}, .cluster = {CLUSTER_M, CLUSTER_N, 1},                                            \
    .mainloop = ::gemmx::cutlass::Mainloop::MAINLOOP, .schedule = ::gemmx::Schedule::SCHEDULE,                         \
    .operands = ::gemmx::cutlass::OperandOrder::OPERANDS, .stages = STAGES, .smem_bytes = SMEM_BYTES,                  \
    .priority = PRIORITY                                                                                               \
  }

#define GEMMX_CUTLASS_SM90_SPEC(NAME, ...) ::gemmx::cutlass::sm90_spec(#NAME, GEMMX_CUTLASS_ROW(__VA_ARGS__))
#define GEMMX_CUTLASS_SM100_SPEC(NAME, ...) ::gemmx::cutlass::sm100_spec(#NAME, GEMMX_CUTLASS_ROW(__VA_ARGS__))
