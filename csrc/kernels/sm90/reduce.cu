#include "kernels/sm90/reduce.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "core/splits.h"

namespace gemmx::sm90 {

struct AllRows;  // names the instance

void launch_split_k_reduce(const char* kernel, const device::ReduceParams& params, cudaStream_t stream) {
  const device::EpilogueParams& e = params.epilogue;
  const int64_t blocks = ceil_div(params.batch * e.m * ceil_div(e.n, 4), device::kReduceThreads);
  device::split_k_reduce_kernel<AllRows><<<static_cast<unsigned>(blocks), device::kReduceThreads, 0, stream>>>(params);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string(kernel) +
                             ": launch of the split-K reduction failed: " + cudaGetErrorString(error));
  }
}

}  // namespace gemmx::sm90
