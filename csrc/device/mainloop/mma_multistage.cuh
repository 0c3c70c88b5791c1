// Multi-stage mainloop: acc (tile_m, tile_n) += A (tile_m, K) * B (K, tile_n), fp32, K ascending by 16.
//
// Least architecture sm_80. All warps load and all multiply: cp.async fills a ring of kStages tiles, ldmatrix
// takes fragments from it, double-buffered in registers, so that the loads of K step s + 1 run under the
// mma of step s. One __syncthreads per K tile.
//
// Shared memory, per stage: A tile, then B tile (device/mainloop/operand_tile.cuh).
//
// Gated, the first half of B's tile is columns of gate, the second the same columns of up. Each warp takes a share of
// the one and the same share of the other, so that its accumulators have gate and up of every element of D it computes.
//
// Config: kType, kTileM/N/K, kWarpsM/N, kStages, kKMajorA/B, kAligned, kGated.
#pragma once

#include "device/mainloop/operand_loader.cuh"
#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mma_sync.cuh"

namespace gemmx::device {

template <class Config>
class MmaMultistage {
 public:
  struct TileA {
    GEMMX_HOST_DEVICE static constexpr OperandTile tile() { return {Config::kTileM, Config::kTileK, Config::kKMajorA}; }
  };
  struct TileB {
    GEMMX_HOST_DEVICE static constexpr OperandTile tile() { return {Config::kTileN, Config::kTileK, Config::kKMajorB}; }
  };

  static constexpr int kThreads = 32 * Config::kWarpsM * Config::kWarpsN;
  static constexpr int kWarpM = Config::kTileM / Config::kWarpsM;
  static constexpr int kWarpN = Config::kTileN / Config::kWarpsN;
  static constexpr int kBlocksM = kWarpM / 16;  // mma blocks of a warp
  static constexpr int kBlocksN = kWarpN / 8;
  static constexpr int kSteps = Config::kTileK / 16;  // K steps of a tile
  static constexpr int kHalves = Config::kGated ? 2 : 1;
  static constexpr int kWarpOutN = kWarpN / kHalves;  // a warp's columns of D
  static constexpr int kBytesA = TileA::tile().bytes();
  static constexpr int kStageBytes = kBytesA + TileB::tile().bytes();

  static_assert(kWarpM * Config::kWarpsM == Config::kTileM && kWarpN * Config::kWarpsN == Config::kTileN,
                "the warps must divide the tile");
  static_assert(kWarpM % 16 == 0 && (kWarpM & (kWarpM - 1)) == 0, "a warp's M must be a power of two, at least 16");
  static_assert(kWarpOutN % 16 == 0 && (kWarpOutN & (kWarpOutN - 1)) == 0,
                "a warp's columns of D must be a power of two, at least 16");
  static_assert(kHalves == 1 || (Config::kTileN & (Config::kTileN - 1)) == 0,
                "the halves of a gated tile are told apart by one bit of the column");
  static_assert(kSteps >= 2 && kSteps % 2 == 0, "the fragment buffers alternate within a K tile: K % 32 == 0");
  static_assert(Config::kStages >= 3, "2-byte pieces reach shared memory one tile after their load");
  static_assert(512 % (Config::kTileK * kElementBytes) == 0, "a cut of K must fall between K tiles");
  static_assert(TileA::tile().chunks_per_row() >= (Config::kKMajorA ? 2 : 8) &&
                    TileB::tile().chunks_per_row() >= (Config::kKMajorB ? 2 : 8),
                "the swizzle of an MN-major tile needs rows of at least 128 bytes");

  using Accumulators = float[kBlocksM][kBlocksN][4];

  // Elements [k_begin, k_end) of K; reads nothing where that is empty. On return shared memory is free. n: in D.
  __device__ static void run(Accumulators& acc, const OperandParams& a, const OperandParams& b, int64_t batch,
                             int64_t m, int64_t n, int64_t k_begin, int64_t k_end, uint32_t smem) {
    const int tiles = static_cast<int>(ceil_div(k_end - k_begin, Config::kTileK));
    const int last_k = static_cast<int>(k_end - k_begin - int64_t{Config::kTileK} * (tiles - 1));
    Pipeline pipe{{a, batch, m, k_begin}, {b, batch, n, k_begin}, tiles, last_k, 0, smem};

    // Prologue: fill all stages but one. Not unrolled: three copies of the loader cost a second to compile.
#pragma unroll 1
    for (int stage = 0; stage < Config::kStages - 1; ++stage) {
      pipe.load();
      pipe.store();
    }

    // Where this warp's fragments lie in a stage.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lane_a = TileA::tile().lane_offset(lane, warp % Config::kWarpsM * kWarpM, true);
    const int lane_b = TileB::tile().lane_offset(lane, warp / Config::kWarpsM * kWarpOutN, false);
    Fragments fragment[2];
    uint32_t read = smem;
    ptx::cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    fragment[0].load(read, lane_a, lane_b, 0);

    // Mainloop. The stage that tile + kStages - 1 goes to was last read in tile - 1, before the barrier.
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step == kSteps - 1) {
          ptx::cp_async_wait<Config::kStages - 2>();
          __syncthreads();
          read = next_stage(read, smem);
        }
        // After the last tile this reads a stage that nothing uses.
        fragment[(step + 1) % 2].load(read, lane_a, lane_b, (step + 1) % kSteps);
        if (step == 0) pipe.load();  // behind the fragments, which the next step waits for
        multiply(acc, fragment[step % 2]);
      }
      pipe.store();
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

 private:
  struct Fragments {
    uint32_t a[kBlocksM][4];
    uint32_t b[kBlocksN / 2][4];  // two n8 blocks each

    __device__ __forceinline__ void load(uint32_t stage, int lane_a, int lane_b, int step) {
#pragma unroll
      for (int i = 0; i < kBlocksM; ++i)
        load_block<Config::kKMajorA>(a[i], stage + TileA::tile().block_offset(lane_a, i, step));
#pragma unroll
      for (int j = 0; j < kBlocksN / 2; ++j)
        load_block<Config::kKMajorB>(b[j], stage + kBytesA + TileB::tile().block_offset(lane_b, block_of_b(j), step));
    }

    // How many blocks of 16 columns the warp's block j lies behind its first.
    static constexpr int block_of_b(int j) {
      constexpr int kBlocks = kWarpOutN / 16;
      return j % kBlocks + j / kBlocks * (Config::kTileN / kHalves / 16);
    }
  };

  template <bool kKMajor>
  __device__ static __forceinline__ void load_block(uint32_t (&r)[4], uint32_t address) {
    if constexpr (kKMajor) ptx::ldmatrix_x4(r, address);
    if constexpr (!kKMajor) ptx::ldmatrix_x4_trans(r, address);
  }

  __device__ static __forceinline__ void multiply(Accumulators& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int column = 0; column < kBlocksN; ++column) {
        // Back and forth, so that two neighbouring mma share an A or a B fragment.
        const int j = i % 2 == 0 ? column : kBlocksN - 1 - column;
        ptx::mma_m16n8k16<Config::kType>(acc[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  __device__ static __forceinline__ uint32_t next_stage(uint32_t stage, uint32_t smem) {
    return stage == smem + (Config::kStages - 1) * kStageBytes ? smem : stage + kStageBytes;
  }

  // The writing side of the ring.
  struct Pipeline {
    OperandLoader<TileA, kThreads, Config::kAligned> a;
    OperandLoader<TileB, kThreads, Config::kAligned, Config::kGated> b;
    int tiles_left;
    int last_k;   // elements of K in the last tile
    int pending;  // whether load() was given a tile for store()
    uint32_t write;
    uint32_t smem = write;

    // One commit per call, also where no tile is left, so that the wait can count.
    __device__ __forceinline__ void load() {
      pending = tiles_left > 0;
      if (pending) {
        const int valid_k = tiles_left == 1 ? last_k : Config::kTileK;
        a.load(write, valid_k);
        b.load(write + kBytesA, valid_k);
        --tiles_left;
      }
      ptx::cp_async_commit();
      if constexpr (Config::kAligned) write = next_stage(write, smem);
    }

    __device__ __forceinline__ void store() {
      if constexpr (!Config::kAligned) {
        if (pending) {
          a.store(write);
          b.store(write + kBytesA);
        }
        write = next_stage(write, smem);
      }
    }
  };
};

}  // namespace gemmx::device
