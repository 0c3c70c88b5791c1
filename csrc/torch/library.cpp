// The ops' schemas and their CUDA implementations. CPU and fake implementations are Python (python/gemmx/ops.py).
// gemm has no Autograd kernel on CUDA: torch's fallback for such ops costs next to nothing, a Python kernel 4 to 5 us
// a call under no_grad. The implementation refuses inputs that require grad itself, and only grad mode pays for it.
// The last argument is not called `kernel`: torch's inductor calls FallbackKernel.create(kernel, **arguments). Tensors
// are never keyword-only, except out: torch refuses autograd and vmap rules for such ops. gemm_out returns nothing: an
// alias as the result does not pass torch.compile on torch 2.11.
#include "torch/gemm.h"

STABLE_TORCH_LIBRARY(GEMMX_NAMESPACE, m) {
  m.def(
      "gemm(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, "
      "Tensor? scale_d=None, *, float alpha=1.0, float beta=1.0, str? activation=None, "
      "float[]? activation_args=None, ScalarType? out_dtype=None, str? precision=None, str? numerics=None, "
      "str? schedule=None, int splits=0, str? kernel_name=None) -> Tensor");
  m.def(
      "gemm_out(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, "
      "Tensor? scale_d=None, *, float alpha=1.0, float beta=1.0, str? activation=None, "
      "float[]? activation_args=None, str? precision=None, str? numerics=None, str? schedule=None, int splits=0, "
      "str? kernel_name=None, Tensor(a!) out) -> ()");
  // Whether autograd would want a gradient through these tensors: the stable ABI can't tell, python/gemmx/ops.py can.
  m.def("_wants_gradient(Tensor a, Tensor b, Tensor? c, Tensor? bias) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(GEMMX_NAMESPACE, CUDA, m) {
  m.impl("gemm", TORCH_BOX(&gemmx::torch_ops::gemm));
  m.impl("gemm_out", TORCH_BOX(&gemmx::torch_ops::gemm_out));
}
