// torch tensors -> the descriptors of csrc/core. Only this folder includes torch's headers, and of those only
// the stable ABI, so that one library serves every torch from 2.11 on.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "core/checks.h"

namespace gemmx::torch_ops {

using torch::stable::Tensor;

// Throws std::runtime_error when a call into torch's C interface fails.
void check_torch(AOTITorchError status, const char* what);

TensorDesc describe(const Tensor& tensor);
TensorDesc describe(const std::optional<Tensor>& tensor);
DType from_torch(torch::headeronly::ScalarType type);

// An uninitialised CUDA tensor from torch's caching allocator.
Tensor empty_cuda(std::span<const int64_t> sizes, std::span<const int64_t> strides, DType dtype, int device_index);

}  // namespace gemmx::torch_ops
