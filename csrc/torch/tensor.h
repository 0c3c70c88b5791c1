// torch tensors -> the descriptors of csrc/core. Only this folder includes torch's headers, and of those only
// the stable ABI, so that one library serves every torch from 2.11 on.
#pragma once

#include <torch/csrc/stable/library.h>

#include <memory>
#include <optional>
#include <span>

#include "core/checks.h"

namespace gemmx::torch_ops {

// A tensor that an op was given or makes. torch hands arguments over as bare handles that the op owns; stable::Tensor
// would put each behind a shared_ptr, two allocations a tensor on a call that takes 4 us without its launch.
struct DeleteTensor {
  void operator()(AtenTensorHandle handle) const { aoti_torch_delete_tensor_object(handle); }
};
using Tensor = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;

// Throws std::runtime_error when a call into torch's C interface fails.
void check_torch(AOTITorchError status, const char* what);

// A null handle is an argument that was not given.
TensorDesc describe(AtenTensorHandle tensor);
DType from_torch(torch::headeronly::ScalarType type);

void* data_pointer(const Tensor& tensor);
// An uninitialised, packed CUDA tensor from torch's caching allocator. Where there is no memory for it the error says
// `what` it was for.
Tensor empty_cuda(const char* what, std::span<const int64_t> sizes, std::span<const int64_t> strides, DType dtype,
                  int device_index);

}  // namespace gemmx::torch_ops
