// wgmma GEMM, fp16 or bf16 in, fp32 accumulation:
//   D = act(alpha * A @ B + beta * C + bias)        A (batch, M, K)  B (batch, K, N)  C, D (batch, M, N)
//
// and the forms that gate or keep the pre-activation (form_store.cuh) or are a gate's backward
// (gate_gradient_store.cuh). A gated kernel's tile has the columns of gate in its first half and the same columns of up
// in its second, two boxes of B a stage; the tile of D is half as wide.
//
// Architecture sm_90a. Persistent and warp-specialised. With swap_ab the kernel's A is B^T and its B is A^T, and it
// computes D^T; "row" and "column" below are the kernel's.
//
//   warpgroups 0 and 1   consumers: wgmma on the stages, then the epilogue of their tile
//   warpgroup 2          one thread fills the stages by TMA, the rest of the warpgroup only gives up its registers
//
//   cooperative   the consumers work on one tile, tile.m / 2 rows each
//   pingpong      each consumer takes every other tile, so that one's epilogue runs behind the other's wgmma; it
//                 starts when the one before it has seen all its stages full: a parity tells only neighbouring rounds
//                 of the ring apart, so nobody may wait for a round before the one before it is complete
//
// Cluster of CM x 1 (1 x CN) CTAs: neighbours along M (N) share the tile of B (A); each loads a slice of it and
// multicasts it to all. Split-K of up to 8 CTAs is a cluster too: its CTAs take one cut of K each (cluster_reduce.cuh).
// Under batch_invariant a CTA may compute all cuts of its tiles, one after the other (running_sum.cuh).
//
// Alignment: A and B 16 bytes at the start of every row (TMA), which launch.cuh sees to; C, D, bias: any.
// Started while the kernel before it still runs (programmatic dependent launch): it waits before it touches memory. It
// lets the next one start at its own start or, with swapped operands, at its last load: in a chain of short kernels the
// SMs would fill with waiting CTAs of two kernels (M = 16, 128 CTAs each, 115.3 us a block for 116.5). Asking L2 for
// weights before the wait loses in every case (docs/experiments.md).
// Shared memory: [stage 0: A, B] ... [stage S-1: A, B] [2 x 2 KB for each consumer warp's boxes of C and D] [barriers],
// without boxes with swap_ab; with split-K in a cluster the stages hold the fp32 tile at the end.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "core/splits.h"
#include "device/epilogue/box_store.cuh"
#include "device/epilogue/cluster_reduce.cuh"
#include "device/epilogue/form_store.cuh"
#include "device/epilogue/gate_gradient_store.cuh"
#include "device/epilogue/running_sum.cuh"
#include "device/epilogue/staged_store.cuh"
#include "device/epilogue/transposed_store.cuh"
#include "device/mainloop/wgmma_mainloop.cuh"
#include "device/ptx/griddepcontrol.cuh"
#include "device/ptx/named_barrier.cuh"
#include "device/ptx/setmaxnreg.cuh"
#include "device/scheduler/k_cuts.cuh"
#include "device/scheduler/stream_k.cuh"
#include "device/scheduler/tile_scheduler.cuh"
#include "kernels/sm90/specs.h"

namespace gemmx::sm90 {

// A row of instances.inc as types and constants. F: the function of a custom epilogue.
template <const Row& kRow, class F = device::ActivationOfCall>
struct Config {
  using Function = F;
  static constexpr DType kType = kRow.dtype;
  static constexpr int kTileM = kRow.tile.m, kTileN = kRow.tile.n, kTileK = kRow.tile.k;
  static constexpr bool kSwap = kRow.operands == OperandOrder::swap_ab;
  static constexpr bool kKMajorA = (kSwap ? kRow.major_b : kRow.major_a) == Major::k;
  static constexpr bool kKMajorB = (kSwap ? kRow.major_a : kRow.major_b) == Major::k;
  static constexpr bool kPingpong = kRow.consumers == Consumers::pingpong;
  static constexpr bool kGated = is_gated(kRow.form), kAux = is_aux(kRow.form);
  static constexpr bool kPlain = kRow.form == Form::plain, kGateGradient = kRow.form == Form::gate_gradient;
  // Of D, or of D^T with swapped operands.
  static constexpr int kOutM = kGated && kSwap ? kTileM / 2 : kTileM, kOutN = kGated && !kSwap ? kTileN / 2 : kTileN;
  static constexpr int kRowsOfWarpgroup = kPingpong ? kTileM : kTileM / kConsumerWarpgroups;
  // Blocks of 64 rows, wgmma's M, with a tile of fewer rows of weights too (swap_ab): the instruction then multiplies
  // what lies behind them in shared memory, this stage's other rows, and nobody stores those rows of the product.
  static constexpr int kBlockRows = kGated && kSwap ? kOutM : kTileM < 64 ? kTileM : 64;
  static constexpr int kBlocks = kRowsOfWarpgroup / kBlockRows;
  static constexpr int kStoringWarps = static_cast<int>(ceil_div(kBlockRows, 16));  // of four, in a block
  static constexpr int kClusterM = kRow.cluster.m, kClusterN = kRow.cluster.n;
  static constexpr int kCtas = kClusterM * kClusterN;  // that a stage is multicast to
  static constexpr int kStages = kRow.stages;
  static constexpr int kSmemBytes = smem_bytes(kRow);
  static constexpr int kEpilogueBytesOfWarp = epilogue_bytes_of_warp(kRow);
  // Consumer warps that read one stage.
  static constexpr int kReaders = kPingpong ? 4 : kConsumerWarps;
  // Registers a thread: 65536 over the CTA's threads at launch; the producer needs few.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  // Decode: the weights' bytes are everything, so that a stage goes back to the producer as soon as it is multiplied.
  static constexpr bool kDrains = kSwap;

  // The sum of cuts that a CTA adds up itself stays in registers beside the accumulators of the next cut.
  static constexpr bool kSumsInRegisters = kBlocks * kTileN / 2 <= 64;

  static_assert(kRowsOfWarpgroup % kBlockRows == 0, "a warpgroup's share of the tile is whole blocks");
  static_assert(kBlockRows == 64 || (kSwap && kPingpong && kKMajorA && kBlockRows % 8 == 0),
                "blocks of fewer than 64 rows: K-major weights with swapped operands, whole swizzle blocks");
  static_assert((64 - kBlockRows) * device::kSwizzleBytes <= kTileN * kTileK * 2,
                "the rows that a narrow block reads too many lie in the tile of activations behind it");
  static_assert(kClusterM == 1 || kClusterN == 1, "clusters share one operand");
  static_assert((!kPlain || std::is_same_v<F, device::ActivationOfCall>),
                "a plain kernel has no function of its own: give its row the form custom");
  static_assert(kPlain || kGated || !kSwap, "with swapped operands the forms are plain and gated");
  static_assert(!kGated || !kSwap || (kPingpong && kBlocks == 2), "one block is gate, one is up");
  static_assert(!kGateGradient || !kSwap, "the gradient of a gate has no form with swapped operands");
  static_assert(!kGated || (kSwap ? kClusterN : kClusterM) <= 2,
                "the CTAs that share gate and up load one of them each");
  static_assert(cut_unit(2) % kTileK == 0, "cuts of K are whole K tiles");
};

// How D leaves the kernel.
enum class Output : uint8_t {
  tma,      // box_store.cuh, by TMA; also the fp32 partials of split-K
  rows,     // box_store.cuh, by rows
  general,  // staged_store.cuh: D without unit stride, fp32 D that TMA can't write. With swap_ab, transposed_store.cuh
  cluster,  // split-K partials meet in the cluster, then the general epilogue
};

// The order of the members counts: with stage_bytes to splits 4 bytes further on, nvcc 13.0 loads them otherwise and
// nine kernels spill.
struct GemmParams {
  CUtensorMap a, b, d;
  CUtensorMap c;                    // in boxes of D, with c_by_tma; Z of a gate's gradient, as d in two batches
  CUtensorMap z;                    // of gate and up as two batches, where the kernel keeps Z and z_output says tma
  CUtensorMap partial;              // stream-K's partial tiles [slot * CTAs of a cluster][rows][columns], fp32
  float* partial_tiles;             // the same
  device::EpilogueParams epilogue;  // in D's rows and columns, not the kernel's
  device::EpilogueParams z_layout;  // gate and up as two batches
  device::TileScheduler scheduler;  // of clusters' tiles
  device::StreamK stream_k;         // no cut tiles with other schedules
  uint32_t stage_bytes;             // that TMA writes: boxes end where a small matrix ends
  int up;                           // gated: where up begins among B's columns
  uint32_t tiles;                   // clusters' whole tiles of all batches and workspace splits
  int cuts;  // of K, that a CTA adds up itself (running_sum.cuh, in partial_tiles); splits is 1 then
  int batch;
  int splits;             // cuts of K
  bool batch_a, batch_b;  // 0: one matrix for all batches
  Output output, z_output;
  bool c_by_tma;                 // C comes to the boxes that D leaves from
  bool batch_c;                  // as batch_a
  uint64_t policy_a, policy_b;   // L2 cache hints
  int cut_tiles[kMaxCutsOfCta];  // K tiles of each
  device::KCuts k_cuts;
  device::FastDivisor cluster;  // its CTAs
};

template <class Config>
struct SharedStorage {
  using Mainloop = device::WgmmaMainloop<Config>;
  unsigned char stages[Config::kStages][Mainloop::kStageBytes];
  unsigned char epilogue[kConsumerWarps][Config::kEpilogueBytesOfWarp];
  alignas(128) device::Ring<Config::kStages> ring;
  uint64_t c_full[kConsumerWarps][kBoxesOfWarp];  // of the boxes of C that have landed
};

// Where this CTA stands in its cluster and the cluster in the grid.
template <class Config>
struct Place {
  uint32_t cluster, clusters;
  uint32_t split, splits;  // in the cluster
  uint32_t m, n;           // among the CTAs that share a stage
  uint32_t first;          // rank of the first of them

  // From blockIdx, which the compiler knows to be uniform; clusters are one-dimensional. Without splits in the cluster
  // all divisors are constants: the first load waits for this.
  __device__ static __forceinline__ Place current(const GemmParams& p) {
    if (p.output != Output::cluster) return at(blockIdx.x / Config::kCtas, gridDim.x / Config::kCtas, Config::kCtas, 1);
    const device::FastDivisor& size = p.cluster;
    return at(size.divide(blockIdx.x), size.divide(gridDim.x), size.divisor, p.splits);
  }
  __device__ static __forceinline__ Place at(uint32_t cluster, uint32_t clusters, uint32_t size, uint32_t splits) {
    const uint32_t rank = blockIdx.x - cluster * size;
    const uint32_t in_group = rank % Config::kCtas;
    return {cluster,
            clusters,
            rank / Config::kCtas,
            splits,
            in_group % Config::kClusterM,
            in_group / Config::kClusterM,
            rank - in_group};
  }
  __device__ uint16_t group_mask() const { return static_cast<uint16_t>(((1u << Config::kCtas) - 1) << first); }
};

// One tile's work of this CTA: its first row and column, its cut of K in K tiles.
struct WorkTile {
  int m, n, batch, plane;
  int k_begin, k_tiles;
  int slot;  // of stream-K's partial tiles; -1: D
};

template <class Config>
__device__ __forceinline__ WorkTile whole_tile(const GemmParams& p, const Place<Config>& place, uint32_t index) {
  const device::TileCoord c = p.scheduler.coord(index);
  WorkTile w;
  w.m = static_cast<int>(c.m * Config::kClusterM + place.m) * Config::kOutM;
  w.n = static_cast<int>(c.n * Config::kClusterN + place.n) * Config::kOutN;
  w.batch = static_cast<int>(c.batch);
  w.plane = static_cast<int>(c.split) * p.batch + w.batch;
  w.k_begin = 0;
  w.k_tiles = static_cast<int>(p.k_cuts.tiles);
  if (p.splits > 1) {
    const uint32_t split = place.splits > 1 ? place.split : c.split;
    w.k_begin = static_cast<int>(p.k_cuts.begin(split));
    w.k_tiles = static_cast<int>(p.k_cuts.begin(split + 1)) - w.k_begin;
  }
  w.slot = -1;
  return w;
}

// The tiles of this CTA, one after the other: whole ones in turn with the other clusters, then its units of cut ones.
template <class Config>
struct WorkLoop {
  const GemmParams& p;
  const Place<Config>& place;
  uint32_t index;  // of the next whole tile
  uint32_t unit = 0;
  uint32_t units = 0;  // left

  __device__ WorkLoop(const GemmParams& params, const Place<Config>& at) : p(params), place(at), index(at.cluster) {
    if (p.stream_k.tiles > 0 && place.cluster < p.stream_k.workers) {
      unit = p.stream_k.begin(place.cluster);
      units = p.stream_k.units_of(place.cluster);
    }
  }
  __device__ __forceinline__ bool any() const { return index < p.tiles || units > 0; }
  // ends: false leaves a whole tile to be taken once more.
  __device__ __forceinline__ WorkTile take(bool ends = true) {
    if (index < p.tiles) {
      const WorkTile w = whole_tile(p, place, index);
      if (ends) index += place.clusters;
      return w;
    }
    const device::StreamKPart part = p.stream_k.part(place.cluster, unit, units);
    unit += part.k_tiles;
    units -= part.k_tiles;
    WorkTile w = whole_tile(p, place, p.stream_k.first + part.tile);
    if (part.k_tiles != p.stream_k.k_tiles.divisor) {
      w.k_begin = static_cast<int>(part.k_begin);
      w.k_tiles = static_cast<int>(part.k_tiles);
      w.slot = static_cast<int>(part.slot * Config::kCtas + place.m + place.n * Config::kClusterM);
    }
    return w;
  }
};

// One thread. The tile of gate and up: its first index in D is mn. CTAs that share it load one half each.
template <class Tile, int kSharing>
__device__ __forceinline__ void load_gate_and_up(const GemmParams& p, const CUtensorMap* tensor_map, uint32_t smem_tile,
                                                 uint32_t barrier, int mn, int k, uint32_t slice, uint16_t ctas,
                                                 uint64_t policy) {
  if constexpr (kSharing == 1) {
    Tile::template load_half<false>(tensor_map, smem_tile, barrier, mn, k, 0, 0, ctas, policy);
    Tile::template load_half<false>(tensor_map, smem_tile, barrier, p.up + mn, k, 0, 1, ctas, policy);
  } else {
    const int at = slice == 0 ? mn : p.up + mn;
    Tile::template load_half<true>(tensor_map, smem_tile, barrier, at, k, 0, slice, ctas, policy);
  }
}

// The thread that fills the stages. Its first tile is worked out when it is made, which nothing waits for.
template <class Config>
struct Producer {
  using Mainloop = device::WgmmaMainloop<Config>;
  using TileA = typename Mainloop::TileA;
  using TileB = typename Mainloop::TileB;
  const GemmParams& p;
  SharedStorage<Config>& shared;
  const Place<Config>& place;
  uint32_t smem_stages;
  WorkLoop<Config> work;
  WorkTile tile;

  __device__ __forceinline__ Producer(const GemmParams& params, SharedStorage<Config>& storage, const Place<Config>& at,
                                      uint32_t stages)
      : p(params), shared(storage), place(at), smem_stages(stages), work(params, at), tile(work.take()) {
    // Here, and not behind the wait for the kernel before, where the compiler would put it.
    asm volatile("" : "+r"(tile.m), "+r"(tile.n), "+r"(tile.batch), "+r"(tile.k_begin), "+r"(tile.k_tiles));
  }

  __device__ __forceinline__ void run() {
    device::RingState<Config::kStages> at;
    for (;;) {
      load(tile, at);
      if (!work.any()) break;
      tile = work.take();
    }
    if constexpr (Config::kSwap) device::ptx::let_next_kernel_start();
    // The neighbours arrive at this CTA's barriers: it lives until the last of them has.
    if constexpr (Config::kCtas > 1) {
#pragma unroll 1
      for (int s = 0; s < Config::kStages; ++s, at.advance()) shared.ring.wait_empty(at);
    }
  }

 private:
  __device__ __forceinline__ void load(const WorkTile& w, device::RingState<Config::kStages>& at) {
    const int batch_a = p.batch_a ? w.batch : 0;
    const int batch_b = p.batch_b ? w.batch : 0;
    int k = w.k_begin * Config::kTileK;
    for (int i = 0; i < w.k_tiles; ++i, k += Config::kTileK, at.advance()) {
      shared.ring.wait_empty(at);
      const uint32_t barrier = shared.ring.full_address(at.stage);
      const uint32_t stage = smem_stages + at.stage * Mainloop::kStageBytes;
      device::ptx::mbarrier_arrive_expect_tx(barrier, p.stage_bytes);
      if constexpr (Config::kGated && Config::kSwap) {
        load_gate_and_up<TileA, Config::kClusterN>(p, &p.a, stage, barrier, w.m, k, place.n, place.group_mask(),
                                                   p.policy_a);
      } else {
        TileA::template load<Config::kClusterN>(&p.a, stage, barrier, w.m, k, batch_a, place.n, place.group_mask(),
                                                p.policy_a);
      }
      if constexpr (Config::kGated && !Config::kSwap) {
        load_gate_and_up<TileB, Config::kClusterM>(p, &p.b, stage + TileA::kBytes, barrier, w.n, k, place.m,
                                                   place.group_mask(), p.policy_b);
      } else {
        TileB::template load<Config::kClusterM>(&p.b, stage + TileA::kBytes, barrier, w.n, k, batch_b, place.m,
                                                place.group_mask(), p.policy_b);
      }
    }
  }
};

// Named barriers.
inline constexpr int kAllConsumers = 1;
inline constexpr int kTurn = 2;     // kTurn + w: consumer w may start its tile (ping-pong)
inline constexpr int kStarted = 4;  // the ring's barriers are there

// Of the cuts of a tile that its CTA adds up itself.
template <class Config>
using RunningSum = device::RunningSum<Config::kBlocks, Config::kTileN / 2, Config::kSumsInRegisters>;

// The epilogue of a tile of a kernel that gates or keeps Z; row: the warp's first in the tile.
template <class Config>
__device__ __forceinline__ void store_form(const GemmParams& p, const WorkTile& w, int row,
                                           const typename device::WgmmaMainloop<Config>::Accumulators& acc,
                                           uint32_t smem_buffer, int lane, uint32_t& boxes) {
  if constexpr (Config::kSwap) {
    static_assert(Config::kGated && Config::kBlocks == 2, "swapped forms are gated: gate, up");
    const int end = w.m + Config::kOutM;
    device::TransposedGatedStore<Config::kType, Config::kTileN, Config::kAux, typename Config::Function>::run(
        p.epilogue, p.z_layout, end, w.n, w.m + row, acc[0], acc[1], lane);
  } else {
    using Store = device::FormStore<Config::kOutN, Config::kGated, Config::kAux, typename Config::Function>;
    const auto target = [&](const device::EpilogueParams& e, const CUtensorMap* tensor_map, Output output) {
      return typename Store::Target{e, output == Output::tma ? tensor_map : nullptr};
    };
#pragma unroll
    for (int block = 0; block < Config::kBlocks; ++block) {
      Store::run(p.epilogue, target(p.epilogue, &p.d, p.output), target(p.z_layout, &p.z, p.z_output), w.batch,
                 w.m + row + 64 * block, w.n, acc[block], smem_buffer, lane, boxes);
    }
  }
}

// The epilogue of a tile of a gate's gradient; row: the warp's first in the tile, barrier: of its pairs of boxes.
template <class Config>
__device__ __forceinline__ device::GateGradientStore<Config::kBlocks, Config::kTileN> gate_gradient_of(
    const GemmParams& p, const WorkTile& w, int row, uint32_t smem_buffer, uint64_t* barrier) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  return {&p.c, &p.d, w.m + row, w.n, smem_buffer, address};
}

// One consumer warpgroup.
template <class Config>
__device__ __forceinline__ void consume(const GemmParams& p, SharedStorage<Config>& shared, const Place<Config>& place,
                                        uint32_t smem_stages, int warpgroup) {
  using Mainloop = device::WgmmaMainloop<Config>;
  using Staged = device::StagedStore<Config::kTileN>;
  using Box = device::BoxStore<Config::kTileN>;
  using Transposed = device::TransposedStore<Config::kTileN>;
  constexpr bool kBoxes = !Config::kSwap && Box::kAvailable;
  using Reduce = device::ClusterReduce<Config::kTileM, Config::kTileN, Config::kSwap>;
  static_assert(Config::kSwap || Box::kAvailable, "partial tiles of stream-K leave by TMA");
  static_assert(
      Config::kSwap || (Staged::kBytes <= Config::kEpilogueBytesOfWarp && Box::kBytes <= Config::kEpilogueBytesOfWarp),
      "a warp's epilogue buffer holds what both epilogues need");
  static_assert(Box::kBuffers == kBoxesOfWarp, "specs.h counts the boxes' bytes and barriers");
  static_assert(Reduce::kBytes <= sizeof(shared.stages), "the stages hold the fp32 tile of split-K");
  using device::ptx::named_barrier_arrive, device::ptx::named_barrier_sync;
  const int lane = threadIdx.x % 32;
  // Uniform, and known to be: else the waits for C, which it addresses, take the mainloop's stages and descriptors out
  // of the uniform registers, which costs 4 % of 64x48 tiles.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32 % 4), 0);
  const int first_row = Config::kPingpong ? 0 : warpgroup * Config::kRowsOfWarpgroup;
  unsigned char* const buffer = shared.epilogue[warpgroup * 4 + warp];
  const auto smem_buffer = static_cast<uint32_t>(__cvta_generic_to_shared(buffer));
  typename Mainloop::Accumulators acc;
  device::RingState<Config::kStages> at;
  RunningSum<Config> sum;
  int cut = 0;  // of the tile, where this CTA adds up its cuts
  uint32_t boxes = 0;
  int turn = 0;
  bool first = true;
  // Which path the epilogue takes, read while the first stage is on its way, not when the last product is there; where
  // the accumulators leave a register for it.
  constexpr bool kReadsAhead = Config::kBlocks * Config::kTileN / 2 < 112;
  const auto read_path = [&] {
    if constexpr (Config::kSwap) {
      return static_cast<int>(Transposed::template is_plain<Config::kType>(p.epilogue));
    } else {
      return kBoxes ? Box::path_of(p.epilogue) : 0;
    }
  };
  int path = 0;
  if constexpr (kReadsAhead) {
    path = read_path();
    asm volatile("" : "+r"(path));
  }
  const auto c_of = [&](const WorkTile& w) {
    const auto barriers = static_cast<uint32_t>(__cvta_generic_to_shared(shared.c_full[warpgroup * 4 + warp]));
    return typename Box::CByTma{p.c_by_tma, &p.c, p.batch_c ? w.batch : 0, barriers};
  };
  for (WorkLoop<Config> work(p, place); work.any(); first = false) {
    const bool mine = !Config::kPingpong || turn == warpgroup;
    const bool ends = !mine || !Config::kPlain || cut + 1 >= p.cuts;  // the tile, not only a cut of it
    const WorkTile w = work.take(ends);
    if constexpr (Config::kPingpong) {
      if (ends) turn ^= 1;
      if (!mine) {
        at.advance(w.k_tiles);
        continue;
      }
    }
    if constexpr (Config::kGateGradient) {
      gate_gradient_of<Config>(p, w, first_row + 16 * warp, smem_buffer, shared.c_full[warpgroup * 4 + warp])
          .load_first(lane);
    } else if constexpr (kBoxes) {
      if (p.c_by_tma && cut == 0) Box::load_first(c_of(w), w.m + first_row + 16 * warp, w.n, smem_buffer, lane, boxes);
    }
    if (Config::kPingpong && !first && cut == 0) named_barrier_sync(kTurn + warpgroup, 2 * 128);
    // The producer loads K straight through: a cut begins where the accumulators start from zero again.
    const bool in_cuts = Config::kPlain && p.cuts > 1;
    const int k_tiles = in_cuts ? p.cut_tiles[cut] : w.k_tiles;
    Mainloop::run(acc, shared.ring, smem_stages, at, k_tiles, first_row, lane, place.first, [&] {
      if (Config::kPingpong && ends && work.any()) named_barrier_arrive(kTurn + turn, 2 * 128);
    });
    if (in_cuts) {
      sum.add(acc, p.partial_tiles + RunningSum<Config>::kFloats * (blockIdx.x * kConsumerWarpgroups + warpgroup),
              cut == 0, ends);
      if (!ends) {
        ++cut;
        continue;
      }
      cut = 0;
    }
    if constexpr (Config::kGateGradient) {
      gate_gradient_of<Config>(p, w, first_row + 16 * warp, smem_buffer, shared.c_full[warpgroup * 4 + warp])
          .run(p.epilogue, acc, lane, boxes);
      continue;
    } else if constexpr (!Config::kPlain) {  // never a cut of K
      if (Config::kStoringWarps == 4 || warp < Config::kStoringWarps) {
        store_form<Config>(p, w, first_row + 16 * warp, acc, smem_buffer, lane, boxes);
      }
      continue;
    }
    if constexpr (!kReadsAhead) path = read_path();
    // One tile a CTA then: the fp32 tile goes where the stages were, once every consumer is done with them.
    if (p.output == Output::cluster && !Config::kPingpong) {
      named_barrier_sync(kAllConsumers, 128 * kConsumerWarpgroups);
    }
#pragma unroll
    for (int block = 0; block < Config::kBlocks; ++block) {
      if (Config::kStoringWarps < 4 && warp >= Config::kStoringWarps) break;
      const int row = first_row + Config::kBlockRows * block + 16 * warp;
      if (p.output == Output::cluster) {
        Reduce::put(acc[block], reinterpret_cast<float*>(shared.stages), row, lane);
      } else if (w.slot >= 0) {
        if constexpr (Config::kSwap) {
          Transposed::put_partial(p.partial_tiles + int64_t{w.slot} * (Config::kTileM * Config::kTileN), Config::kTileM,
                                  row, acc[block], lane);
        } else {
          Box::put_partial(&p.partial, w.slot, row, acc[block], smem_buffer, lane, boxes);
        }
      } else if constexpr (Config::kSwap) {
        if (path != 0) {
          Transposed::template run_plain<Config::kType>(p.epilogue, w.plane, w.n, w.m + row, w.m + Config::kTileM,
                                                        acc[block], lane);
        } else {
          Transposed::run(p.epilogue, w.plane, w.n, w.m + row, w.m + Config::kTileM, acc[block], lane);
        }
      } else if (kBoxes && p.output != Output::general) {
        if constexpr (kBoxes) {
          if (block > 0 && p.c_by_tma) Box::load_first(c_of(w), w.m + row, w.n, smem_buffer, lane, boxes);
          Box::run(p.epilogue, p.output == Output::tma ? &p.d : nullptr, w.plane, w.m + row, w.n, acc[block],
                   smem_buffer, lane, boxes, path, c_of(w));
        }
      } else {
        Staged::run(p.epilogue, w.plane, w.m + row, w.n, acc[block], reinterpret_cast<float*>(buffer), lane);
      }
    }
  }
  if (p.output == Output::cluster) {
    device::ptx::cluster_sync();
    const WorkTile w = whole_tile(p, place, place.cluster);
    Reduce::reduce(p.epilogue, w.batch, Config::kSwap ? w.n : w.m, Config::kSwap ? w.m : w.n, smem_stages,
                   static_cast<int>(place.splits), static_cast<int>(place.split), place.m + place.n * Config::kClusterM,
                   Config::kCtas, static_cast<int>(threadIdx.x), 128 * kConsumerWarpgroups);
  }
  if constexpr (kBoxes) Box::drain(lane);
}

// One thread: what the epilogue needs that no tile decides.
template <class Config>
__device__ __forceinline__ void prepare_epilogue(const GemmParams& p, SharedStorage<Config>& shared) {
  if constexpr (!Config::kSwap) {
    if (p.output == Output::tma) device::ptx::tma_prefetch_descriptor(&p.d);
    if (!p.c_by_tma) return;
    device::ptx::tma_prefetch_descriptor(&p.c);
    for (auto& warp : shared.c_full) {
      for (uint64_t& barrier : warp) {
        device::ptx::mbarrier_init(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier)), 1);
      }
    }
    device::ptx::mbarrier_init_fence();
  }
}

// Until all threads of the cluster are here; orders no memory accesses but the initialisation of barriers.
__device__ __forceinline__ void await_cluster() {
  device::ptx::cluster_arrive_relaxed();
  device::ptx::cluster_wait();
}

template <class Config>
__global__ void __launch_bounds__(kThreads, 1) gemm_kernel(const __grid_constant__ GemmParams p) {
  static_assert(sizeof(SharedStorage<Config>) == Config::kSmemBytes, "smem_bytes() of specs.h must be what is used");
  extern __shared__ __align__(1024) unsigned char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);
  const auto smem_stages = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);

  // From the first instruction to the first load a kernel does nothing for its product, 1.3 of 12 us of a decode layer
  // before this order (docs/experiments.md): the loading thread prepares the ring itself and waits for nobody in its
  // CTA.
  if (warpgroup == kConsumerWarpgroups) {
    device::ptx::setmaxnreg_decrease<Config::kProducerRegisters>();
    const bool loads = threadIdx.x == 128 * kConsumerWarpgroups;
    if (loads) {
      device::ptx::tma_prefetch_descriptor(&p.a);
      device::ptx::tma_prefetch_descriptor(&p.b);
      shared.ring.init(1, Config::kReaders * Config::kCtas);
    }
    const auto place = Place<Config>::current(p);
    Producer<Config> producer(p, shared, place, smem_stages);
    __syncwarp();
    if constexpr (Config::kCtas == 1) {
      device::ptx::named_barrier_arrive(kStarted, kThreads);
    } else {
      await_cluster();  // no CTA may load into, or arrive at, another whose barriers are not there yet
    }
    if constexpr (!Config::kSwap) device::ptx::let_next_kernel_start();
    device::ptx::wait_for_earlier_kernels();
    if (loads) producer.run();
    __syncwarp();
    if (p.output == Output::cluster) await_cluster();  // the partial tiles, which it has no part in
  } else {
    device::ptx::setmaxnreg_increase<Config::kConsumerRegisters>();
    if (threadIdx.x == 0) prepare_epilogue<Config>(p, shared);
    if constexpr (Config::kCtas == 1) {
      device::ptx::named_barrier_sync(kStarted, kThreads);
    } else {
      __syncwarp();
      await_cluster();  // no CTA may load into, or arrive at, another whose barriers are not there yet
    }
    if constexpr (!Config::kSwap) device::ptx::let_next_kernel_start();
    device::ptx::wait_for_earlier_kernels();
    const auto place = Place<Config>::current(p);  // here: what is worked out for both branches spills in large tiles
    consume<Config>(p, shared, place, smem_stages, warpgroup);
  }
  // A CTA's shared memory outlives its neighbours' reads of it: whoever comes here has used what it read.
  if (p.output == Output::cluster) await_cluster();
}

}  // namespace gemmx::sm90
