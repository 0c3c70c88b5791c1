// Rung 4, WMMA: the tensor cores, as CUDA C++ offers them. bf16 in, fp32 accumulation.
//
// Before:    rung 3 keeps the FMA pipes busy; nothing but other arithmetic makes it faster. On an H200 the tensor cores
//            have 15 times the FLOPs for 16-bit operands, whose bytes are half.
// Changes:   a warp multiplies 16 x 16 x 16 by one call on fragments, which spread over the registers of its lanes in
//            a way that only the compiler knows. Loads, double buffer, barrier and warp tiling are those of rung 3;
//            B is K-major here (weight.t()), so both tiles are rows of 32 elements along K.
//            Padding of 8 elements a row lets 8 rows be read without meeting a bank twice.
// Per CTA:   128 x 128 elements of D: 2 * 128 * 128 * K FLOPs, (128 + 128) * K * 2 bytes from global memory.
// Intensity: T / b = 128 / 2 = 64 FLOP per global byte; from shared memory a warp of 64 x 64 has
//            2 * 64 * 64 / (128 * 2) = 32 FLOP per byte.
// Wastes:    a fragment's layout is hidden: the epilogue goes through shared memory, rows are padded, not swizzled,
//            and nothing reads the next fragments while the present ones are multiplied. 32 of K between barriers are
//            little work, and one tile in flight does not cover the latency of L2.
#pragma once

#include <mma.h>

#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_4 {

inline constexpr int kTileM = 128, kTileN = 128, kTileK = 32, kStages = 2, kThreads = 128;
inline constexpr int kWarpM = 64, kWarpN = 64, kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 16, kPadding = 8;
inline constexpr int kRow = kTileK + kPadding;  // elements from row to row of a tile
inline constexpr bool kFollowsPlan = false;

struct Stage {
  __nv_bfloat16 a[kTileM][kRow];  // (m, k)
  __nv_bfloat16 b[kTileN][kRow];  // (n, k)
};
struct SharedStorage {
  union {
    Stage stages[kStages];
    float blocks[kThreads / 32][16][16];  // of the epilogue, one a warp
  };
};
inline constexpr int kSmemBytes = sizeof(SharedStorage);

// An operand's tile as its threads copy it, 4 a row, 8 elements each: what does not depend on K is worked out once.
struct Copy {
  static constexpr int kRows = kThreads / 4;  // that all threads copy at a time
  const uint16_t* from;                       // the thread's first chunk
  int64_t step;                               // to its next
  int row, column, rows;                      // its first element in the tile; rows of the tile that exist

  __device__ Copy(const void* matrix, int64_t ld, int64_t first, int extent)
      : step(kRows * ld),
        row(static_cast<int>(threadIdx.x) / 4),
        column(static_cast<int>(threadIdx.x) % 4 * 8),
        rows(static_cast<int>(extent - first)) {
    from = static_cast<const uint16_t*>(matrix) + (first + row) * ld + column;
  }
  template <bool kAligned>
  __device__ __forceinline__ void run(__nv_bfloat16 (&to)[128][kRow], int k, int k_left) const {
    const uint16_t* chunk = from + k;
    const int count = min(k_left - column, 8);
#pragma unroll
    for (int i = 0; i < 128; i += kRows, chunk += step) {
      copy_chunk<kAligned>(static_cast<uint32_t>(__cvta_generic_to_shared(&to[row + i][column])), chunk,
                           row + i < rows ? count : 0);
    }
  }
};

template <class Instance, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2) gemm(const __grid_constant__ Params p) {
  namespace wmma = nvcuda::wmma;
  extern __shared__ __align__(32) unsigned char raw_smem[];
  auto& smem = *reinterpret_cast<SharedStorage*>(raw_smem);

  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * kTileM, n = int64_t{tile.n} * kTileN;
  const Copy copy_a(p.a, p.lda, m, p.m), copy_b(p.b, p.ldb, n, p.n);
  const auto load = [&](int stage, int k) {
    copy_a.run<kAligned>(smem.stages[stage].a, k, p.k - k);
    copy_b.run<kAligned>(smem.stages[stage].b, k, p.k - k);
    device::ptx::cp_async_commit();
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp % (kTileM / kWarpM) * kWarpM, warp_n = warp / (kTileM / kWarpM) * kWarpN;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[kBlocksM][kBlocksN];
#pragma unroll
  for (auto& row : acc) {
#pragma unroll
    for (auto& block : row) wmma::fill_fragment(block, 0.0f);
  }

  if (p.k > 0) load(0, 0);
  for (int k = 0, stage = 0; k < p.k; k += kTileK, stage ^= 1) {
    device::ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has landed, and no one reads the other any more
    if (k + kTileK < p.k) load(stage ^ 1, k + kTileK);
    const Stage& read = smem.stages[stage];
#pragma unroll
    for (int step = 0; step < kTileK; step += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[kBlocksM];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b[kBlocksN];
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) wmma::load_matrix_sync(a[i], &read.a[warp_m + 16 * i][step], kRow);
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) wmma::load_matrix_sync(b[j], &read.b[warp_n + 16 * j][step], kRow);
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) wmma::mma_sync(acc[i][j], a[i], b[j], acc[i][j]);
      }
    }
  }
  __syncthreads();  // the stages become the epilogue's buffers

#pragma unroll 1
  for (int block = 0; block < kBlocksM * kBlocksN; ++block) {
    // Registers have no run-time index: of these calls one runs, and the code below exists once.
#pragma unroll
    for (int i = 0; i < kBlocksM * kBlocksN; ++i) {
      if (i != block) continue;
      wmma::store_matrix_sync(&smem.blocks[warp][0][0], acc[i / kBlocksN][i % kBlocksN], 16, wmma::mem_row_major);
    }
    __syncwarp();
#pragma unroll
    for (int row = lane / 4; row < 16; row += 8) {
      const float4 v = *reinterpret_cast<const float4*>(&smem.blocks[warp][row][lane % 4 * 4]);
      float x[4] = {v.x, v.y, v.z, v.w};
      const int64_t at_m = m + warp_m + block / kBlocksN * 16 + row;
      const int64_t at_n = n + warp_n + block % kBlocksN * 16 + lane % 4 * 4;
      if (at_m < p.m && at_n < p.n) device::epilogue_store_rows<1>(p.epilogue, 0, at_m, 1, at_n, x);
    }
    __syncwarp();
  }
}

template <class Instance>
KernelFunction kernel(bool aligned) {
  return aligned ? gemm<Instance, true> : gemm<Instance, false>;
}

}  // namespace gemmx::ladder::rung_4
