#include "kernels/sm90/reduce.h"

#include "core/splits.h"
#include "kernels/sm90/early_launch.cuh"

namespace gemmx::sm90 {

namespace {

struct AllRows;  // names the instance

__global__ void __launch_bounds__(device::kStreamKReduceThreads)
    stream_k_reduce_kernel(const __grid_constant__ device::StreamKReduceParams params) {
  device::stream_k_reduce(params);
}

}  // namespace

void launch_split_k_reduce(const char* kernel, const device::ReduceParams& params, cudaStream_t stream) {
  const device::EpilogueParams& e = params.epilogue;
  const int64_t blocks = ceil_div(params.batch * e.m * ceil_div(e.n, 4), device::kReduceThreads);
  launch_early(kernel, "reduction of partials", device::split_k_reduce_kernel<AllRows, true>, blocks,
               device::kReduceThreads, params, stream);
}

void launch_stream_k_reduce(const char* kernel, const device::StreamKReduceParams& params, cudaStream_t stream) {
  const int64_t vectors = params.rows * params.columns / 4;
  const int64_t ctas = int64_t{params.stream_k.tiles} * params.cluster_m * params.cluster_n;
  const int64_t blocks = ctas * ceil_div(vectors, device::kStreamKReduceThreads);
  launch_early(kernel, "reduction of partials", stream_k_reduce_kernel, blocks, device::kStreamKReduceThreads, params,
               stream);
}

}  // namespace gemmx::sm90
