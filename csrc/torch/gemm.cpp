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

// The tensors of a call, owned until it returns.
struct CallTensors {
  Tensor a, b, c, bias, scale_a, scale_b, scale_d;

  CallTensors(AtenTensorHandle a_, AtenTensorHandle b_, OptionalHandle c_, OptionalHandle bias_,
              OptionalHandle scale_a_, OptionalHandle scale_b_, OptionalHandle scale_d_)
      : a(a_),
        b(b_),
        c(c_.value_or(nullptr)),
        bias(bias_.value_or(nullptr)),
        scale_a(scale_a_.value_or(nullptr)),
        scale_b(scale_b_.value_or(nullptr)),
        scale_d(scale_d_.value_or(nullptr)) {}
};

// The other arguments that gemm and gemm_out share.
struct CallOptions {
  double alpha, beta;
  const OptionalString& activation;
  const OptionalDoubles& activation_args;
  const OptionalString &precision, &numerics, &schedule;
  int64_t splits;
  const OptionalString& kernel;
};

std::string_view view(const OptionalString& s) { return s ? std::string_view(*s) : std::string_view(); }

GemmArgs describe_call(const CallTensors& tensors, const CallOptions& call) {
  GemmArgs args;
  args.a = describe(tensors.a.get());
  args.b = describe(tensors.b.get());
  args.c = describe(tensors.c.get());
  args.bias = describe(tensors.bias.get());
  args.scale_a = describe(tensors.scale_a.get());
  args.scale_b = describe(tensors.scale_b.get());
  args.scale_d = describe(tensors.scale_d.get());
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

// A handle that a called op will own.
StableIValue share(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  check_torch(aoti_torch_new_tensor_handle(tensor.get(), &handle), "sharing a tensor");
  return torch::stable::detail::from(handle);
}
StableIValue share_optional(const Tensor& tensor) {
  return tensor ? torch::stable::detail::from(new StableIValue(share(tensor)))
                : torch::stable::detail::from(std::nullopt);
}

// There is no gradient: a call that autograd would record is refused. Only grad mode pays for asking.
void refuse_gradients(const CallTensors& tensors) {
  if (!aoti_torch_grad_mode_is_enabled()) return;
  std::array<StableIValue, 4> stack{share(tensors.a), share(tensors.b), share_optional(tensors.c),
                                    share_optional(tensors.bias)};
  check_torch(
      torch_call_dispatcher(C10_STRINGIZE(GEMMX_NAMESPACE) "::_wants_gradient", "", stack.data(), TORCH_ABI_VERSION),
      "asking whether a tensor requires grad");
  if (torch::stable::detail::to<bool>(stack[0])) {
    throw std::runtime_error(
        "gemmx.gemm has no gradient yet and an argument requires grad; call it under torch.no_grad() or "
        "torch.inference_mode(), or pass .detach()");
  }
}

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

#ifdef GEMMX_HAS_CUDA
void* current_stream(int device_index) {
  void* stream = nullptr;
  check_torch(aoti_torch_get_current_cuda_stream(device_index, &stream), "reading the current stream");
  return stream;
}

// The device is current.
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
  Tensor scratch;
  Workspace workspace;
  if (ready->workspace_bytes > 0) {
    const int64_t size[1] = {ready->workspace_bytes}, stride[1] = {1};
    scratch = empty_cuda("the workspace", size, stride, DType::u8, device_index);
    workspace = {data_pointer(scratch), ready->workspace_bytes};
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

ReturnedTensor gemm(AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias,
                    OptionalHandle scale_a, OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta,
                    const OptionalString& activation, const OptionalDoubles& activation_args,
                    const OptionalDType& out_dtype, const OptionalString& precision, const OptionalString& numerics,
                    const OptionalString& schedule, int64_t splits, const OptionalString& kernel) {
  const CallTensors tensors(a, b, c, bias, scale_a, scale_b, scale_d);
  refuse_gradients(tensors);
  GemmArgs args =
      describe_call(tensors, {alpha, beta, activation, activation_args, precision, numerics, schedule, splits, kernel});
  if (out_dtype) args.out_dtype = from_torch(*out_dtype);
  const CheckedGemm checked = check_gemm(args);
  const int device_index = args.a.device_index;
  std::array<int64_t, 3> strides{};
  for (int64_t i = checked.d_ndim - 1, next = 1; i >= 0; --i) {
    strides[i] = next;
    next *= checked.d_sizes[i] > 1 ? checked.d_sizes[i] : 1;
  }
  const size_t ndim = checked.d_ndim;
  const CurrentDevice current(device_index);
  Tensor d = empty_cuda("D", std::span(checked.d_sizes).first(ndim), std::span(strides).first(ndim), checked.d_dtype,
                        device_index);
  if (!checked.empty()) launch(checked, args, data_pointer(d), device_index);
  return {d.release()};
}

void gemm_out(AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias, OptionalHandle scale_a,
              OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta,
              const OptionalString& activation, const OptionalDoubles& activation_args, const OptionalString& precision,
              const OptionalString& numerics, const OptionalString& schedule, int64_t splits,
              const OptionalString& kernel, AtenTensorHandle out) {
  const CallTensors tensors(a, b, c, bias, scale_a, scale_b, scale_d);
  const Tensor owned_out(out);
  GemmArgs args =
      describe_call(tensors, {alpha, beta, activation, activation_args, precision, numerics, schedule, splits, kernel});
  args.has_out = true;
  args.out = describe(out);
  const CheckedGemm checked = check_gemm(args);
  const CurrentDevice current(args.a.device_index);
  if (!checked.empty()) launch(checked, args, reinterpret_cast<void*>(args.out.data), args.a.device_index);
}

}  // namespace gemmx::torch_ops
