// Second kernel of split-K: D = epilogue(sum of the partials in ascending order of K), fp32.
//
// Least architecture sm_80. Four neighbouring columns of one row per thread; partials are
// [split][batch][M][N] in the workspace. No shared memory.
#pragma once

#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/griddepcontrol.cuh"

namespace gemmx::device {

struct ReduceParams {
  EpilogueParams epilogue;
  const float* partials;
  int64_t batch;
  int splits;
};

inline constexpr int kReduceThreads = 256;

// Config only names the instance: every kernel's symbol contains its registry name. kStartsEarly: launched while the
// kernel that writes the partials still runs (programmatic dependent launch, sm_90+).
template <class Config, bool kStartsEarly = false>
__global__ void __launch_bounds__(kReduceThreads) split_k_reduce_kernel(const __grid_constant__ ReduceParams params) {
  if constexpr (kStartsEarly) ptx::wait_for_earlier_kernels();
  const EpilogueParams& e = params.epilogue;
  const int64_t groups = (e.n + 3) / 4;
  const int64_t plane = e.m * e.n;
  const int64_t index = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  if (index >= params.batch * e.m * groups) return;
  const int64_t row = index / groups;  // of all batches
  const int64_t n = (index - row * groups) * 4;
  const int64_t batch = row / e.m;
  const int count = e.n - n < 4 ? static_cast<int>(e.n - n) : 4;

  float sum[4] = {};
  const float* at = params.partials + row * e.n + n;
#pragma unroll 8
  for (int split = 0; split < params.splits; ++split, at += params.batch * plane) {
    float x[4];
    load_row4(x, at, 0, 1, DType::f32, count, e.n % 4 == 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = split == 0 ? x[i] : __fadd_rn(sum[i], x[i]);
  }
  epilogue_store_rows<1>(e, batch, row - batch * e.m, 0, n, sum);
}

}  // namespace gemmx::device
