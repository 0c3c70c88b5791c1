#include "kernels/pointwise/activation_backward.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/splits.h"
#include "device/epilogue/activation_gradient.cuh"
#include "kernels/pointwise/row_chunk.cuh"

namespace gemmx::pointwise {
namespace {

struct BackwardParams {
  RowsDesc grad, saved;
  void* dz;
  float* partials;  // (row blocks, columns); nullptr: no sums
  int64_t batch, m, n;
  int64_t strips, rows_per_block;
  DType dtype;
  Activation activation;
  float arg0, arg1;
};

// The rows and strips of a call, and how the grid cuts them.
struct Grid {
  int vector;  // of Chunk
  int64_t strips, rows_per_block, row_blocks;
};

bool rows_start_on_vectors(const RowsDesc& x, int vector) {
  return x.col_stride == 1 && x.row_stride % vector == 0 && x.batch_stride % vector == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

Grid grid_of(const CheckedBackward& call) {
  Grid grid{};
  const int vector = 16 / size_of(call.dtype);
  const bool vectors =
      call.n % vector == 0 && rows_start_on_vectors(call.grad, vector) && rows_start_on_vectors(call.saved, vector);
  grid.vector = vectors ? vector : 0;
  const int64_t rows = call.batch * call.m;
  grid.strips = ceil_div(call.n, 32 * (vectors ? vector : kCount<0>));
  // About 2048 blocks, four waves or more of any GPU, where there are as many rows: with more the partial sums would
  // cost more than the tail of the last wave. At most 512 of them are added in a row. No number of SMs enters, so that
  // the order of the sums is the same on every GPU.
  const int64_t row_blocks = std::clamp<int64_t>(2048 / grid.strips, 1, 512);
  grid.rows_per_block = ceil_div(ceil_div(rows, row_blocks), kRowStep) * kRowStep;
  grid.row_blocks = ceil_div(rows, grid.rows_per_block);
  return grid;
}

template <bool kGated, int kVector>
__global__ void __launch_bounds__(kThreads) activation_backward_kernel(const __grid_constant__ BackwardParams p) {
  constexpr int kN = kCount<kVector>;
  constexpr int kHalves = kGated ? 2 : 1;  // of dZ: gate, up
  __shared__ float warp_sums[kWarps][kHalves][kN][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row_block = blockIdx.x / p.strips;
  const int64_t strip = blockIdx.x - row_block * p.strips;
  const int64_t column = column_of<kVector>(strip, lane, 0);
  const int64_t rows = p.batch * p.m;
  const int64_t begin = row_block * p.rows_per_block + warp;
  const int64_t end = column >= p.n ? begin : std::min(rows, row_block * p.rows_per_block + p.rows_per_block);
  const auto start_of = [&](const RowsDesc& x, int64_t row) {
    const int64_t batch = p.batch > 1 ? row / p.m : 0;
    return batch * x.batch_stride + (row - batch * p.m) * x.row_stride;
  };

  float sums[kHalves][kN] = {};
  for (int64_t first = begin; first < end; first += kRowStep) {
    Chunk<kVector> grad[kRowsAtOnce], saved[kRowsAtOnce], up[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const int64_t row = first + u * kWarps;
      if (row >= end) continue;
      grad[u].load(p.grad.data, start_of(p.grad, row), p.grad.col_stride, column, p.n, p.dtype);
      const int64_t start = start_of(p.saved, row);
      saved[u].load(p.saved.data, start, p.saved.col_stride, column, p.n, p.dtype);
      if constexpr (kGated) {
        up[u].load(p.saved.data, start + p.n * p.saved.col_stride, p.saved.col_stride, column, p.n, p.dtype);
      }
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const int64_t row = first + u * kWarps;
      if (row >= end) continue;
      float g[kN], z[kN], d_up[kN];
      grad[u].values(g, p.dtype);
      saved[u].values(z, p.dtype);
      if constexpr (kGated) {
        float y[kN];
        up[u].values(y, p.dtype);
        device::with_activation(p.activation, [&](auto tag) {
          constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
          for (int i = 0; i < kN; ++i) {
            d_up[i] = g[i] * device::activate(kActivation, z[i], p.arg0, p.arg1);
            z[i] = device::gradient_of_input<kActivation>(g[i] * y[i], z[i], p.arg0, p.arg1);
          }
        });
      } else {
        device::with_activation(p.activation, [&](auto tag) {
          constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
          for (int i = 0; i < kN; ++i) z[i] = device::gradient_of_saved<kActivation>(g[i], z[i], p.arg0, p.arg1);
        });
      }
      store_chunk<kVector>(p.dz, row * (kHalves * p.n), column, p.n, p.dtype, z);
      if constexpr (kGated) store_chunk<kVector>(p.dz, row * (kHalves * p.n) + p.n, column, p.n, p.dtype, d_up);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        sums[0][i] += z[i];
        if constexpr (kGated) sums[1][i] += d_up[i];
      }
    }
  }

  if (p.partials == nullptr) return;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int i = 0; i < kN; ++i) warp_sums[warp][half][i][lane] = sums[half][i];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kHalves * kN * 32; at += kThreads) {
    const int half = at / (kN * 32), i = at / 32 % kN, of_lane = at % 32;
    const int64_t c = column_of<kVector>(strip, of_lane, i);
    if (c >= p.n) continue;
    float sum = warp_sums[0][half][i][of_lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum += warp_sums[w][half][i][of_lane];
    p.partials[row_block * (kHalves * p.n) + half * p.n + c] = sum;
  }
}

struct SumParams {
  const float* partials;
  float* sums;
  int64_t row_blocks, columns;
};

// 32 columns a block, whose 8 warps share the up to 512 partials of a column: a thread that added them alone would wait
// for memory that many times.
__global__ void __launch_bounds__(kThreads) column_sum_kernel(const __grid_constant__ SumParams p) {
  __shared__ float group_sums[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  const int64_t begin = p.row_blocks * warp / kWarps, end = p.row_blocks * (warp + 1) / kWarps;
  float sum = 0.0f;
  if (column < p.columns) {
#pragma unroll 8
    for (int64_t b = begin; b < end; ++b) sum += p.partials[b * p.columns + column];
  }
  group_sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.columns) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += group_sums[w][lane];
  p.sums[column] = sum;
}

void check_launch(const char* what) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error("gemmx: launch of the " + std::string(what) +
                             " failed: " + std::string(cudaGetErrorString(error)));
  }
}

unsigned grid_size(int64_t blocks) {
  if (blocks > 2147483647) throw std::runtime_error("gemmx: the tensors have more columns than one launch can cover");
  return static_cast<unsigned>(blocks);
}

template <bool kGated>
void launch(int vector, unsigned grid, const BackwardParams& p, cudaStream_t stream) {
  if (vector == 8) {
    activation_backward_kernel<kGated, 8><<<grid, kThreads, 0, stream>>>(p);
  } else if (vector == 4) {
    activation_backward_kernel<kGated, 4><<<grid, kThreads, 0, stream>>>(p);
  } else {
    activation_backward_kernel<kGated, 0><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

int64_t column_sums_workspace(const CheckedBackward& call) {
  return grid_of(call).row_blocks * call.columns() * static_cast<int64_t>(sizeof(float));
}

void launch_activation_backward(const CheckedBackward& call, void* dz, float* dbias, void* workspace, Stream stream) {
  const Grid grid = grid_of(call);
  BackwardParams p{};
  p.grad = call.grad;
  p.saved = call.saved;
  p.dz = dz;
  p.partials = dbias == nullptr ? nullptr : static_cast<float*>(workspace);
  p.batch = call.batch;
  p.m = call.m;
  p.n = call.n;
  p.strips = grid.strips;
  p.rows_per_block = grid.rows_per_block;
  p.dtype = call.dtype;
  p.activation = call.activation;
  p.arg0 = call.activation_args[0];
  p.arg1 = call.activation_args[1];
  const unsigned blocks = grid_size(grid.strips * grid.row_blocks);
  if (call.gated) {
    launch<true>(grid.vector, blocks, p, stream);
  } else {
    launch<false>(grid.vector, blocks, p, stream);
  }
  check_launch("backward of the activation");
  if (dbias == nullptr) return;
  const SumParams sums{p.partials, dbias, grid.row_blocks, call.columns()};
  column_sum_kernel<<<grid_size(ceil_div(sums.columns, 32)), kThreads, 0, stream>>>(sums);
  check_launch("column sums");
}

}  // namespace gemmx::pointwise
