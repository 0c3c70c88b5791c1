// The ops' schemas and their CUDA implementations. CPU and fake implementations are Python
// (python/gemmx/_dispatch.py).
//
// Autograd of gemm and gemm_gated on CUDA: a Python kernel for the key would cost every call under no_grad 4 to 5 us,
// so the kernel is C++ and sends the arguments, as they lie on the stack, to one of two ops of the same schema. The
// stable ABI has no redispatch, with which it would go on below autograd by itself. _gemm computes what gemm does and
// has no kernel for Autograd but a fallthrough; _gemm_recorded, which is Python, is called only where grad mode is on
// and an argument requires grad. Under inference_mode torch skips the key, and gemm itself computes. What fails inside
// is thrown again as it was (core/nested_call.h).
//
// The last argument is not called `kernel`: torch's inductor calls FallbackKernel.create(kernel, **arguments). Tensors
// are never keyword-only, except out: torch refuses autograd and vmap rules for such ops. gemm_out returns nothing: an
// alias as the result does not pass torch.compile on torch 2.11.
#include "torch/autograd.h"
#include "torch/gemm.h"

// Arguments that several schemas share.
#define GEMMX_GEMM_TENSORS                                                                              \
  "Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, " \
  "Tensor? scale_d=None, *, float alpha=1.0, float beta=1.0, "
#define GEMMX_GATED_TENSORS \
  "Tensor a, Tensor b, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, *, float alpha=1.0, "
#define GEMMX_ACTIVATION "str? activation=None, float[]? activation_args=None, "
#define GEMMX_REQUESTS \
  "str? precision=None, str? numerics=None, str? schedule=None, int splits=0, str? kernel_name=None"
#define GEMMX_GEMM_ARGUMENTS "(" GEMMX_GEMM_TENSORS GEMMX_ACTIVATION "ScalarType? out_dtype=None, " GEMMX_REQUESTS ")"
#define GEMMX_GATED_ARGUMENTS "(" GEMMX_GATED_TENSORS GEMMX_ACTIVATION "ScalarType? out_dtype=None, " GEMMX_REQUESTS ")"

STABLE_TORCH_LIBRARY(GEMMX_NAMESPACE, m) {
  m.def("gemm" GEMMX_GEMM_ARGUMENTS " -> Tensor");
  m.def("gemm_out(" GEMMX_GEMM_TENSORS GEMMX_ACTIVATION GEMMX_REQUESTS ", Tensor(a!) out) -> ()");
  m.def("gemm_aux" GEMMX_GEMM_ARGUMENTS " -> (Tensor d, Tensor z)");
  m.def("gemm_gated" GEMMX_GATED_ARGUMENTS " -> Tensor");
  m.def("gemm_gated_aux" GEMMX_GATED_ARGUMENTS " -> (Tensor d, Tensor z)");
  m.def(
      "activation_backward(Tensor grad, Tensor saved, *, str activation, float[]? activation_args=None, "
      "bool bias_grad=False) -> (Tensor dz, Tensor dbias)");
  m.def(
      "gated_backward(Tensor grad, Tensor z, *, str activation, float[]? activation_args=None, bool bias_grad=False) "
      "-> (Tensor dz, Tensor dbias)");

  // The two products of a gated MLP as one node of autograd, whose backward is _gated_dgrad (autograd.py); Python
  // alone.
  m.def(
      "_gated_mlp(Tensor x, Tensor gate_up, Tensor down, Tensor? gate_up_bias=None, Tensor? down_bias=None, "
      "*, " GEMMX_ACTIVATION "str? precision=None) -> Tensor");
  m.def("_gated_dgrad(Tensor grad, Tensor b, Tensor z, *, float alpha=1.0, " GEMMX_ACTIVATION
        "str? precision=None, str? kernel_name=None) -> Tensor");

  // Where the kernels of key AutogradCUDA send a call: to be computed, or to be recorded by autograd (autograd.py).
  m.def("_gemm" GEMMX_GEMM_ARGUMENTS " -> Tensor");
  m.def("_gemm_recorded" GEMMX_GEMM_ARGUMENTS " -> Tensor");
  m.def("_gemm_gated" GEMMX_GATED_ARGUMENTS " -> Tensor");
  m.def("_gemm_gated_recorded" GEMMX_GATED_ARGUMENTS " -> Tensor");
  // Whether autograd would want a gradient through these tensors: the stable ABI can't tell, autograd.py can.
  m.def("_wants_gradient(Tensor a, Tensor b, Tensor? c, Tensor? bias) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(GEMMX_NAMESPACE, CUDA, m) {
  m.impl("gemm", TORCH_BOX(&gemmx::torch_ops::gemm));
  m.impl("_gemm", TORCH_BOX(&gemmx::torch_ops::gemm));
  m.impl("gemm_out", TORCH_BOX(&gemmx::torch_ops::gemm_out));
  m.impl("gemm_aux", TORCH_BOX(&gemmx::torch_ops::gemm_aux));
  m.impl("gemm_gated", TORCH_BOX(&gemmx::torch_ops::gemm_gated));
  m.impl("_gemm_gated", TORCH_BOX(&gemmx::torch_ops::gemm_gated));
  m.impl("gemm_gated_aux", TORCH_BOX(&gemmx::torch_ops::gemm_gated_aux));
  m.impl("activation_backward", TORCH_BOX(&gemmx::torch_ops::activation_backward));
  m.impl("gated_backward", TORCH_BOX(&gemmx::torch_ops::gated_backward));
  m.impl("_gated_dgrad", TORCH_BOX(&gemmx::torch_ops::gated_dgrad));
}

STABLE_TORCH_LIBRARY_IMPL(GEMMX_NAMESPACE, AutogradCUDA, m) {
  m.impl("gemm", &gemmx::torch_ops::gemm_autograd);
  m.impl("gemm_gated", &gemmx::torch_ops::gemm_gated_autograd);
}
