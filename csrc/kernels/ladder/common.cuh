// What the rungs 0 to 5 share and no rung is about: parameters, the last step of every element of D, the launch.
//
//   D = alpha * A @ B + beta * C        A (M, K)  B (K, N)  C, D (M, N)
//
// A rung's file has namespace rung_<i> with kTileM, kTileN, kTileK, kStages, kThreads, kSmemBytes (dynamic),
// kFollowsPlan, the kernel, and kernel<Instance>(aligned): its variant for operands whose rows all start at multiples
// of 16 bytes, or for any. Instance only puts the registry name into the kernel's symbol.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/scheduler/tile_order.cuh"
#include "kernels/ladder/specs.h"

namespace gemmx::ladder {

struct Params {
  const void *a, *b;
  int64_t lda, ldb;  // elements from row to row: of A; of B where it is row-major, of B transposed where it is K-major
  int m, n, k;
  device::TileOrder order;
  device::EpilogueParams epilogue;
};

using KernelFunction = void (*)(Params);

// D[m][n .. n + kCount) = alpha * x + beta * C for the fp32 rungs; outside D nothing is read or written. n is a
// multiple of kCount, which is 1 or 4.
template <int kCount>
__device__ __forceinline__ void store(const device::EpilogueParams& e, int64_t m, int64_t n, float (&x)[kCount]) {
  static_assert(kCount == 1 || kCount == 4, "a thread stores one element, or four neighbours of a row");
  if (m >= e.m || n >= e.n) return;
  const int count = e.n - n < kCount ? static_cast<int>(e.n - n) : kCount;
#pragma unroll
  for (float& value : x) value *= e.alpha;
  if (e.c != nullptr) {
    float c[4];
    const int64_t index = m * e.c_row_stride + n * e.c_col_stride;
    device::load_row4(c, e.c, index, e.c_col_stride, DType::f32, count, e.c_vector);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = fmaf(e.beta, c[i], x[i]);
  }
  float* const d = static_cast<float*>(e.d) + m * e.d_row_stride + n * e.d_col_stride;
  if (kCount == 4 && count == 4 && e.d_vector == 4) {
    *reinterpret_cast<float4*>(d) = make_float4(x[0], x[1 % kCount], x[2 % kCount], x[3 % kCount]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < count) d[i * e.d_col_stride] = x[i];
  }
}

// 8 neighbours of a row of bf16 to shared memory, the first `count` (at most 8) of which exist; the rest become zeros.
// Aligned rows go by cp.async, others through registers, element by element.
template <bool kAligned>
__device__ __forceinline__ void copy_chunk(uint32_t smem_address, const uint16_t* source, int count) {
  if constexpr (kAligned) {
    device::ptx::cp_async<16>(smem_address, source, 2 * max(count, 0));
  } else {
    uint32_t pairs[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) pairs[i / 2] |= uint32_t{source[i]} << (i % 2 * 16);
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem_address), "r"(pairs[0]), "r"(pairs[1]),
                 "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
  }
}

inline void check(cudaError_t error, const char* name, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(name) + ": " + what + " failed: " + cudaGetErrorString(error));
}

inline bool is_aligned(const KernelSpec& s, const Problem& p) {
  return rows_of_a(p).aligned && rows_of_b(s, p).aligned;
}

inline Prepared raise_smem_limit(const KernelSpec& spec, KernelFunction kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, spec.smem_bytes), spec.name,
        "raising the shared-memory limit");
  return nullptr;
}

// follows_plan: whether the plan decides the order of the tiles; otherwise they are walked row by row.
inline void launch(const KernelSpec& spec, const Problem& p, const Plan& plan, const Operands& o, Stream stream,
                   KernelFunction kernel, bool follows_plan) {
  Params params;
  params.a = o.a;
  params.b = o.b;
  params.lda = rows_of_a(p).stride;
  params.ldb = rows_of_b(spec, p).stride;
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(p.k);
  params.order =
      device::make_tile_order(p.m, p.n, spec.tile.m, spec.tile.n, follows_plan ? plan.raster : RasterOrder::along_n,
                              follows_plan ? plan.swizzle : 1);
  params.epilogue = device::make_epilogue_params(p, o);
  const auto ctas = device::cta_count(p.m, p.n, 1, 1, spec.tile.m, spec.tile.n);
  kernel<<<static_cast<unsigned>(ctas), spec.threads, spec.smem_bytes, stream>>>(params);
  check(cudaGetLastError(), spec.name, "launch");
}

}  // namespace gemmx::ladder
