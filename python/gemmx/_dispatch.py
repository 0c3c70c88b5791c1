"""The ops' kernels that are Python: for CPU tensors and for fakes.

C++ (csrc/torch/library.cpp) defines the schemas and implements them for CUDA. The other dispatch keys:

    CPU       the reference, in float64                                                   here
    fakes     shapes, strides and errors without data, for torch.compile, torch.export and meta tensors      here
    Autograd  gemm, gemm_gated and _gated_mlp are recorded, the others refuse tensors that require grad   autograd.py
    ADInplaceOrView  of gemm_out: tells autograd that out has changed                         autograd.py
    Autocast, FuncTorchBatched    dtypes under torch.autocast, batches under torch.vmap       _transforms.py

torch calls these functions with its schema's positional arguments in order and leaves out what equals a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from gemmx import _C, reference
from gemmx._checks import (
    Result,
    are_symbolic,
    check,
    check_backward,
    check_backward_symbolic,
    check_symbolic,
)
from gemmx._dtypes import DTYPES
from gemmx._library import NAMESPACE

OPS = getattr(torch.ops, NAMESPACE)
# The schemas' name of what gemmx.gemm calls kernel (csrc/torch/library.cpp says why).
KERNEL = "kernel_name"

_C.set_out_of_memory_class(torch.OutOfMemoryError)
library = torch.library.Library(NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]


def op_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """gemmx.gemm's options under the names of torch.ops.gemmx.gemm."""
    return {KERNEL if name == "kernel" else name: value for name, value in options.items()}


def skip_when_traced(function: Callable[..., Any]) -> None:
    """Where torch.compile gave up on the caller it would trace this function, a kernel like any in C++.

    And what it calls. torch._dynamo.disable does the same, at the price of an import of seconds and a microsecond a
    call.
    """
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))


def register(op: str, kernel: Callable[..., Any], key: str, with_keys: bool = False) -> None:
    skip_when_traced(kernel)
    library.impl(op, kernel, key, with_keyset=with_keys)  # type: ignore[no-untyped-call]


def keeping_errors(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """For kernels that the C++ ones of key AutogradCUDA call: torch makes a RuntimeError of what they raise."""

    def kept(*args: Any, **options: Any) -> Any:
        try:
            return kernel(*args, **options)
        except Exception as error:
            _C.keep_error(error)
            raise

    skip_when_traced(kept)
    return kept


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """The op's options under gemmx.gemm's names."""
    if KERNEL in options:
        options["kernel"] = options.pop(KERNEL)
    return options


def _as_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """gemm_gated's tensors in gemm's order."""
    return a, b, None, bias, scale_a, scale_b


# ---- CPU ----------------------------------------------------------------------------------------------------------


def _compute(*args: Any, gated: bool = False, aux: bool = False, **options: Any) -> tuple[Tensor, Tensor | None]:
    """D and, with aux, Z of a call that is checked first."""
    options = _named(options)
    if gated:
        args = _as_gemm(*args)
    checked = check(*args, gated=gated, aux=aux, **options)
    a, b, c, bias = (*args, None, None)[:4]
    dtype, problem = DTYPES[checked.d_dtype], checked.problem
    invariant = problem.numerics == "batch_invariant"
    z = reference.pre_activation(
        a,
        b,
        c,
        bias,
        alpha=options.get("alpha", 1.0),
        beta=options.get("beta", 1.0),
        batch_invariant=invariant,
    )
    apply = reference.gate if gated else reference.activate
    activation = (problem.activation, options.get("activation_args"))
    d = reference.by_rows(apply, z, *activation) if invariant else apply(z, *activation)
    return reference.round_to(d, dtype), reference.round_to(z, dtype).clone() if aux else None


def _gemm_cpu(*args: Any, **options: Any) -> Tensor:
    return _compute(*args, **options)[0]


def _gemm_out_cpu(*args: Any, out: Tensor, **options: Any) -> None:
    options["out"] = out
    out.copy_(_compute(*args, **options)[0])  # D is computed whole before out, which may be c, is written


def _gemm_aux_cpu(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    return _compute(*args, aux=True, **options)


def _gemm_gated_cpu(*args: Any, **options: Any) -> Tensor:
    return _compute(*args, gated=True, **options)[0]


def _gemm_gated_aux_cpu(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    return _compute(*args, gated=True, aux=True, **options)


def _backward_cpu(gated: bool, grad: Tensor, saved: Tensor, bias_grad: bool, **options: Any) -> tuple[Tensor, Tensor]:
    check_backward(grad, saved, gated=gated, **options)
    compute = reference.gated_backward if gated else reference.activation_backward
    dz = compute(grad, saved, **options)
    dbias = dz.flatten(0, -2).sum(0).float() if bias_grad else dz.new_empty(0, dtype=torch.float32)
    return reference.round_to(dz, saved.dtype).contiguous(), dbias


def _activation_backward_cpu(
    grad: Tensor, saved: Tensor, *, bias_grad: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    return _backward_cpu(False, grad, saved, bias_grad, **options)


def _gated_backward_cpu(grad: Tensor, z: Tensor, *, bias_grad: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    return _backward_cpu(True, grad, z, bias_grad, **options)


def _gated_dgrad_cpu(grad: Tensor, b: Tensor, z: Tensor, **options: Any) -> Tensor:
    options = _named(options)
    checked = check(grad, b, z, gate_gradient=True, **options)
    dh = reference.pre_activation(grad, b, alpha=options.get("alpha", 1.0))
    activation_args = options.get("activation_args")
    dz = reference.gated_backward(dh, z, activation=checked.problem.activation, activation_args=activation_args)
    return reference.round_to(dz, z.dtype)


# ---- fakes --------------------------------------------------------------------------------------------------------


def _result(*args: Any, gated: bool = False, **options: Any) -> Result:
    options = _named(options)
    if gated:
        args = _as_gemm(*args)
    if are_symbolic(*args, options.get("out")):
        return check_symbolic(*args, gated=gated, **options)
    checked = check(*args, gated=gated, **options)
    return Result(checked.d_sizes, checked.z_sizes, DTYPES[checked.d_dtype])


def _empty(like: Tensor, sizes: Iterable[Any], dtype: torch.dtype) -> Tensor:
    """A fake of a result: row-major contiguous, as the real one."""
    return like.new_empty(tuple(sizes), dtype=dtype)


def _gemm_fake(*args: Any, **options: Any) -> Tensor:
    result = _result(*args, **options)
    return _empty(args[0], result.d_sizes, result.dtype)


def _gemm_out_fake(*args: Any, **options: Any) -> None:
    _result(*args, **options)


def _gemm_aux_fake(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    result = _result(*args, aux=True, **options)
    return _empty(args[0], result.d_sizes, result.dtype), _empty(args[0], result.z_sizes, result.dtype)


def _gemm_gated_fake(*args: Any, **options: Any) -> Tensor:
    return _gemm_fake(*args, gated=True, **options)


def _gemm_gated_aux_fake(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _gemm_aux_fake(*args, gated=True, **options)


def _backward_fake(gated: bool, grad: Tensor, saved: Tensor, bias_grad: bool, **options: Any) -> tuple[Tensor, Tensor]:
    checking = check_backward_symbolic if are_symbolic(grad, saved) else check_backward
    checking(grad, saved, gated=gated, **options)
    columns = saved.shape[-1] if bias_grad else 0
    return _empty(saved, saved.shape, saved.dtype), _empty(saved, (columns,), torch.float32)


def _activation_backward_fake(
    grad: Tensor, saved: Tensor, *, bias_grad: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    return _backward_fake(False, grad, saved, bias_grad, **options)


def _gated_backward_fake(grad: Tensor, z: Tensor, *, bias_grad: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    return _backward_fake(True, grad, z, bias_grad, **options)


def _gated_dgrad_fake(grad: Tensor, b: Tensor, z: Tensor, **options: Any) -> Tensor:
    return _gemm_fake(grad, b, z, gate_gradient=True, **options)


def _gated_mlp_fake(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    precision: str | None = None,
    **options: Any,
) -> Tensor:
    hidden = _gemm_gated_fake(x, gate_up, gate_up_bias, precision=precision, **options)
    return _gemm_fake(hidden, down, None, down_bias, precision=precision)


# _gemm and _gemm_gated: what gemm and gemm_gated are below autograd (autograd.py).
_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gemm": (_gemm_cpu, _gemm_fake),
    "_gemm": (_gemm_cpu, _gemm_fake),
    "gemm_out": (_gemm_out_cpu, _gemm_out_fake),
    "gemm_aux": (_gemm_aux_cpu, _gemm_aux_fake),
    "gemm_gated": (_gemm_gated_cpu, _gemm_gated_fake),
    "_gemm_gated": (_gemm_gated_cpu, _gemm_gated_fake),
    "gemm_gated_aux": (_gemm_gated_aux_cpu, _gemm_gated_aux_fake),
    "activation_backward": (_activation_backward_cpu, _activation_backward_fake),
    "gated_backward": (_gated_backward_cpu, _gated_backward_fake),
    "_gated_dgrad": (_gated_dgrad_cpu, _gated_dgrad_fake),
}
for _op, (_cpu, _fake) in _KERNELS.items():
    register(_op, _cpu, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{_op}", keeping_errors(_fake), lib=library)
# Its other kernels call the ops that it stands for (autograd.py).
torch.library.register_fake(f"{NAMESPACE}::_gated_mlp", keeping_errors(_gated_mlp_fake), lib=library)
