// dZ of an activation or of a gate, and the column sums of dZ, the gradient of a bias.
#pragma once

#include "core/checks.h"
#include "core/kernel_spec.h"

namespace gemmx::pointwise {

// Bytes of workspace that the column sums take: one float32 for each block of rows and each column.
int64_t column_sums_workspace(const CheckedBackward& call);

// dz: packed. dbias: columns() float32 values, or nullptr and no workspace. The sums are those of dZ before it is
// rounded, in an order that M, N, the dtype and the layout fix: a warp adds every eighth row of its block of rows,
// ascending, the warps of a block are added ascending, and so are the blocks in eight groups and the groups.
// Throws std::runtime_error when the launch fails.
void launch_activation_backward(const CheckedBackward& call, void* dz, float* dbias, void* workspace, Stream stream);

}  // namespace gemmx::pointwise
