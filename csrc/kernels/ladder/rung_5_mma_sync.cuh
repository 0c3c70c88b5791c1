// Rung 5, mma.sync: the tensor core's own instruction, its operands by ldmatrix from swizzled shared memory, three
// stages in flight. bf16 in, fp32 accumulation.
//
// Before:    rung 4 reads each fragment by eight 4-byte loads a lane through hidden layouts, waits for them, and has
// one
//            tile in flight.
// Changes:   mma.sync.m16n8k16 has a documented layout, so that ldmatrix fills four of its registers by one instruction
//            and accumulators stay in place until the end. An XOR swizzle of 16-byte chunks replaces the padding: 8
//            rows of one chunk column lie in 8 different groups of banks. Three stages of 64 along K: two are in flight
//            while one is read. Fragments of step s + 1 are read under the mma of step s, across the barrier too. The
//            CTA's tile is 128 x 256, a warp's 64 x 64, and the plan chooses the order of the tiles.
// Per CTA:   128 x 256 elements of D: 2 * 128 * 256 * K FLOPs, (128 + 256) * K * 2 bytes from global memory.
// Intensity: 2 * 128 * 256 / ((128 + 256) * 2) = 85 FLOP per global byte; from shared memory 2 * 64 * 64 / (128 * 2) =
//            32 FLOP per byte.
// Wastes:    on Hopper mma.sync reaches little more than half of what wgmma does, whatever feeds it: a warp multiplies
//            through its own registers, which read every fragment from shared memory again.
#pragma once

#include "device/epilogue/warp_tile_store.cuh"
#include "device/mainloop/operand_tile.cuh"
#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mma_sync.cuh"
#include "kernels/ladder/common.cuh"

namespace gemmx::ladder::rung_5 {

inline constexpr int kTileM = 128, kTileN = 256, kTileK = 64, kStages = 3, kThreads = 256;
inline constexpr int kWarpM = 64, kWarpN = 64, kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 8, kSteps = kTileK / 16;
inline constexpr bool kFollowsPlan = true;
GEMMX_HOST_DEVICE constexpr device::OperandTile tile_a() { return {kTileM, kTileK, true}; }
GEMMX_HOST_DEVICE constexpr device::OperandTile tile_b() { return {kTileN, kTileK, true}; }
inline constexpr int kBytesA = tile_a().bytes(), kStageBytes = kBytesA + tile_b().bytes();
inline constexpr int kSmemBytes = kStages * kStageBytes;
using Store = device::WarpTileStore<kBlocksM, kWarpN, kBlocksM>;
static_assert(Store::kBytes * kThreads / 32 <= kSmemBytes, "the epilogue reuses the stages");

// One operand of the CTA on its way into the stages: 8 threads a row, 16 bytes each.
template <bool kAligned, int kRowsOfTile>
struct Loader {
  const uint16_t* next;  // this thread's first chunk of the next tile
  int64_t pass;          // elements from one of its chunks to the next
  int rows_left;         // from its first row on
  uint32_t offset;       // of its first chunk in a stage

  static constexpr int kRows = kThreads / 8;  // a pass; a multiple of 8, so that the swizzle is the same in every pass

  __device__ Loader(const void* data, int64_t ld, int64_t first_row, int64_t extent, uint32_t in_stage) {
    const int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    next = static_cast<const uint16_t*>(data) + (first_row + row) * ld + chunk * 8;
    pass = kRows * ld;
    rows_left = static_cast<int>(min(extent - first_row - row, int64_t{kRowsOfTile}));
    offset = in_stage + row * 128 + device::swizzled_chunk(row, chunk, 8) * 16;
  }

  // The first k_left elements of each row exist.
  __device__ __forceinline__ void load(uint32_t stage, int k_left) {
    const int count = min(k_left - static_cast<int>(threadIdx.x) % 8 * 8, 8);
    const uint16_t* source = next;
#pragma unroll(kAligned ? kRowsOfTile / kRows : 1)
    for (int i = 0; i < kRowsOfTile; i += kRows, source += pass) {
      copy_chunk<kAligned>(stage + offset + i * 128, source, i < rows_left ? count : 0);
    }
    next += kTileK;
  }
};

struct Fragments {
  uint32_t a[kBlocksM][4], b[kBlocksN / 2][4];

  // The 16 elements of K of `step`; lane_a, lane_b: where this lane's rows begin in the stage.
  __device__ __forceinline__ void load(uint32_t stage, int lane_a, int lane_b, int step) {
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) device::ptx::ldmatrix_x4(a[i], stage + tile_a().block_offset(lane_a, i, step));
#pragma unroll
    for (int j = 0; j < kBlocksN / 2; ++j) {
      device::ptx::ldmatrix_x4(b[j], stage + kBytesA + tile_b().block_offset(lane_b, j, step));
    }
  }
};

template <class Instance, bool kAligned>
__global__ void __launch_bounds__(kThreads, 1) gemm(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char raw_smem[];
  const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(raw_smem));

  const device::TileCoord tile = p.order.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * kTileM, n = int64_t{tile.n} * kTileN;
  Loader<kAligned, kTileM> load_a(p.a, p.lda, m, p.m, 0);
  Loader<kAligned, kTileN> load_b(p.b, p.ldb, n, p.n, kBytesA);
  int k_left = p.k;  // of what is not loaded yet
  uint32_t write = smem, read = smem;
  const auto after = [&](uint32_t stage) {
    return stage == smem + (kStages - 1) * kStageBytes ? smem : stage + kStageBytes;
  };
  const auto load = [&] {
    if (k_left > 0) {
      load_a.load(write, k_left);
      load_b.load(write, k_left);
    }
    device::ptx::cp_async_commit();  // also where nothing is left, so that the wait can count
    k_left -= kTileK;
    write = after(write);
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp % (kTileM / kWarpM) * kWarpM, warp_n = warp / (kTileM / kWarpM) * kWarpN;
  const int lane_a = tile_a().lane_offset(lane, warp_m, true), lane_b = tile_b().lane_offset(lane, warp_n, false);
  float acc[kBlocksM][kBlocksN][4] = {};
  Fragments fragment[2];

  for (int stage = 0; stage < kStages - 1; ++stage) load();
  device::ptx::cp_async_wait<kStages - 2>();
  __syncthreads();
  fragment[0].load(read, lane_a, lane_b, 0);
#pragma unroll 1
  for (int k = 0; k < p.k; k += kTileK) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - 1) {  // the next stage has landed, and the one before it is free, when all have come here
        device::ptx::cp_async_wait<kStages - 2>();
        __syncthreads();
        read = after(read);
      }
      fragment[(step + 1) % 2].load(read, lane_a, lane_b, (step + 1) % kSteps);
      if (step == 0) load();
      const Fragments& f = fragment[step % 2];
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocksN; ++j) {
          const int column = i % 2 == 0 ? j : kBlocksN - 1 - j;  // there and back: neighbours share a fragment
          device::ptx::mma_m16n8k16<DType::bf16>(acc[i][column], f.a[i], f.b[column / 2][column % 2 * 2],
                                                 f.b[column / 2][column % 2 * 2 + 1]);
        }
      }
    }
  }
  device::ptx::cp_async_wait<0>();
  __syncthreads();
  Store::run(p.epilogue, 0, m + warp_m, n + warp_n, acc, reinterpret_cast<float*>(raw_smem + warp * Store::kBytes));
}

template <class Instance>
KernelFunction kernel(bool aligned) {
  return aligned ? gemm<Instance, true> : gemm<Instance, false>;
}

}  // namespace gemmx::ladder::rung_5
