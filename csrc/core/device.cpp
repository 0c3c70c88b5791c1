#include "core/device.h"

#include <deque>
#include <mutex>
#include <stdexcept>

#ifdef GEMMX_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gemmx {

#ifdef GEMMX_HAS_CUDA
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

int attribute(cudaDeviceAttr attr, int ordinal) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attr, ordinal), "cudaDeviceGetAttribute");
  return value;
}

Device query(int ordinal) {
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, ordinal), "cudaGetDeviceProperties");
  Device d;
  d.name = prop.name;
  d.capability = 10 * prop.major + prop.minor;
  d.sm_count = prop.multiProcessorCount;
  d.smem_per_block = static_cast<int>(prop.sharedMemPerBlockOptin);
  d.smem_per_sm = static_cast<int>(prop.sharedMemPerMultiprocessor);
  d.l2_bytes = prop.l2CacheSize;
  d.clock_ghz = attribute(cudaDevAttrClockRate, ordinal) * 1e-6;  // kHz
  // kHz x bits, two transfers a clock
  d.dram_gbps = 2.0 * attribute(cudaDevAttrMemoryClockRate, ordinal) * 1e3 *
                attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8 * 1e-9;
  return d;
}

}  // namespace

const Device& cuda_device(int ordinal) {
  static std::mutex mutex;
  static std::deque<Device> devices;  // a deque never moves its elements
  const std::lock_guard lock(mutex);
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (ordinal < 0 || ordinal >= count) {
    throw std::runtime_error("device: got ordinal " + std::to_string(ordinal) + ", this process sees " +
                             std::to_string(count) + " CUDA devices");
  }
  while (static_cast<int>(devices.size()) <= ordinal) devices.push_back(query(static_cast<int>(devices.size())));
  return devices[ordinal];
}
#else
const Device& cuda_device(int) {
  throw std::runtime_error(
      "gemmx was built without CUDA (GEMMX_CUDA_ARCHS=none); build it with GEMMX_CUDA_ARCHS naming your GPU, "
      "or use a device profile");
}
#endif

}  // namespace gemmx
