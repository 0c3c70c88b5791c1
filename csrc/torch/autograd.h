// The kernels of key AutogradCUDA of gemm and gemm_gated (library.cpp says why they are here): boxed functions that
// hand the stack on as it is.
#pragma once

#include "torch/tensor.h"

namespace gemmx::torch_ops {

void gemm_autograd(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void gemm_gated_autograd(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

}  // namespace gemmx::torch_ops
