// torch tensors -> the descriptors of csrc/core. Only this folder includes torch's headers, and of those only
// the stable ABI, so that one library serves every torch from 2.11 on.
#pragma once

#include <torch/csrc/stable/accelerator.h>
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
// An uninitialised CUDA tensor from torch's caching allocator. Where there is no memory for it the error says
// `what` it was for.
Tensor empty_cuda(const char* what, std::span<const int64_t> sizes, std::span<const int64_t> strides, DType dtype,
                  int device_index);
// Packed, of at most kMaxDims dimensions.
Tensor empty_packed_cuda(const char* what, std::span<const int64_t> sizes, DType dtype, int device_index);
// Of so many bytes. The caching allocator hands memory out in stream order, so that it may be freed once the kernels
// that use it are launched.
Tensor workspace_cuda(int64_t bytes, int device_index);

// Makes the device current until it goes, which costs nothing where it is current already.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    int32_t current = -1;
    check_torch(aoti_torch_get_current_device_index(&current), "reading the current device");
    if (current != index) guard_.emplace(index);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

[[noreturn]] void throw_built_without_cuda();

#ifdef GEMMX_HAS_CUDA
// torch's current stream, a Stream (core/kernel_spec.h).
void* current_stream(int device_index);
#endif

}  // namespace gemmx::torch_ops
