// The backward ops of activations: one elementwise pass, and the column sums of dZ where a bias needs them.
#include <array>

#include "torch/gemm.h"
#ifdef GEMMX_HAS_CUDA
#include "kernels/pointwise/activation_backward.h"
#endif

namespace gemmx::torch_ops {
namespace {

#ifdef GEMMX_HAS_CUDA
// The device is current. dbias: nullptr where it is not asked for.
void launch(const CheckedBackward& checked, void* dz, float* dbias, int device_index) {
  Tensor scratch;
  if (dbias != nullptr) scratch = workspace_cuda(pointwise::column_sums_workspace(checked), device_index);
  pointwise::launch_activation_backward(checked, dz, dbias, scratch ? data_pointer(scratch) : nullptr,
                                        static_cast<Stream>(current_stream(device_index)));
}
#else
void launch(const CheckedBackward&, void*, float*, int) { throw_built_without_cuda(); }
#endif

ReturnedPair run(bool gated, AtenTensorHandle grad_handle, AtenTensorHandle saved_handle, const std::string& activation,
                 const OptionalDoubles& activation_args, bool bias_grad) {
  const Tensor grad(grad_handle), saved(saved_handle);
  BackwardArgs args;
  args.grad = describe(grad.get());
  args.saved = describe(saved.get());
  args.gated = gated;
  args.activation = activation;
  if (activation_args) args.activation_args = *activation_args;
  const CheckedBackward checked = check_activation_backward(args);
  const int device_index = args.saved.device_index;
  const CurrentDevice current(device_index);
  Tensor dz = empty_packed_cuda("dZ", std::span(checked.dz_sizes).first(static_cast<size_t>(checked.ndim)),
                                checked.dtype, device_index);
  const int64_t sums[1] = {bias_grad ? checked.columns() : 0};
  Tensor dbias = empty_packed_cuda("the gradient of the bias", sums, DType::f32, device_index);
  // Without rows the sums are zeros, which the launch of nothing would not write.
  if (checked.empty()) {
    if (sums[0] > 0) check_torch(aoti_torch_zero_(dbias.get()), "zeroing the gradient of the bias");
  } else {
    launch(checked, data_pointer(dz), bias_grad ? static_cast<float*>(data_pointer(dbias)) : nullptr, device_index);
  }
  return {{dz.release()}, {dbias.release()}};
}

}  // namespace

ReturnedPair activation_backward(AtenTensorHandle grad, AtenTensorHandle saved, const std::string& activation,
                                 const OptionalDoubles& activation_args, bool bias_grad) {
  return run(false, grad, saved, activation, activation_args, bias_grad);
}

ReturnedPair gated_backward(AtenTensorHandle grad, AtenTensorHandle z, const std::string& activation,
                            const OptionalDoubles& activation_args, bool bias_grad) {
  return run(true, grad, z, activation, activation_args, bias_grad);
}

}  // namespace gemmx::torch_ops
