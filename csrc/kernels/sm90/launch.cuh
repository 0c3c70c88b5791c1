// Launches the wgmma kernel of a row, after a packing copy of the operands that TMA can't read (pack.cuh).
//
// prepare() does what one Problem needs once: it encodes the TMA descriptors around a placeholder address, works out
// the grid and sets the kernel's attributes. run() copies the parameters, puts addresses and values in, and launches.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/sm90/gemm.cuh"
#include "kernels/sm90/pack.cuh"
#include "kernels/sm90/reduce.h"
#include "kernels/sm90/tensor_map.h"

namespace gemmx::sm90 {

inline void check(cudaError_t error, const char* name, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(name) + ": " + what + " failed: " + cudaGetErrorString(error));
}

template <class Config>
struct Launcher {
  static constexpr auto kKernel = gemm_kernel<Config>;
  using Mainloop = device::WgmmaMainloop<Config>;

  // What prepare() works out and every run() starts from.
  struct State {
    GemmParams params;
    int cluster;  // CTAs
    int ctas;
    bool partials;       // of splits go to the workspace, and a second launch adds them
    PackedBytes packed;  // in the workspace, before the partials
    int64_t partial_bytes;
    bool starts_early;
    PackOperand pack_a, pack_b;  // without addresses; no rows where the operand is read as it lies
  };

  static Prepared prepare(const KernelSpec& spec, const Problem& p, const Plan& plan, const Device& device) {
    auto state = std::make_shared<State>();
    GemmParams& params = state->params;
    const bool in_one_cta = plan.schedule == Schedule::data_parallel;
    const int splits = in_one_cta ? 1 : std::max(plan.splits, 1);
    if (plan.splits > max_splits(p.k, 2)) {
      throw std::runtime_error(std::string(spec.name) + ": the plan has " + std::to_string(plan.splits) +
                               " splits, more than K=" + std::to_string(p.k) + " can be cut into");
    }
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes), spec.name,
          "raising the shared-memory limit");
    state->packed = packed_bytes(spec, p);
    Problem read = p;  // as the kernel reads it
    if (state->packed.a > 0)
      state->pack_a = pack_operand(read.a, spec.major_a == Major::k, p.m, read.a.row_stride, read.a.col_stride, p);
    if (state->packed.b > 0)
      state->pack_b =
          pack_operand(read.b, spec.major_b == Major::k, p.b_columns(), read.b.col_stride, read.b.row_stride, p);
    encode(spec, read, params);
    const bool in_cluster = reduces_in_cluster(spec, p, splits, device);
    state->partials = splits > 1 && !in_cluster;
    const Problem written = state->partials         ? partial_problem(p, splits)
                            : Config::kGateGradient ? gate_gradient_problem(p)
                                                    : p;
    params.output = in_cluster ? Output::cluster : output_of(written);
    params.d = params.output == Output::tma ? encode_d(spec, written) : CUtensorMap{};
    params.up = static_cast<int>(p.n);
    if (Config::kAux) {
      const Problem kept = z_problem(p);
      params.z_output = output_of(kept);
      params.z = params.z_output == Output::tma ? encode_d(spec, kept) : CUtensorMap{};
      params.z_layout = device::make_epilogue_params(kept, {});
    }
    params.c_by_tma = params.output == Output::tma && plan.schedule != Schedule::stream_k && loads_c_by_tma(written);
    params.batch_c = p.c.batch_stride != 0;
    params.c = params.c_by_tma ? encode_c(spec, written) : CUtensorMap{};
    state->cluster = Config::kCtas * (in_cluster ? splits : 1);
    params.cluster = device::FastDivisor(static_cast<uint32_t>(state->cluster));
    const int resident = resident_clusters(spec, state->cluster, device);
    set_schedule(p, plan, splits, in_cluster, resident, params);
    state->partial_bytes = state->partials ? size_of(DType::f32) * written.batch * p.m * p.n : 0;
    uint32_t clusters = params.tiles;
    if (params.stream_k.tiles > 0) {
      const int64_t slots = int64_t{params.stream_k.slots()} * Config::kCtas;
      state->partial_bytes = slots * kTileBytes;
      params.partial = encode_partial(spec, slots);
      clusters += params.stream_k.workers;
    }
    // Decode: every weight is read once, by one CTA, and is of no use in L2 afterwards.
    const bool streams = Config::kSwap && p.m <= Config::kTileN;
    params.policy_a = streams ? device::ptx::kEvictFirst : device::ptx::kEvictNormal;
    params.policy_b = device::ptx::kEvictNormal;
    state->ctas = static_cast<int>(std::min<int64_t>(clusters, resident)) * state->cluster;
    // Whole rounds, where every tile takes as long as its weights: 448 tiles on 132 SMs are 4 rounds of 112.
    if (Config::kSwap)
      state->ctas = static_cast<int>(ceil_div(clusters, ceil_div(clusters, resident))) * state->cluster;
    set_cuts(p, in_one_cta ? plan.splits : 1, params);
    if (params.cuts > 1) state->partial_bytes = state->ctas * kSumBytes;
    state->starts_early =
        state->packed.a + state->packed.b > 0 || starts_early(state->ctas, state->cluster, resident * state->cluster);
    return state;
  }

  static int64_t workspace_bytes(const void* prepared) {
    const State& state = *static_cast<const State*>(prepared);
    return state.packed.a + state.packed.b + state.partial_bytes;
  }

  static void run(const KernelSpec& spec, const Problem& p, const Plan&, const void* prepared, const Operands& o,
                  Workspace workspace, Stream stream) {
    const State& state = *static_cast<const State*>(prepared);
    GemmParams params = state.params;
    auto* const scratch = static_cast<unsigned char*>(workspace.data);
    const void* a = o.a;
    const void* b = o.b;
    if (state.packed.a + state.packed.b > 0) {
      pack(spec, state, o, scratch, stream);
      if (state.packed.a > 0) a = scratch;
      if (state.packed.b > 0) b = scratch + state.packed.a;
    }
    set_address(spec.name, params.a, Config::kSwap ? b : a);
    set_address(spec.name, params.b, Config::kSwap ? a : b);
    const auto epilogue = device::make_epilogue_params(p, o);
    void* const partial_tiles = scratch + state.packed.a + state.packed.b;
    if (params.output == Output::tma) set_address(spec.name, params.d, state.partials ? partial_tiles : o.d);
    if (params.c_by_tma) set_address(spec.name, params.c, o.c);
    if (Config::kAux) {
      if (params.z_output == Output::tma) set_address(spec.name, params.z, o.z);
      params.z_layout.d = o.z;
    }
    params.epilogue = state.partials ? device::make_partial_params(p, partial_tiles) : epilogue;
    const auto* const partials = static_cast<const float*>(partial_tiles);
    const bool cut_tiles = params.stream_k.tiles > 0;
    if (cut_tiles || params.cuts > 1) params.partial_tiles = static_cast<float*>(partial_tiles);
    if (cut_tiles) {
      if (!Config::kSwap) set_address(spec.name, params.partial, partial_tiles);
    }
    launch(spec, state, params, stream);
    if (state.partials) launch_split_k_reduce(spec.name, {epilogue, partials, p.batch, params.splits}, stream);
    if (cut_tiles) {
      launch_stream_k_reduce(spec.name,
                             {epilogue, partials, params.stream_k, params.scheduler, kTileRows, kTileColumns,
                              Config::kClusterM, Config::kClusterN, Config::kSwap},
                             stream);
    }
  }

 private:
  // How to copy x, whose strides become those of the packed matrix. `extent`, `mn_stride`: of its M or N; both strides
  // are members of x.
  static PackOperand pack_operand(Matrix& x, bool k_major, int64_t extent, int64_t& mn_stride, int64_t& k_stride,
                                  const Problem& p) {
    PackOperand o;
    int64_t& outer = k_major ? mn_stride : k_stride;
    int64_t& inner = k_major ? k_stride : mn_stride;
    o.rows = k_major ? extent : p.k;
    o.length = k_major ? p.k : extent;
    o.batch = x.batch_stride == 0 ? 1 : p.batch;
    o.pitch = pack_pitch(o.length);
    o.row_stride = outer;
    o.element_stride = inner;
    o.batch_stride = x.batch_stride;
    outer = o.pitch;
    inner = 1;
    x.batch_stride = x.batch_stride == 0 ? 0 : o.rows * o.pitch;
    x.pointer_align = 16;
    return o;
  }

  // Copies the operands that TMA can't read to the start of the workspace.
  static void pack(const KernelSpec& spec, const State& state, const Operands& o, unsigned char* scratch,
                   Stream stream) {
    PackOperand a = state.pack_a, b = state.pack_b;
    a.source = static_cast<const uint16_t*>(o.a);
    b.source = static_cast<const uint16_t*>(o.b);
    a.packed = reinterpret_cast<uint16_t*>(scratch);
    b.packed = reinterpret_cast<uint16_t*>(scratch + state.packed.a);
    launch_pack(spec.name, a, b, stream);
  }

  // Rows of the boxes that load an operand whose M or N extent is `extent`. A K-major tile that reaches beyond its
  // matrix is loaded only as far as the matrix goes: rows of zeros cost TMA more than data (H200, 32x4608x3584 in 64x48
  // tiles took 16.3 us, with M = 64 11.8). What lies in the other rows goes into rows or columns of the product that
  // nobody stores.
  template <class Tile, int kSlices, bool kHalves>
  static int box_rows(bool k_major, int64_t extent) {
    constexpr int kRows = kHalves ? Tile::kHalfRows : Tile::template kBoxRows<kSlices>;
    if (!k_major || (!kHalves && kSlices > 1 && Tile::template kSlicesRows<kSlices>)) return kRows;
    return static_cast<int>(std::min<int64_t>(kRows, extent));
  }

  // Descriptor of an operand, boxes of 128 bytes by box_rows(); adds what a stage takes of it. extent: of its M or N;
  // kHalves: gate and up, a box each.
  template <class Tile, int kSlices, bool kHalves>
  static CUtensorMap encode_operand(const KernelSpec& spec, const Matrix& x, bool k_major, int64_t extent,
                                    const Problem& p, uint32_t& stage_bytes) {
    constexpr int kRows = kHalves ? Tile::kHalfRows : Tile::template kBoxRows<kSlices>;
    const int rows = box_rows<Tile, kSlices, kHalves>(k_major, kHalves ? extent / 2 : extent);
    stage_bytes += static_cast<uint32_t>(Tile::kBytes / kRows * rows);
    return encode_tensor_map(spec.name, x, k_major ? p.k : extent, k_major ? extent : p.k, p.batch,
                             {device::kSwizzleElements, rows});
  }

  static void encode(const KernelSpec& spec, const Problem& p, GemmParams& params) {
    const Matrix& a = Config::kSwap ? p.b : p.a;
    const Matrix& b = Config::kSwap ? p.a : p.b;
    const auto [m, n] = Config::kSwap ? std::pair{p.b_columns(), p.m} : std::pair{p.m, p.b_columns()};
    params.stage_bytes = 0;
    constexpr bool kHalvesA = Config::kGated && Config::kSwap, kHalvesB = Config::kGated && !Config::kSwap;
    params.a = encode_operand<typename Mainloop::TileA, Config::kClusterN, kHalvesA>(spec, a, Config::kKMajorA, m, p,
                                                                                     params.stage_bytes);
    params.b = encode_operand<typename Mainloop::TileB, Config::kClusterM, kHalvesB>(spec, b, Config::kKMajorB, n, p,
                                                                                     params.stage_bytes);
    params.batch_a = a.batch_stride != 0;
    params.batch_b = b.batch_stride != 0;
    params.batch = static_cast<int>(p.batch);
  }

  static constexpr bool kBoxes = !Config::kSwap && device::BoxStore<Config::kOutN>::kAvailable;

  static Output output_of(const Problem& p) {
    return stores_by_tma(p) ? Output::tma : stores_by_rows(p) ? Output::rows : Output::general;
  }

  // Z as a D that packs its rows, gate and up as two batches.
  static Problem z_problem(const Problem& p) {
    Problem z = p;
    z.c = {};
    z.d.major = Major::n;
    z.d.row_stride = p.b_columns();
    z.d.col_stride = 1;
    z.d.batch_stride = p.gated ? p.n : p.batch == 1 ? 0 : p.m * p.n;
    z.d.pointer_align = 16;
    if (p.gated) z.batch = 2;
    return z;
  }

  // Z, which is C, and D of a gate's gradient: gate and up as two batches. supports() saw to it that TMA moves both.
  static Problem gate_gradient_problem(const Problem& p) {
    Problem halves = p;
    halves.batch = 2;
    halves.c.batch_stride = halves.d.batch_stride = p.n;
    return halves;
  }

  // The fp32 partials [split][batch][M][N] as the D of a batched problem.
  static Problem partial_problem(const Problem& p, int splits) {
    Problem partials = p;
    partials.batch = p.batch * splits;
    partials.c = {};
    partials.d = {};
    partials.d.dtype = DType::f32;
    partials.d.major = Major::n;
    partials.d.row_stride = p.n;
    partials.d.col_stride = 1;
    partials.d.batch_stride = p.m * p.n;
    partials.d.pointer_align = 16;
    return partials;
  }

  // TMA clips rows of D at multiples of 16 bytes only, so that N must be one.
  static bool stores_by_tma(const Problem& p) {
    return kBoxes && !(p.has_c() && device::BoxStore<Config::kOutN>::overlaps(size_of(p.d.dtype))) &&
           p.n * size_of(p.d.dtype) % 16 == 0 && p.d.major == Major::n && vector_bytes(p.d) >= 16 &&
           p.d.leading_dimension() < (int64_t{1} << 40) / size_of(p.d.dtype);
  }

  static bool stores_by_rows(const Problem& p) {
    return kBoxes && p.d.major == Major::n && p.d.col_stride == 1 && size_of(p.d.dtype) == 2;
  }

  // 16-bit C beside a 16-bit D that leaves by TMA; with C its boxes do not overlap. Not with stream-K, whose cut tiles
  // have no epilogue here.
  static bool loads_c_by_tma(const Problem& p) {
    return kBoxes && p.has_c() && size_of(p.c.dtype) == 2 && size_of(p.d.dtype) == 2 && p.c.major == Major::n &&
           tma_reads(p.c);
  }

  static CUtensorMap encode_c(const KernelSpec& spec, const Problem& p) {
    return encode_tensor_map(spec.name, p.c, p.n, p.m, p.batch, {device::store_box_columns(Config::kOutN, 2), 16});
  }

  static CUtensorMap encode_d(const KernelSpec& spec, const Problem& p) {
    const Box box{device::store_box_columns(Config::kOutN, size_of(p.d.dtype)), 16};
    return encode_tensor_map(spec.name, p.d, p.n, p.m, p.batch, box);
  }

  // A CTA's tile of D.
  static constexpr int kTileRows = Config::kSwap ? Config::kTileN : Config::kTileM;
  static constexpr int kTileColumns = Config::kSwap ? Config::kTileM : Config::kTileN;
  static constexpr int64_t kTileBytes = int64_t{4} * kTileRows * kTileColumns;

  // What a CTA keeps in the workspace of the cuts that it adds up itself.
  static constexpr int64_t kSumBytes = kConsumerWarpgroups * RunningSum<Config>::kFloats * 4;

  // The cuts that a CTA adds up itself; all but the last are whole K tiles.
  static void set_cuts(const Problem& p, int cuts, GemmParams& params) {
    if (cuts > kMaxCutsOfCta) throw std::runtime_error("wgmma kernels add up at most 8 cuts of K in a CTA");
    params.cuts = std::max(cuts, 1);
    for (int i = 0; i < params.cuts; ++i) {
      const int64_t begin = cut_begin(p.k, 2, i, params.cuts), end = cut_begin(p.k, 2, i + 1, params.cuts);
      params.cut_tiles[i] = static_cast<int>(ceil_div(end - begin, Config::kTileK));
    }
  }

  // Stream-K's partial tiles; not where the kernel writes them by ordinary stores.
  static CUtensorMap encode_partial(const KernelSpec& spec, int64_t slots) {
    if (Config::kSwap) return CUtensorMap{};
    Matrix tiles;
    tiles.dtype = DType::f32;
    tiles.row_stride = kTileColumns;
    tiles.col_stride = 1;
    tiles.batch_stride = kTileRows * kTileColumns;
    const Box box{device::store_box_columns(Config::kOutN, size_of(DType::f32)), 16};
    return encode_tensor_map(spec.name, tiles, kTileColumns, kTileRows, slots, box);
  }

  static void set_schedule(const Problem& p, const Plan& plan, int splits, bool in_cluster, int resident,
                           GemmParams& params) {
    const auto [m, n] = extents(p);
    const int in_grid = in_cluster ? 1 : splits;
    // With swapped operands the kernel's M is the problem's N.
    const bool along_m = (plan.raster == RasterOrder::along_m) != Config::kSwap;
    params.scheduler = device::make_tile_scheduler(m, n, in_grid, kClusterTileM, kClusterTileN,
                                                   along_m ? RasterOrder::along_m : RasterOrder::along_n, plan.swizzle);
    params.tiles = static_cast<uint32_t>(device::cta_count(m, n, p.batch, in_grid, kClusterTileM, kClusterTileN));
    params.splits = splits;
    params.k_cuts = device::make_k_cuts(p.k, 2, splits, Config::kTileK);
    params.stream_k = {};
    if (plan.schedule == Schedule::stream_k) {
      params.stream_k = device::make_stream_k(params.tiles, ceil_div(p.k, Config::kTileK), resident);
      params.tiles = params.stream_k.first;
    }
  }

  // Whether to start while the kernel before still runs, which hides the launch, 0.7 of 10 to 14 us. It loses where
  // many SMs stay without a CTA: those that the kernel before leaves over are both SMs of some pairs and none of
  // others, and a pair shares its way to L2. H200, us a block of decode layers: 64 CTAs 145 early | 119 not, 128 CTAs
  // 110.5 | 113.1. Clusters of two are whole pairs anyway: 72 to 112 CTAs gain 4 to 8 %.
  static constexpr bool starts_early(int ctas, int cluster, int resident) {
    return 4 * ctas >= 3 * resident || (cluster == 2 && 2 * ctas > resident);
  }

  // M and N of D as the kernel computes it, and what a cluster's tile has of them.
  static std::pair<int64_t, int64_t> extents(const Problem& p) {
    return Config::kSwap ? std::pair{p.n, p.m} : std::pair{p.m, p.n};
  }
  static constexpr int kClusterTileM = Config::kOutM * Config::kClusterM;
  static constexpr int kClusterTileN = Config::kOutN * Config::kClusterN;

  // Where all clusters of splits run at once. Those left over would take a wave of their own: 256x4096x14336 as 32
  // clusters of four 128x128 tiles, of which an H200 runs 30 at once, takes over 73 us, through the workspace 51.
  static bool reduces_in_cluster(const KernelSpec& spec, const Problem& p, int splits, const Device& device) {
    if (!splits_fit_cluster(spec.cluster, splits)) return false;
    const auto [m, n] = extents(p);
    return device::cta_count(m, n, p.batch, 1, kClusterTileM, kClusterTileN) <=
           count_resident_clusters(spec, Config::kCtas * splits);
  }

  static int resident_clusters(const KernelSpec& spec, int cluster, const Device& device) {
    if (cluster == 1) return device.sm_count;
    const int clusters = count_resident_clusters(spec, cluster);
    if (clusters == 0) {
      throw std::runtime_error(std::string(spec.name) + ": the device runs no cluster of " + std::to_string(cluster) +
                               " of its CTAs");
    }
    return clusters;
  }

  // Clusters that run at the same time: of 4 CTAs and more they do not fill every GPC.
  static int count_resident_clusters(const KernelSpec& spec, int cluster) {
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = launch_config(cluster, cluster, false, attributes, nullptr);
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config), spec.name, "asking for the resident clusters");
    return clusters;
  }

  static cudaLaunchConfig_t launch_config(int ctas, int cluster, bool early, cudaLaunchAttribute (&attributes)[2],
                                          Stream stream) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = early ? 1 : 0;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = Config::kSmemBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return config;
  }

  static void launch(const KernelSpec& spec, const State& state, GemmParams& params, Stream stream) {
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = launch_config(state.ctas, state.cluster, state.starts_early, attributes, stream);
    check(cudaLaunchKernelEx(&config, kKernel, params), spec.name, "launch");
  }
};

}  // namespace gemmx::sm90

// The Kernel of a row of instances.inc. NAME_config puts the registry name into the symbol of every kernel.
#define GEMMX_SM90_KERNEL(NAME, ...)                                                               \
  namespace gemmx::kernels {                                                                       \
  inline constexpr sm90::Row NAME##_row = GEMMX_SM90_ROW(__VA_ARGS__);                             \
  struct NAME##_config : sm90::Config<NAME##_row> {};                                              \
  extern const Kernel NAME;                                                                        \
  const Kernel NAME = {sm90::Launcher<NAME##_config>::prepare, sm90::Launcher<NAME##_config>::run, \
                       sm90::Launcher<NAME##_config>::workspace_bytes};                            \
  }

// The same with a function of its own in the epilogue (docs/custom_epilogue.md): FUNCTION is a class of the header that
// GEMMX_CUSTOM_EPILOGUES names.
#define GEMMX_SM90_CUSTOM_KERNEL(NAME, FUNCTION, ...)                                              \
  namespace gemmx::kernels {                                                                       \
  inline constexpr sm90::Row NAME##_row = GEMMX_SM90_ROW(__VA_ARGS__);                             \
  struct NAME##_config : sm90::Config<NAME##_row, FUNCTION> {};                                    \
  extern const Kernel NAME;                                                                        \
  const Kernel NAME = {sm90::Launcher<NAME##_config>::prepare, sm90::Launcher<NAME##_config>::run, \
                       sm90::Launcher<NAME##_config>::workspace_bytes};                            \
  }
