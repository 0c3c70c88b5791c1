// The second step of a product whose form (gated, aux) no kernel has: D, and Z in D's type, from the float32 Z.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::pointwise {

// problem: the call's. z: its float32 Z, batch * M rows of b_columns() elements, `pitch` apart. D and the Z that is
// kept, where the problem has aux, are packed. Throws std::runtime_error when the launch fails.
void launch_activation(const Problem& problem, const float* z, int64_t pitch, const Operands& operands, Stream stream);

}  // namespace gemmx::pointwise
