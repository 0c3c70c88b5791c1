// Launches a kernel so that it may start while the one before it still runs (programmatic dependent launch): its
// threads wait for that one themselves (griddepcontrol.cuh).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gemmx::sm90 {

// name: of the kernel it belongs to; what: "packing copy".
template <class Params>
void launch_early(const char* name, const char* what, void (*kernel)(Params), int64_t blocks, int threads,
                  const Params& params, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (const cudaError_t error = cudaLaunchKernelEx(&config, kernel, params); error != cudaSuccess) {
    throw std::runtime_error(std::string(name) + ": launch of the " + what + " failed: " + cudaGetErrorString(error));
  }
}

}  // namespace gemmx::sm90
