// Device: what selection needs to know of a GPU. Filled from a real GPU, or from a named profile in
// python/gemmx/select/profiles.py, so that selection for any GPU runs on a machine with none.
#pragma once

#include <cstdint>
#include <string>

#include "core/types.h"

namespace gemmx {

struct Device {
  std::string name;    // as the driver prints it, e.g. "NVIDIA H200"
  int capability = 0;  // 10 * major + minor: 80, 90, 100, 120
  int sm_count = 0;
  int smem_per_block = 0;  // bytes of dynamic shared memory a block may opt in to
  int smem_per_sm = 0;     // bytes
  int64_t l2_bytes = 0;
  double clock_ghz = 0;  // boost clock of the SMs
  double dram_gbps = 0;  // peak DRAM bandwidth, 10^9 bytes per second
};

// The CUDA device with this ordinal, queried once per process. Throws std::runtime_error with one sentence
// when there is no such device or the library was built without CUDA.
GEMMX_API const Device& cuda_device(int ordinal);

}  // namespace gemmx
