// The floor of memory-bound kernels: a read of the same bytes, once, as fast as the project knows how.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx {

// Ways to read: 0 .. stream_read_variants() - 1. Which is fastest depends on the size, so benchmarks try all.
GEMMX_API int stream_read_variants();

// Reads `bytes` bytes from `data` (16-byte aligned) once, on a device of `device_sm_count` SMs. `sink`: 4 bytes
// of device memory that only keep the compiler from dropping the loads.
// Throws std::invalid_argument for a variant, address or size that it does not take, or where the variant needs
// a newer device, std::runtime_error when the launch fails.
GEMMX_API void stream_read(const void* data, int64_t bytes, void* sink, int device_sm_count, int variant,
                           Stream stream);

}  // namespace gemmx
