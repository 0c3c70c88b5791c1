// The gradient of a gate, from the gradient of what follows it: dZ of gemm_gated where its D goes through one more
// product. One launch where a kernel has the form, else the product and the backward of the gate.
#include <array>

#include "core/plan_cache.h"
#include "core/registry.h"
#include "torch/gemm.h"
#ifdef GEMMX_HAS_CUDA
#include "kernels/pointwise/activation_backward.h"
#endif

namespace gemmx::torch_ops {
namespace {

#ifdef GEMMX_HAS_CUDA
// dH into the workspace, then dZ from there.
void launch_two_steps(const ReadyPlan& ready, const CheckedGemm& checked, const Operands& operands, Workspace workspace,
                      Stream stream) {
  const Problem& p = checked.problem;
  Operands product = operands;
  product.c = nullptr;
  product.beta = 0.0f;
  product.d = workspace.data;
  const Workspace rest{static_cast<char*>(workspace.data) + ready.z_bytes, ready.workspace_bytes - ready.z_bytes};
  ready.kernel->run(*ready.spec, ready.problem, ready.plan, ready.prepared.get(), product, rest, stream);
  CheckedBackward gate;
  gate.m = p.m;
  gate.n = p.n;
  gate.grad = {workspace.data, 0, ready.problem.d.row_stride, 1};
  gate.saved = {operands.c, 0, p.c.row_stride, p.c.col_stride};
  gate.dtype = p.d.dtype;
  gate.activation = p.activation;
  gate.activation_args[0] = checked.activation_args[0];
  gate.activation_args[1] = checked.activation_args[1];
  gate.gated = true;
  pointwise::launch_activation_backward(gate, operands.d, nullptr, nullptr, stream);
}

// The device is current.
void launch(const CheckedGemm& checked, const GemmArgs& args, void* dz, int device_index) {
  const std::shared_ptr<const ReadyPlan> ready = ready_plan(checked.problem, device_index);
  Operands operands;
  operands.a = reinterpret_cast<const void*>(args.a.data);
  operands.b = reinterpret_cast<const void*>(args.b.data);
  operands.c = reinterpret_cast<const void*>(args.c.data);
  operands.d = dz;
  operands.alpha = checked.alpha;
  operands.beta = checked.beta;
  operands.activation_args[0] = checked.activation_args[0];
  operands.activation_args[1] = checked.activation_args[1];
  Tensor scratch;
  Workspace workspace;
  if (ready->workspace_bytes > 0) {
    scratch = workspace_cuda(ready->workspace_bytes, device_index);
    workspace = {data_pointer(scratch), ready->workspace_bytes};
  }
  const auto stream = static_cast<Stream>(current_stream(device_index));
  if (ready->two_steps) {
    launch_two_steps(*ready, checked, operands, workspace, stream);
  } else {
    ready->kernel->run(*ready->spec, ready->problem, ready->plan, ready->prepared.get(), operands, workspace, stream);
  }
  count_launch(ready->plan.kernel);
}
#else
void launch(const CheckedGemm&, const GemmArgs&, void*, int) { throw_built_without_cuda(); }
#endif

}  // namespace

ReturnedTensor gated_dgrad(AtenTensorHandle grad, AtenTensorHandle b, AtenTensorHandle z, double alpha,
                           const OptionalString& activation, const OptionalDoubles& activation_args,
                           const OptionalString& precision, const OptionalString& kernel) {
  const Tensor owned_grad(grad), owned_b(b), owned_z(z);
  GemmArgs args;
  args.gate_gradient = true;
  args.a = describe(grad);
  args.b = describe(b);
  args.c = describe(z);
  args.alpha = alpha;
  if (activation) args.activation = *activation;
  if (activation_args) args.activation_args = *activation_args;
  if (precision) args.precision = *precision;
  if (kernel) args.kernel = *kernel;
  const CheckedGemm checked = check_gemm(args);
  const int device_index = args.a.device_index;
  const CurrentDevice current(device_index);
  Tensor dz = empty_packed_cuda("dZ", std::span(checked.d_sizes).first(2), checked.d_dtype, device_index);
  if (!checked.empty()) launch(checked, args, data_pointer(dz), device_index);
  return {dz.release()};
}

}  // namespace gemmx::torch_ops
