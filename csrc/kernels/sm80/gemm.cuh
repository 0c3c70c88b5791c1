// mma.sync GEMM, fp16 or bf16 in, fp32 accumulation:
//   D = act(alpha * A @ B + beta * C + bias)        A (batch, M, K)  B (batch, K, N)  C, D (batch, M, N)
//
// and the forms that gate or keep the pre-activation (form_rows.cuh). A gated kernel's tile has columns of gate in its
// first half and the same columns of up in its second (mma_multistage.cuh); the tile of D is half as wide.
//
// Least architecture sm_80. One CTA computes one tile of D, or, with split-K, one cut of K of it as fp32
// partials that split_k_reduce.cuh adds in ascending order.
//
// Alignment: `aligned` rows need 16 bytes at the start of every row of A and B; `any` rows take every stride
// and alignment (device/mainloop/operand_loader.cuh). C, D and bias: any.
// Warps: all alike, kWarpsM x kWarpsN over the tile; each loads, multiplies and stores.
// Shared memory: [stage 0: A, B] ... [stage kStages - 1: A, B], reused by the epilogue as one fp32 buffer per warp.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

#include "core/splits.h"
#include "device/epilogue/split_k_reduce.cuh"
#include "device/epilogue/warp_tile_store.cuh"
#include "device/mainloop/mma_multistage.cuh"
#include "device/scheduler/tile_scheduler.cuh"
#include "kernels/sm80/specs.h"

namespace gemmx::sm80 {

// A row of instances.inc as types and constants.
template <const Row& kRow>
struct Config {
  static constexpr DType kType = kRow.dtype;
  static constexpr int kTileM = kRow.tile.m, kTileN = kRow.tile.n, kTileK = kRow.tile.k;
  static constexpr int kWarpsM = kRow.warps_m, kWarpsN = kRow.warps_n;
  static constexpr int kStages = kRow.stages;
  static constexpr int kCtasPerSm = kRow.ctas_per_sm;
  static constexpr bool kKMajorA = kRow.major_a == Major::k, kKMajorB = kRow.major_b == Major::k;
  static constexpr bool kAligned = kRow.access == Access::aligned;
  static constexpr bool kGated = is_gated(kRow.form), kAux = is_aux(kRow.form), kPlain = kRow.form == Form::plain;
  static constexpr int kOutN = kGated ? kTileN / 2 : kTileN;  // of D
  static constexpr int kSmemBytes = smem_bytes(kRow);

  static_assert(kRow.form != Form::custom, "functions of a kernel's own are the wgmma family's");
};

struct GemmParams {
  device::OperandParams a, b;
  device::EpilogueParams epilogue;
  device::TileScheduler scheduler;
  int64_t k;
  int64_t batch;
  device::EpilogueParams z;  // where the kernel keeps Z
};

template <class Config>
struct WarpStore {
  using Mainloop = device::MmaMultistage<Config>;
  template <int kBlocks>
  using Store = device::WarpTileStore<Mainloop::kBlocksM, Mainloop::kWarpN, kBlocks, Config::kGated, Config::kAux>;

  // All rows at once where they fit into the mainloop's shared memory, otherwise half of them, and so on.
  static constexpr int blocks_per_pass() {
    int blocks = Mainloop::kBlocksM;
    while (blocks > 1 && 16 * blocks * Store<1>::kPitch * 4 * (Mainloop::kThreads / 32) > Config::kSmemBytes)
      blocks /= 2;
    return blocks;
  }
  using Type = Store<blocks_per_pass()>;
};

template <class Config>
union SharedStorage {
  unsigned char stages[Config::kStages][device::MmaMultistage<Config>::kStageBytes];
  unsigned char epilogue[device::MmaMultistage<Config>::kThreads / 32][WarpStore<Config>::Type::kBytes];
};

template <class Config>
__global__ void __launch_bounds__(device::MmaMultistage<Config>::kThreads, Config::kCtasPerSm)
    gemm_kernel(const __grid_constant__ GemmParams params) {
  using Mainloop = device::MmaMultistage<Config>;
  using Store = typename WarpStore<Config>::Type;
  static_assert(sizeof(SharedStorage<Config>) == Config::kSmemBytes, "smem_bytes() of specs.h must be what is used");
  extern __shared__ __align__(128) unsigned char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<Config>*>(smem);

  const device::TileCoord tile = params.scheduler.coord(blockIdx.x);
  const int64_t m = int64_t{tile.m} * Config::kTileM;
  const int64_t n = int64_t{tile.n} * Config::kOutN;
  const int64_t splits = params.scheduler.splits;
  const int64_t k_begin = cut_begin(params.k, device::kElementBytes, tile.split, splits);
  const int64_t k_end = cut_begin(params.k, device::kElementBytes, tile.split + 1, splits);

  typename Mainloop::Accumulators acc = {};
  Mainloop::run(acc, params.a, params.b, tile.batch, m, n, k_begin, k_end,
                static_cast<uint32_t>(__cvta_generic_to_shared(smem)));

  // Partials are planes [split][batch]; with one split the plane is the batch.
  const int warp = threadIdx.x / 32;
  const int64_t plane = tile.split * params.batch + tile.batch;
  Store::run(params.epilogue, params.z, plane, m + warp % Config::kWarpsM * Mainloop::kWarpM,
             n + warp / Config::kWarpsM * Mainloop::kWarpOutN, acc, reinterpret_cast<float*>(shared.epilogue[warp]));
}

inline void check(cudaError_t error, const char* name, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(name) + ": " + what + " failed: " + cudaGetErrorString(error));
}

// `mn_stride` and `k_stride` are the operand's strides along M or N and along K.
inline device::OperandParams operand_params(const void* data, const Matrix& x, bool k_major, int64_t extent_mn,
                                            int64_t mn_stride, int64_t k_stride) {
  const int64_t outer = k_major ? mn_stride : k_stride;
  const int64_t inner = k_major ? k_stride : mn_stride;
  const int vector = x.major == Major::none ? device::kElementBytes : vector_bytes(x);
  return {data, outer, inner, x.batch_stride, extent_mn, vector};
}

// Gate and up, N columns each. Where they lie side by side in a row of b, up must be aligned for the pieces, too.
inline device::OperandParams gate_and_up_params(const void* data, const Problem& p, bool k_major) {
  device::OperandParams b = operand_params(data, p.b, k_major, p.n, p.b.col_stride, p.b.row_stride);
  while (!k_major && p.n * device::kElementBytes % b.vector_bytes != 0) b.vector_bytes /= 2;
  return b;
}

// Z: rows of D's dtype, packed; gate and up are two batches that share them.
inline device::EpilogueParams z_params(const Problem& p, void* z) {
  device::EpilogueParams e;
  e.d = z;
  e.m = p.m;
  e.n = p.n;
  e.d_row_stride = p.b_columns();
  e.d_col_stride = 1;
  e.d_batch_stride = p.gated ? p.n : p.m * p.n;
  e.d_dtype = p.d.dtype;
  e.d_vector = p.n % 4 == 0 ? 4 : p.n % 2 == 0 ? 2 : 1;
  return e;
}

template <class Config>
Prepared prepare(const KernelSpec& spec, const Problem&, const Plan&, const Device&) {
  check(cudaFuncSetAttribute(gemm_kernel<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes),
        spec.name, "raising the shared-memory limit");
  return nullptr;
}

template <class Config>
void run(const KernelSpec& spec, const Problem& p, const Plan& plan, const void*, const Operands& o,
         Workspace workspace, Stream stream) {
  const int64_t splits = plan.splits > 1 ? plan.splits : 1;
  const int64_t ctas = device::cta_count(p.m, p.n, p.batch, splits, Config::kTileM, Config::kOutN);
  if (splits > max_splits(p.k, device::kElementBytes) || ctas > device::kMaxGridX) {
    throw std::runtime_error(std::string(spec.name) + ": the plan has " + std::to_string(splits) +
                             " splits, more than K=" + std::to_string(p.k) + " or one launch can have");
  }
  const auto epilogue = device::make_epilogue_params(p, o);
  GemmParams params;
  params.a = operand_params(o.a, p.a, Config::kKMajorA, p.m, p.a.row_stride, p.a.col_stride);
  params.b = Config::kGated ? gate_and_up_params(o.b, p, Config::kKMajorB)
                            : operand_params(o.b, p.b, Config::kKMajorB, p.n, p.b.col_stride, p.b.row_stride);
  params.epilogue = splits > 1 ? device::make_partial_params(p, workspace.data) : epilogue;
  if (Config::kAux) params.z = z_params(p, o.z);
  params.scheduler =
      device::make_tile_scheduler(p.m, p.n, splits, Config::kTileM, Config::kOutN, plan.raster, plan.swizzle);
  params.k = p.k;
  params.batch = p.batch;
  constexpr int kThreads = device::MmaMultistage<Config>::kThreads;
  gemm_kernel<Config><<<static_cast<unsigned>(ctas), kThreads, Config::kSmemBytes, stream>>>(params);
  check(cudaGetLastError(), spec.name, "launch");
  if constexpr (Config::kPlain) {
    if (splits == 1) return;
    const device::ReduceParams reduce{epilogue, static_cast<const float*>(workspace.data), p.batch,
                                      static_cast<int>(splits)};
    const int64_t blocks = ceil_div(p.batch * p.m * ceil_div(p.n, 4), device::kReduceThreads);
    device::split_k_reduce_kernel<Config><<<static_cast<unsigned>(blocks), device::kReduceThreads, 0, stream>>>(reduce);
    check(cudaGetLastError(), spec.name, "launch of the split-K reduction");
  }
}

}  // namespace gemmx::sm80

// The Kernel of a row of instances.inc. NAME_config puts the registry name into the symbol of every kernel.
#define GEMMX_SM80_KERNEL(NAME, ...)                                            \
  namespace gemmx::kernels {                                                    \
  inline constexpr sm80::Row NAME##_row = GEMMX_SM80_ROW(__VA_ARGS__);          \
  struct NAME##_config : sm80::Config<NAME##_row> {};                           \
  extern const Kernel NAME;                                                     \
  const Kernel NAME = {sm80::prepare<NAME##_config>, sm80::run<NAME##_config>}; \
  }
