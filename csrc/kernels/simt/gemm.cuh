// D = act(alpha * A @ B + beta * C + bias) with fp32 accumulation on the CUDA cores (sm_80 and later).
//
// The fallback that takes every problem: any strides (0 and neither dimension contiguous included), any
// alignment, any batch, K = 0. A and B are f32, f16 or bf16 and are multiplied as fp32, one FFMA each, K
// ascending, so that all tiles give the same bits.
//
// A CTA computes one tile. Global memory -> registers -> shared memory (two stages, fp32, K outermost) ->
// registers -> FFMA: the loads of tile k + 1 are in flight while tile k is multiplied, one barrier per tile.
//
// A warp holds 4 x 8 lanes of thread_m x thread_n outputs, in 4 x 4 blocks that are 16 rows and 32 columns
// apart: a fragment load of a block is then 64 (A) or 128 (B) contiguous bytes for the whole warp. With lanes
// (bit 0, bit 4) along m and bits 1..3 along n, neighbouring lanes read equal B addresses and lanes 2 apart
// equal A addresses, which lets a half-warp's 16-byte loads merge into one pass.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>

#include "device/epilogue/linear_combination.cuh"
#include "device/scheduler/tile_scheduler.cuh"
#include "kernels/simt/specs.h"
#include "kernels/simt/tile_loader.cuh"

namespace gemmx::simt {

struct Params {
  OperandParams a, b;
  int64_t k = 0;
  device::TileScheduler scheduler;
  int64_t first_batch = 0;
  device::EpilogueParams epilogue;
};

template <class Config>
struct alignas(16) SharedStorage {
  float a[kStages][Config::kTileK][Config::kTileM + kRowPadding];
  float b[kStages][Config::kTileK][Config::kTileN + kRowPadding];
};

// The batch and the first row and column of a CTA's tile.
struct TileOrigin {
  int64_t batch, m, n;
};

// Where a thread's outputs lie in the CTA's tile: row(i), column(j) of its accumulator (i, j).
template <class Config>
struct ThreadTile {
  static constexpr int kLanesM = 4, kLanesN = 8;
  static constexpr int kWarpM = kLanesM * Config::kThreadM, kWarpN = kLanesN * Config::kThreadN;
  static constexpr int kWarpsN = Config::kTileN / kWarpN;
  static_assert(Config::kThreadM % 4 == 0 && Config::kThreadN % 4 == 0, "fragments are read 4 floats at a time");
  static_assert(Config::kTileM % kWarpM == 0 && Config::kTileN % kWarpN == 0, "warps must tile the CTA's tile");

  int m, n;  // of accumulator (0, 0)

  __device__ __forceinline__ explicit ThreadTile(int thread) {
    const int warp = thread / 32, lane = thread % 32;
    m = warp / kWarpsN * kWarpM + (lane % 2 + lane / 16 * 2) * 4;
    n = warp % kWarpsN * kWarpN + lane / 2 % 8 * 4;
  }
  __device__ __forceinline__ int row(int i) const { return m + i / 4 * (4 * kLanesM) + i % 4; }
  __device__ __forceinline__ int column(int j) const { return n + j / 4 * (4 * kLanesN) + j % 4; }
};

template <class Config>
__device__ __forceinline__ void multiply_tile(const float (&a)[Config::kTileK][Config::kTileM + kRowPadding],
                                              const float (&b)[Config::kTileK][Config::kTileN + kRowPadding],
                                              const ThreadTile<Config>& where,
                                              float (&acc)[Config::kThreadM][Config::kThreadN]) {
#pragma unroll
  for (int k = 0; k < Config::kTileK; ++k) {
    float fragment_a[Config::kThreadM], fragment_b[Config::kThreadN];
#pragma unroll
    for (int i = 0; i < Config::kThreadM; i += 4) {
      *reinterpret_cast<float4*>(&fragment_a[i]) = *reinterpret_cast<const float4*>(&a[k][where.row(i)]);
    }
#pragma unroll
    for (int j = 0; j < Config::kThreadN; j += 4) {
      *reinterpret_cast<float4*>(&fragment_b[j]) = *reinterpret_cast<const float4*>(&b[k][where.column(j)]);
    }
#pragma unroll
    for (int i = 0; i < Config::kThreadM; ++i) {
#pragma unroll
      for (int j = 0; j < Config::kThreadN; ++j) acc[i][j] = fmaf(fragment_a[i], fragment_b[j], acc[i][j]);
    }
  }
}

// The loops stay rolled, since each copy of the epilogue (every type and activation) is some KB of code; registers
// have no run-time index, so the accumulators move down four columns or one row a step instead.
template <class Config>
__device__ __forceinline__ void store_tile(const device::EpilogueParams& epilogue, const TileOrigin& tile,
                                           const ThreadTile<Config>& where,
                                           float (&acc)[Config::kThreadM][Config::kThreadN]) {
#pragma unroll 1
  for (int i = 0; i < Config::kThreadM; ++i) {
    const int64_t m = tile.m + where.row(i);
#pragma unroll 1
    for (int j = 0; j < Config::kThreadN; j += 4) {
      const int64_t n = tile.n + where.column(j);
      float x[4] = {acc[0][0], acc[0][1], acc[0][2], acc[0][3]};
      if (m < epilogue.m && n < epilogue.n) device::epilogue_store_rows<1>(epilogue, tile.batch, m, 1, n, x);
#pragma unroll
      for (int y = 0; y + 4 < Config::kThreadN; ++y) acc[0][y] = acc[0][y + 4];
    }
#pragma unroll
    for (int y = 0; y + 1 < Config::kThreadM; ++y) {
#pragma unroll
      for (int x = 0; x < Config::kThreadN; ++x) acc[y][x] = acc[y + 1][x];
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm) gemm(const __grid_constant__ Params p) {
  using Storage = SharedStorage<Config>;
  extern __shared__ __align__(16) unsigned char raw_storage[];
  Storage& smem = *reinterpret_cast<Storage*>(raw_storage);

  const int thread = static_cast<int>(threadIdx.x);
  const device::TileCoord at = p.scheduler.coord(blockIdx.x);
  const TileOrigin tile{p.first_batch + at.batch, int64_t{at.m} * Config::kTileM, int64_t{at.n} * Config::kTileN};
  const ThreadTile<Config> where(thread);
  TileLoader<Config::kElement, Config::kTileM, Config::kTileK> load_a(p.a, tile.batch, tile.m, thread);
  TileLoader<Config::kElement, Config::kTileN, Config::kTileK> load_b(p.b, tile.batch, tile.n, thread);
  float acc[Config::kThreadM][Config::kThreadN] = {};

  int64_t k_left = p.k;  // from the tile in `stage` on
  const auto load_next = [&](int64_t left) {
    const int k_limit = left < Config::kTileK ? static_cast<int>(left) : Config::kTileK;
    load_a.load(k_limit);
    load_b.load(k_limit);
  };
  const auto store_next = [&](int stage) {
    load_a.store(&smem.a[stage][0][0]);
    load_b.store(&smem.b[stage][0][0]);
  };

  // Fill the first stage
  if (k_left > 0) {
    load_next(k_left);
    store_next(0);
    __syncthreads();
  }
  // Mainloop. The barrier at its end lets stage ^ 1 be read, and `stage` be overwritten in the next round.
  for (int stage = 0; k_left > 0; stage ^= 1) {
    k_left -= Config::kTileK;
    if (k_left > 0) load_next(k_left);
    multiply_tile<Config>(smem.a[stage], smem.b[stage], where, acc);
    if (k_left > 0) store_next(stage ^ 1);
    __syncthreads();
  }
  store_tile<Config>(p.epilogue, tile, where, acc);
}

// How a warp should read an operand, from its layout. `outer` is the dimension that is not K.
inline Access choose_access(const Matrix& x, int64_t outer_stride, int64_t k_stride) {
  const bool vectors = vector_bytes(x) >= 4 * size_of(x.dtype);
  if (k_stride == 1 && x.major == Major::k) return vectors ? Access::k_vector : Access::k_scalar;
  if (outer_stride == 1 && x.major != Major::none) return vectors ? Access::outer_vector : Access::outer_scalar;
  return k_stride <= outer_stride ? Access::k_scalar : Access::outer_scalar;
}

template <class Config>
void run(const KernelSpec& spec, const Problem& problem, const Plan& plan, const void*, const Operands& operands,
         Workspace, Stream stream) {
  const Matrix &a = problem.a, &b = problem.b;
  Params p;
  p.a = {operands.a,     a.row_stride, a.col_stride,
         a.batch_stride, problem.m,    choose_access(a, a.row_stride, a.col_stride)};
  p.b = {operands.b,     b.col_stride, b.row_stride,
         b.batch_stride, problem.n,    choose_access(b, b.col_stride, b.row_stride)};
  p.k = problem.k;
  p.scheduler =
      device::make_tile_scheduler(problem.m, problem.n, 1, Config::kTileM, Config::kTileN, plan.raster, plan.swizzle);
  p.epilogue = device::make_epilogue_params(problem, operands);

  // The batch is part of grid.x, whose limit is 2^31 - 1 (y and z end at 65535); a larger batch is cut.
  const int64_t tiles = int64_t{p.scheduler.tiles_m} * p.scheduler.tiles_n;
  const int64_t batch_step = device::kMaxGridX / tiles;
  for (; p.first_batch < problem.batch; p.first_batch += batch_step) {
    const auto grid = static_cast<unsigned>(tiles * std::min(batch_step, problem.batch - p.first_batch));
    gemm<Config><<<grid, Config::kThreads, sizeof(SharedStorage<Config>), stream>>>(p);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      throw std::runtime_error(std::string(spec.name) + ": the launch failed with " + cudaGetErrorName(error) + " (" +
                               cudaGetErrorString(error) + ")");
    }
  }
}

}  // namespace gemmx::simt

#define GEMMX_SIMT_KERNEL(NAME, ELEMENT, TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PRIORITY) \
  namespace gemmx::kernels {                                                                   \
  struct NAME##_config {                                                                       \
    static constexpr KernelSpec kSpec =                                                        \
        GEMMX_SIMT_SPEC(NAME, ELEMENT, TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PRIORITY);  \
    static constexpr DType kElement = DType::ELEMENT;                                          \
    static constexpr int kTileM = TILE_M, kTileN = TILE_N, kTileK = TILE_K;                    \
    static constexpr int kThreadM = THREAD_M, kThreadN = THREAD_N, kThreads = kSpec.threads;   \
    /* 128 registers a thread for 8 x 8 outputs, 64 for 4 x 4: 16 or 32 warps an SM. */        \
    static constexpr int kCtasPerSm = kThreadM * kThreadN >= 64 ? 2 : 4;                       \
    static_assert(kTileM * kTileK == 4 * kThreads && kTileN * kTileK == 4 * kThreads,          \
                  "every thread must load four elements of each tile");                        \
  };                                                                                           \
  static_assert(sizeof(simt::SharedStorage<NAME##_config>) == NAME##_config::kSpec.smem_bytes, \
                #NAME ": the row's shared memory is not the kernel's");                        \
  static_assert(NAME##_config::kSpec.smem_bytes <= 48 * 1024,                                  \
                #NAME ": more than 48 KB of shared memory needs cudaFuncSetAttribute");        \
  extern const Kernel NAME;                                                                    \
  const Kernel NAME = {nullptr, simt::run<NAME##_config>};                                     \
  }
