// The ceiling of kernels that multiply by mma.sync: its rate with operands that never leave the registers.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx {

// FLOPs of one SM in one iteration.
GEMMX_API int64_t mma_rate_flops();

// Multiplies for `iterations` on every one of `device_sm_count` SMs, as many warps and mma in flight as rung 5 of the
// ladder has. `sink`: 4 bytes of device memory that only keep the compiler from dropping the work.
// Throws std::runtime_error when the launch fails.
GEMMX_API void mma_rate(int iterations, void* sink, int device_sm_count, Stream stream);

}  // namespace gemmx
