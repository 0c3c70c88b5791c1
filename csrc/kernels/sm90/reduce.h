// The second launch of split-K where the splits do not fit into a cluster, and of stream-K; one kernel each for all
// rows of the family.
#pragma once

#include "device/epilogue/split_k_reduce.cuh"
#include "device/epilogue/stream_k_reduce.cuh"

namespace gemmx::sm90 {

// Both throw std::runtime_error naming `kernel`, whose partials are added.
void launch_split_k_reduce(const char* kernel, const device::ReduceParams& params, struct CUstream_st* stream);
void launch_stream_k_reduce(const char* kernel, const device::StreamKReduceParams& params, struct CUstream_st* stream);

}  // namespace gemmx::sm90
