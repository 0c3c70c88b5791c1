#include "kernels/mma_rate/mma_rate.h"

#include <cuda_runtime.h>

#include <stdexcept>

#include "device/ptx/mma_sync.cuh"

namespace gemmx {
namespace {

constexpr int kThreads = 256, kBlocksM = 4, kBlocksN = 8;  // a warp's 64 x 64

// Two bf16 of magnitude 1 to 2 and either sign: a card runs faster on zeros, as no bit changes.
__device__ uint32_t random_pair(uint32_t seed) {
  uint32_t x = seed * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return (x & 0x807f807fu) | 0x3f803f80u;
}

__global__ void __launch_bounds__(kThreads, 1) mma_rate_kernel(int iterations, float* sink) {
  uint32_t a[kBlocksM][4], b[kBlocksN][2];
  const uint32_t seed = (blockIdx.x * kThreads + threadIdx.x) * 64;
#pragma unroll
  for (int i = 0; i < kBlocksM * 4; ++i) a[i / 4][i % 4] = random_pair(seed + i);
#pragma unroll
  for (int j = 0; j < kBlocksN * 2; ++j) b[j / 2][j % 2] = random_pair(seed + 32 + j);
  float acc[kBlocksM][kBlocksN][4] = {};
#pragma unroll 1
  for (int iteration = 0; iteration < iterations; ++iteration) {
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) {
        device::ptx::mma_m16n8k16<DType::bf16>(acc[i][j], a[i], b[j][0], b[j][1]);
      }
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kBlocksM * kBlocksN * 4; ++i) sum += acc[i / (kBlocksN * 4)][i / 4 % kBlocksN][i % 4];
  if (sum == 0.123f) *sink = sum;
}

}  // namespace

int64_t mma_rate_flops() { return int64_t{kThreads / 32} * kBlocksM * kBlocksN * (2 * 16 * 8 * 16); }

void mma_rate(int iterations, void* sink, int device_sm_count, Stream stream) {
  mma_rate_kernel<<<static_cast<unsigned>(device_sm_count), kThreads, 0, stream>>>(iterations,
                                                                                   static_cast<float*>(sink));
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("mma_rate: the launch failed: ") + cudaGetErrorString(error));
  }
}

}  // namespace gemmx
