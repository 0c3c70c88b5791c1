// One call, from op to launch: describe, check, allocate D, look the plan up, launch on torch's current stream.
//
// Everything from torch comes from its caching allocator and its current stream, nothing synchronises and
// nothing reads device memory, so a call can be captured in a CUDA graph and made from any thread.
#include "torch/gemm.h"

#include <stdexcept>

#include "core/build_info.h"
#include "core/plan_cache.h"
#include "core/registry.h"

namespace gemmx::torch_ops {
namespace {

// The arguments that gemm and gemm_out share, as the checks take them.
struct CallArgs {
  const Tensor &a, &b;
  const OptionalTensor &c, &bias, &scale_a, &scale_b, &scale_d;
  double alpha, beta;
  const OptionalString& activation;
  const OptionalDoubles& activation_args;
  const OptionalString &precision, &numerics, &schedule;
  int64_t splits;
  const OptionalString& kernel;
};

std::string_view view(const OptionalString& s) { return s ? std::string_view(*s) : std::string_view(); }

GemmArgs describe_call(const CallArgs& call) {
  GemmArgs args;
  args.a = describe(call.a);
  args.b = describe(call.b);
  args.c = describe(call.c);
  args.bias = describe(call.bias);
  args.scale_a = describe(call.scale_a);
  args.scale_b = describe(call.scale_b);
  args.scale_d = describe(call.scale_d);
  args.alpha = call.alpha;
  args.beta = call.beta;
  args.activation = view(call.activation);
  if (call.activation_args) args.activation_args = *call.activation_args;
  args.precision = view(call.precision);
  args.numerics = view(call.numerics);
  args.schedule = view(call.schedule);
  args.splits = call.splits;
  args.kernel = view(call.kernel);
  return args;
}

// There is no gradient: a call that autograd would record is refused. Only grad mode pays for asking.
void refuse_gradients(const CallArgs& call) {
  if (!aoti_torch_grad_mode_is_enabled()) return;
  using torch::stable::detail::from;
  std::array<StableIValue, 4> stack{from(call.a), from(call.b), from(call.c), from(call.bias)};
  check_torch(torch_call_dispatcher("gemmx::_wants_gradient", "", stack.data(), TORCH_ABI_VERSION),
              "asking whether a tensor requires grad");
  if (torch::stable::detail::to<bool>(stack[0])) {
    throw std::runtime_error(
        "gemmx.gemm has no gradient yet and an argument requires grad; call it under torch.no_grad() or "
        "torch.inference_mode(), or pass .detach()");
  }
}

#ifdef GEMMX_HAS_CUDA
void* current_stream(int device_index) {
  void* stream = nullptr;
  check_torch(aoti_torch_get_current_cuda_stream(device_index, &stream), "reading the current stream");
  return stream;
}

// `guard` has made the device current.
void launch(const CheckedGemm& checked, const GemmArgs& args, void* d, int device_index) {
  const auto ready = ready_plan(checked.problem, device_index);
  Operands operands;
  operands.a = reinterpret_cast<const void*>(args.a.data);
  operands.b = reinterpret_cast<const void*>(args.b.data);
  operands.c = reinterpret_cast<const void*>(args.c.data);
  operands.bias = reinterpret_cast<const void*>(args.bias.data);
  operands.d = d;
  operands.alpha = checked.alpha;
  operands.beta = checked.beta;
  operands.activation_args[0] = checked.activation_args[0];
  operands.activation_args[1] = checked.activation_args[1];

  // The caching allocator hands memory out in stream order: the workspace may be freed on return.
  std::optional<Tensor> scratch;
  Workspace workspace;
  if (ready->workspace_bytes > 0) {
    const int64_t size[1] = {ready->workspace_bytes}, stride[1] = {1};
    scratch = empty_cuda(size, stride, DType::u8, device_index);
    workspace = {scratch->data_ptr(), ready->workspace_bytes};
  }
  ready->kernel->run(*ready->spec, checked.problem, ready->plan, ready->prepared.get(), operands, workspace,
                     static_cast<Stream>(current_stream(device_index)));
  count_launch(ready->plan.kernel);
}
#else
void launch(const CheckedGemm&, const GemmArgs&, void*, int) {
  throw std::runtime_error("gemmx was built without CUDA (GEMMX_CUDA_ARCHS=" + std::string(build_archs()) +
                           ") and got CUDA tensors; build it with GEMMX_CUDA_ARCHS naming your GPU");
}
#endif

}  // namespace

Tensor gemm(const Tensor& a, const Tensor& b, const OptionalTensor& c, const OptionalTensor& bias,
            const OptionalTensor& scale_a, const OptionalTensor& scale_b, const OptionalTensor& scale_d, double alpha,
            double beta, const OptionalString& activation, const OptionalDoubles& activation_args,
            const OptionalDType& out_dtype, const OptionalString& precision, const OptionalString& numerics,
            const OptionalString& schedule, int64_t splits, const OptionalString& kernel) {
  const CallArgs call{a,          b,   c,   bias, scale_a, scale_b, scale_d, alpha, beta, activation, activation_args,
                      precision, numerics, schedule, splits, kernel};
  refuse_gradients(call);
  GemmArgs args = describe_call(call);
  if (out_dtype) args.out_dtype = from_torch(*out_dtype);
  const CheckedGemm checked = check_gemm(args);
  const int device_index = args.a.device_index;
  std::array<int64_t, 3> strides{};
  for (int64_t i = checked.d_ndim - 1, next = 1; i >= 0; --i) {
    strides[i] = next;
    next *= checked.d_sizes[i] > 1 ? checked.d_sizes[i] : 1;
  }
  const size_t ndim = checked.d_ndim;
  const torch::stable::accelerator::DeviceGuard guard(device_index);
  Tensor d = empty_cuda(std::span(checked.d_sizes).first(ndim), std::span(strides).first(ndim), checked.d_dtype,
                        device_index);
  if (!checked.empty()) launch(checked, args, d.data_ptr(), device_index);
  return d;
}

void gemm_out(const Tensor& a, const Tensor& b, const OptionalTensor& c, const OptionalTensor& bias,
              const OptionalTensor& scale_a, const OptionalTensor& scale_b, const OptionalTensor& scale_d, double alpha,
              double beta, const OptionalString& activation, const OptionalDoubles& activation_args,
              const OptionalString& precision, const OptionalString& numerics, const OptionalString& schedule,
              int64_t splits, const OptionalString& kernel, const Tensor& out) {
  GemmArgs args = describe_call({a, b, c, bias, scale_a, scale_b, scale_d, alpha, beta, activation, activation_args,
                                 precision, numerics, schedule, splits, kernel});
  args.has_out = true;
  args.out = describe(out);
  const CheckedGemm checked = check_gemm(args);
  const torch::stable::accelerator::DeviceGuard guard(args.a.device_index);
  if (!checked.empty()) launch(checked, args, reinterpret_cast<void*>(args.out.data), args.a.device_index);
}

}  // namespace gemmx::torch_ops
