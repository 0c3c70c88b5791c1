#include "kernels/sm90/reduce.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "core/splits.h"

namespace gemmx::sm90 {

namespace {

struct AllRows;  // names the instance

__global__ void __launch_bounds__(device::kStreamKReduceThreads)
    stream_k_reduce_kernel(const __grid_constant__ device::StreamKReduceParams params) {
  device::stream_k_reduce(params);
}

// Starts while the kernel that writes the partials still runs, and waits for it itself.
template <class Params>
void launch(const char* name, void (*kernel)(Params), int64_t blocks, int threads, const Params& params,
            cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params); error != cudaSuccess) {
    throw std::runtime_error(std::string(name) +
                             ": launch of the reduction of partials failed: " + cudaGetErrorString(error));
  }
}

}  // namespace

void launch_split_k_reduce(const char* kernel, const device::ReduceParams& params, cudaStream_t stream) {
  const device::EpilogueParams& e = params.epilogue;
  const int64_t blocks = ceil_div(params.batch * e.m * ceil_div(e.n, 4), device::kReduceThreads);
  launch(kernel, device::split_k_reduce_kernel<AllRows, true>, blocks, device::kReduceThreads, params, stream);
}

void launch_stream_k_reduce(const char* kernel, const device::StreamKReduceParams& params, cudaStream_t stream) {
  const int64_t vectors = params.rows * params.columns / 4;
  const int64_t ctas = int64_t{params.stream_k.tiles} * params.cluster_m * params.cluster_n;
  const int64_t blocks = ctas * ceil_div(vectors, device::kStreamKReduceThreads);
  launch(kernel, stream_k_reduce_kernel, blocks, device::kStreamKReduceThreads, params, stream);
}

}  // namespace gemmx::sm90
