// Asking autograd, which the stable ABI can't, through the op _wants_gradient (python/gemmx/ops.py).
#pragma once

#include "torch/tensor.h"

namespace gemmx::torch_ops {

// Whether autograd would record a call on these tensors, null ones left out. Only grad mode pays for asking.
bool wants_gradient(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle c, AtenTensorHandle bias);

// Throws std::runtime_error where it would: the op has no gradient.
void refuse_gradients(const char* op, AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle c = nullptr,
                      AtenTensorHandle bias = nullptr);

// The kernels of key AutogradCUDA of gemm and gemm_gated: boxed, with the stack handed on as it is.
void gemm_autograd(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
void gemm_gated_autograd(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

}  // namespace gemmx::torch_ops
