#include "core/out_of_memory.h"

#include <atomic>
#include <cstdio>
#include <stdexcept>

#ifdef GEMMX_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gemmx {
namespace {

std::atomic<ThrowOutOfMemory> throw_out_of_memory{nullptr};

std::string mebibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f MiB", bytes / (1 << 20));
  return text;
}

// " (80.00 MiB free of 143771.00 MiB)" on the current device. Throws where the device answers with a fault.
std::string free_memory() {
#ifdef GEMMX_HAS_CUDA
  size_t free = 0, total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess) {
    throw std::runtime_error(std::string("an allocation failed because the CUDA context is unusable: ") +
                             cudaGetErrorString(error));
  }
  return " (" + mebibytes(static_cast<double>(free)) + " free of " + mebibytes(static_cast<double>(total)) + ")";
#else
  return "";
#endif
}

}  // namespace

void set_out_of_memory(ThrowOutOfMemory f) { throw_out_of_memory = f; }

void throw_allocation_failed(const char* what, int64_t bytes, int device_index) {
  const std::string message = "CUDA out of memory: gemmx asked torch for " + mebibytes(static_cast<double>(bytes)) +
                              " for " + what + " on cuda:" + std::to_string(device_index) + free_memory();
  if (const ThrowOutOfMemory f = throw_out_of_memory; f != nullptr) f(message);
  throw std::runtime_error(message);
}

}  // namespace gemmx
