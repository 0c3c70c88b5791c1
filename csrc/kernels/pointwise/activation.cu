#include "kernels/pointwise/activation.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/splits.h"
#include "device/epilogue/activation_gradient.cuh"
#include "kernels/pointwise/row_chunk.cuh"

namespace gemmx::pointwise {
namespace {

struct ActivationParams {
  const float* z;
  void* d;
  void* kept;  // Z in D's type; nullptr: not kept
  int64_t rows, n, pitch;
  int64_t strips, blocks;  // of 32 lanes' columns; of a strip and kRowStep rows
  DType dtype;
  Activation activation;
  float arg0, arg1;
};

// kCount float32 neighbours of Z: two 16-byte loads where D's vectors have 8 elements.
template <int kVector>
struct ZChunk {
  float4 words[kVector / 4];

  __device__ __forceinline__ void load(const float* row, int64_t column, int64_t) {
#pragma unroll
    for (int i = 0; i < kVector / 4; ++i) words[i] = reinterpret_cast<const float4*>(row + column)[i];
  }
  __device__ __forceinline__ void values(float (&x)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector / 4; ++i) {
      x[4 * i] = words[i].x, x[4 * i + 1] = words[i].y, x[4 * i + 2] = words[i].z, x[4 * i + 3] = words[i].w;
    }
  }
};
template <>
struct ZChunk<0> {
  Chunk<0> chunk;

  __device__ __forceinline__ void load(const float* row, int64_t column, int64_t n) {
    chunk.load(row, 0, 1, column, n, DType::f32);
  }
  __device__ __forceinline__ void values(float (&x)[8]) const { chunk.values(x, DType::f32); }
};

template <bool kGated, int kVector>
__global__ void __launch_bounds__(kThreads) activation_kernel(const __grid_constant__ ActivationParams p) {
  constexpr int kN = kCount<kVector>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t z_columns = kGated ? 2 * p.n : p.n;
  for (int64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const int64_t row_block = block / p.strips;
    const int64_t column = column_of<kVector>(block - row_block * p.strips, lane, 0);
    if (column >= p.n) continue;
    const int64_t first = row_block * kRowStep + warp;
    ZChunk<kVector> gate[kRowsAtOnce], up[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const int64_t row = first + u * kWarps;
      if (row >= p.rows) continue;
      gate[u].load(p.z + row * p.pitch, column, p.n);
      if constexpr (kGated) up[u].load(p.z + row * p.pitch + p.n, column, p.n);
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const int64_t row = first + u * kWarps;
      if (row >= p.rows) continue;
      float x[kN], y[kN];
      gate[u].values(x);
      if constexpr (kGated) up[u].values(y);
      if (p.kept != nullptr) {
        store_chunk<kVector>(p.kept, row * z_columns, column, p.n, p.dtype, x);
        if constexpr (kGated) {
          // The row of `up` begins n elements on, so that the bound of its columns is still n.
          store_chunk<kVector>(p.kept, row * z_columns + p.n, column, p.n, p.dtype, y);
        }
      }
      device::with_activation(p.activation, [&](auto tag) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          x[i] = device::activate(decltype(tag)::value, x[i], p.arg0, p.arg1);
          if constexpr (kGated) x[i] = __fmul_rn(x[i], y[i]);
        }
      });
      store_chunk<kVector>(p.d, row * p.n, column, p.n, p.dtype, x);
    }
  }
}

template <int kVector>
void launch(bool gated, ActivationParams p, cudaStream_t stream) {
  p.strips = ceil_div(p.n, 32 * kCount<kVector>);
  p.blocks = p.strips * ceil_div(p.rows, kRowStep);
  // One block for each strip of kRowStep rows; a grid has at most 2^31 - 1 blocks, and beyond that they loop.
  const auto grid = static_cast<unsigned>(std::min<int64_t>(p.blocks, 2147483647));
  if (gated) {
    activation_kernel<true, kVector><<<grid, kThreads, 0, stream>>>(p);
  } else {
    activation_kernel<false, kVector><<<grid, kThreads, 0, stream>>>(p);
  }
}

}  // namespace

void launch_activation(const Problem& problem, const float* z, int64_t pitch, const Operands& operands, Stream stream) {
  ActivationParams p{};
  p.z = z;
  p.d = operands.d;
  p.kept = problem.aux ? operands.z : nullptr;
  p.rows = problem.batch * problem.m;
  p.n = problem.n;
  p.pitch = pitch;
  p.dtype = problem.d.dtype;
  p.activation = problem.activation;
  p.arg0 = operands.activation_args[0];
  p.arg1 = operands.activation_args[1];
  // D and Z are the allocator's, 16-byte aligned and packed, so that n alone decides.
  const int vector = p.pitch % 4 != 0 ? 0 : 16 / size_of(p.dtype);
  if (vector == 8 && p.n % 8 == 0) {
    launch<8>(problem.gated, p, stream);
  } else if (vector == 4 && p.n % 4 == 0) {
    launch<4>(problem.gated, p, stream);
  } else {
    launch<0>(problem.gated, p, stream);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error("gemmx: launch of the activation failed: " + std::string(cudaGetErrorString(error)));
  }
}

}  // namespace gemmx::pointwise
