// One call, from op to launch: describe, check, allocate D, look the plan up, launch on torch's current stream.
//
// Everything from torch comes from its caching allocator and its current stream, nothing synchronises and
// nothing reads device memory, so a call can be captured in a CUDA graph and made from any thread.
#include "torch/gemm.h"

#include <array>

#include "core/nested_call.h"
#include "core/plan_cache.h"
#include "core/registry.h"
#ifdef GEMMX_HAS_CUDA
#include "kernels/pointwise/activation.h"
#endif

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

#ifdef GEMMX_HAS_CUDA
// The plain product into the workspace, then D and Z from there.
void launch_two_steps(const ReadyPlan& ready, const Problem& problem, const Operands& operands, Workspace workspace,
                      Stream stream) {
  Operands product = operands;
  product.d = workspace.data;
  product.z = nullptr;
  const Workspace rest{static_cast<char*>(workspace.data) + ready.z_bytes, ready.workspace_bytes - ready.z_bytes};
  ready.kernel->run(*ready.spec, ready.problem, ready.plan, ready.prepared.get(), product, rest, stream);
  pointwise::launch_activation(problem, static_cast<const float*>(workspace.data), ready.problem.d.row_stride, operands,
                               stream);
}

// The device is current.
void launch(const CheckedGemm& checked, const GemmArgs& args, void* d, void* z, int device_index) {
  const std::shared_ptr<const ReadyPlan> ready = ready_plan(checked.problem, device_index);
  Operands operands;
  operands.a = reinterpret_cast<const void*>(args.a.data);
  operands.b = reinterpret_cast<const void*>(args.b.data);
  operands.c = reinterpret_cast<const void*>(args.c.data);
  operands.bias = reinterpret_cast<const void*>(args.bias.data);
  operands.d = d;
  operands.z = z;
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
    launch_two_steps(*ready, checked.problem, operands, workspace, stream);
  } else {
    ready->kernel->run(*ready->spec, ready->problem, ready->plan, ready->prepared.get(), operands, workspace, stream);
  }
  count_launch(ready->plan.kernel);
}
#else
void launch(const CheckedGemm&, const GemmArgs&, void*, void*, int) { throw_built_without_cuda(); }
#endif

struct Form {
  bool gated = false, aux = false;
};

struct Results {
  Tensor d, z;  // z: with aux only
};

Results compute(Form form, const CallTensors& tensors, const CallOptions& options, const OptionalDType& out_dtype) {
  GemmArgs args = describe_call(tensors, options);
  args.gated = form.gated;
  args.aux = form.aux;
  if (out_dtype) args.out_dtype = from_torch(*out_dtype);
  const CheckedGemm checked = check_gemm(args);
  const int device_index = args.a.device_index;
  const CurrentDevice current(device_index);
  std::array<int64_t, 3> sizes = checked.d_sizes;
  const std::span shape = std::span(sizes).first(static_cast<size_t>(checked.d_ndim));
  Results results;
  results.d = empty_packed_cuda("D", shape, checked.d_dtype, device_index);
  if (form.aux) {
    shape.back() = checked.z_columns();
    results.z = empty_packed_cuda("Z", shape, checked.d_dtype, device_index);
  }
  if (!checked.empty()) {
    launch(checked, args, data_pointer(results.d), form.aux ? data_pointer(results.z) : nullptr, device_index);
  }
  return results;
}

Results run(Form form, const CallTensors& tensors, const CallOptions& options, const OptionalDType& out_dtype) {
  return keeping_errors([&] { return compute(form, tensors, options, out_dtype); });
}

ReturnedPair pair_of(Results results) { return {{results.d.release()}, {results.z.release()}}; }

}  // namespace

ReturnedTensor gemm(GEMMX_GEMM_PARAMETERS) {
  const CallTensors tensors(a, b, c, bias, scale_a, scale_b, scale_d);
  const CallOptions options{alpha, beta, activation, activation_args, precision, numerics, schedule, splits, kernel};
  return {run({}, tensors, options, out_dtype).d.release()};
}

ReturnedPair gemm_aux(GEMMX_GEMM_PARAMETERS) {
  const CallTensors tensors(a, b, c, bias, scale_a, scale_b, scale_d);
  const CallOptions options{alpha, beta, activation, activation_args, precision, numerics, schedule, splits, kernel};
  return pair_of(run({.aux = true}, tensors, options, out_dtype));
}

ReturnedTensor gemm_gated(GEMMX_GATED_PARAMETERS) {
  const CallTensors tensors(a, b, std::nullopt, bias, scale_a, scale_b, std::nullopt);
  const CallOptions options{alpha, 1.0, activation, activation_args, precision, numerics, schedule, splits, kernel};
  return {run({.gated = true}, tensors, options, out_dtype).d.release()};
}

ReturnedPair gemm_gated_aux(GEMMX_GATED_PARAMETERS) {
  const CallTensors tensors(a, b, std::nullopt, bias, scale_a, scale_b, std::nullopt);
  const CallOptions options{alpha, 1.0, activation, activation_args, precision, numerics, schedule, splits, kernel};
  return pair_of(run({.gated = true, .aux = true}, tensors, options, out_dtype));
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
  if (!checked.empty()) launch(checked, args, reinterpret_cast<void*>(args.out.data), nullptr, args.a.device_index);
}

}  // namespace gemmx::torch_ops
