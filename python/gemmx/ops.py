"""gemmx.gemm and its forms: the ops of torch.ops.gemmx with torch's settings, leading dimensions and strict().

_dispatch.py says where the ops' kernels are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gemmx import _transforms
from gemmx import autograd as _autograd  # noqa: F401, registers the Autograd kernels
from gemmx._checks import check, describe
from gemmx._dispatch import KERNEL, OPS, op_arguments
from gemmx._fold import fold_leading, fold_rows
from gemmx._strict import refuse_slow_path, refuse_tracing, strict_is_on

__all__ = ["check", "describe", "gemm", "gemm_aux", "gemm_gated", "op_arguments"]

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu", "clamp"]
Precision = Literal["ieee", "tf32", "3xtf32"]
Numerics = Literal["deterministic", "batch_invariant"]
Schedule = Literal["auto", "data_parallel", "split_k", "stream_k"]

_gemm = OPS.gemm.default
_gemm_out = OPS.gemm_out.default
_gemm_aux = OPS.gemm_aux.default
_gemm_gated = OPS.gemm_gated.default
_gated_mlp = OPS._gated_mlp.default


def gemm(  # noqa: PLR0917, the order of the op's schema
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: Precision | None = None,
    numerics: Numerics | None = None,
    schedule: Schedule | None = None,
    splits: int = 0,
    kernel: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """D = act(alpha * (A @ B) + beta * C + bias), accumulated in float32, rounded once to D's dtype.

    Args:
        a: (M, K), (batch, M, K) or, with a 2-D b, (..., M, K); float32, float16 or bfloat16; any strides, 0 included.
        b: (K, N) or (batch, K, N), a's dtype, any strides: a weight stored (N, K) is passed as weight.t(). A 2-D
            operand beside a 3-D one is shared by all batches.
        c: Broadcasts to D's shape and never enlarges it; D's dtype or float32. Not read where beta is 0.
        bias: (N,), one value a column; D's dtype, a's dtype or float32.
        scale_a: For 8-bit types, which this version does not compute; must be None.
        scale_b: As scale_a.
        scale_d: As scale_a.
        alpha: Applied as float32. Where alpha or K is 0 the product is left out and a and b are not read.
        beta: Applied as float32; other than 1 only with a c.
        activation: none, relu, gelu (the erf form), gelu_tanh, silu, sigmoid, tanh, hardswish, leaky_relu or clamp.
        activation_args: leaky_relu: (slope,), 0.01 by default; clamp: (lo, hi). Applied as float32.
        out_dtype: D's dtype: a's, the default, or float32.
        precision: Of float32 products on CUDA: "ieee" or "tf32". None follows torch's own setting,
            torch.backends.cuda.matmul.fp32_precision, which torch.set_float32_matmul_precision and allow_tf32 set too.
        numerics: "deterministic", the default, or "batch_invariant", for float16 and bfloat16: on one GPU architecture
            a row of D has the same bits whatever M is and wherever in the batch the row stands (docs/numerics.md).
        schedule: "auto" leaves the schedule to the selector; another is honoured or refused with the reason.
        splits: Cuts of K; 0 leaves them to the selector, another number is honoured or refused with the reason.
        kernel: A kernel's name, honoured or refused with the reason; None leaves it to the selector.
        out: Receives D and is returned. D's shape, its own dtype, any strides that put no two elements at one
            address. It may be exactly c and must not overlap an input otherwise.

    Returns:
        D: (M, N), (batch, M, N) or (..., M, N), row-major contiguous unless it is out.

    Raises:
        ValueError: An argument is wrong.
        RuntimeError: The call is not supported or not built here, or with out a tensor requires grad while grad mode
            is on. Either is one sentence, before anything is launched.
        torch.OutOfMemoryError: There is no memory for D or for the workspace.

    Differentiable in a, b, c and bias, any number of times; not in forward mode (jvp).

    Equal calls give equal bits, run after run on one GPU model, so torch.use_deterministic_algorithms has nothing to
    change. The error bound is the Numerics contract of docs/design.md. CPU tensors are computed in float64 and
    rounded once: for tests and for machines without a GPU, not for speed.
    """
    if out is not None and out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(f"out_dtype: is {out_dtype} but out has dtype {out.dtype}: out decides; leave out_dtype None")
    if precision is None:
        precision = _precision_of_torch(a)
    d_shape = None
    if a.dim() > 3:
        a, c, out_folded, d_shape = fold_leading(a, b, c, out)
    else:
        out_folded = out
    tensors = (a, b, c, bias, scale_a, scale_b, scale_d)
    options: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "activation": activation,
        "activation_args": activation_args,
        "precision": precision,
        "numerics": numerics,
        "schedule": schedule,
        "splits": splits,
    }
    if strict_is_on() and a.is_cuda:
        _check_strictly(tensors, options | {"out": out_folded, "out_dtype": out_dtype, "kernel": kernel})
    options[KERNEL] = kernel
    if out_folded is not None:
        _gemm_out(*tensors, **options, out=out_folded)
        assert out is not None
        return out
    d: Tensor = _gemm(*tensors, **options, out_dtype=out_dtype)
    return d if d_shape is None else d.view(d_shape)


def gemm_aux(  # noqa: PLR0917, the order of the op's schema
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: Precision | None = None,
    numerics: Numerics | None = None,
    schedule: Schedule | None = None,
    splits: int = 0,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(D, Z) with Z = alpha * (A @ B) + beta * C + bias and D = act(Z): gemm, and the pre-activation beside D.

    Arguments, errors and determinism are gemm's, without out. D is act of Z in float32, before Z is rounded; Z is
    rounded once to D's dtype and has D's shape, row-major contiguous. D has the bits of gemm's where both run the same
    tile and splits. Differentiable as gemm, in D and Z.
    """
    if precision is None:
        precision = _precision_of_torch(a)
    shape = None
    if a.dim() > 3:
        a, c, _, shape = fold_leading(a, b, c, None)
    tensors = (a, b, c, bias, scale_a, scale_b, scale_d)
    options: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "activation": activation,
        "activation_args": activation_args,
        "out_dtype": out_dtype,
        "precision": precision,
        "numerics": numerics,
        "schedule": schedule,
        "splits": splits,
    }
    if strict_is_on() and a.is_cuda:
        _check_strictly(tensors, options | {"kernel": kernel, "aux": True})
    d, z = _gemm_aux(*tensors, **options, **{KERNEL: kernel})
    return (d, z) if shape is None else (d.view(shape), z.view(shape))


def gemm_gated(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    *,
    alpha: float = 1.0,
    activation: Activation | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: Precision | None = None,
    numerics: Numerics | None = None,
    schedule: Schedule | None = None,
    splits: int = 0,
    kernel: str | None = None,
) -> Tensor:
    """D = act(Z[:, :N]) * Z[:, N:] with Z = alpha * (A @ B) + bias, accumulated in float32, rounded once.

    The first half of a gated MLP: SwiGLU with silu, GEGLU with gelu, ReGLU with relu, GLU with sigmoid.

    Args:
        a: (M, K) or (..., M, K); float32, float16 or bfloat16; any strides. Leading dimensions become rows: they are
            copied where their strides do not let them.
        b: (K, 2 N), the columns gate | up, a's dtype, any strides: a weight stored (2 N, K), torch.cat((gate, up)), is
            passed as weight.t().
        bias: (2 N,), gate | up; D's dtype, a's dtype or float32.
        scale_a: For 8-bit types, which this version does not compute; must be None.
        scale_b: As scale_a.
        alpha: As gemm's.
        activation: Of the gate: gemm's, silu by default.
        activation_args: As gemm's.
        out_dtype: D's dtype: a's, the default, or float32.
        precision: As gemm's.
        numerics: As gemm's.
        schedule: As gemm's.
        splits: As gemm's.
        kernel: As gemm's.

    Returns:
        D: (M, N) or (..., M, N), row-major contiguous.

    Raises:
        ValueError: An argument is wrong.
        RuntimeError: The call is not supported or not built here. Either is one sentence, before anything is launched.
        torch.OutOfMemoryError: There is no memory for D or for the workspace.

    Differentiable in a, b and bias, any number of times; not in forward mode (jvp). Equal calls give equal bits, run
    after run on one GPU model. Where no kernel of this form serves the call (explain says so) it takes two launches:
    the product into a float32 workspace, and the gate.
    """
    if precision is None:
        precision = _precision_of_torch(a)
    shape = None
    if a.dim() > 2:
        shape = (*a.shape[:-1], b.shape[-1] // 2)
        a = fold_rows(a)
    tensors = (a, b, bias, scale_a, scale_b)
    options: dict[str, Any] = {
        "alpha": alpha,
        "activation": activation,
        "activation_args": activation_args,
        "out_dtype": out_dtype,
        "precision": precision,
        "numerics": numerics,
        "schedule": schedule,
        "splits": splits,
    }
    if strict_is_on() and a.is_cuda:
        in_order = (a, b, None, bias, scale_a, scale_b)
        _check_strictly(in_order, options | {"kernel": kernel, "gated": True})
    d: Tensor = _gemm_gated(*tensors, **options, **{KERNEL: kernel})
    return d if shape is None else d.view(shape)


def gated_mlp(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    activation: Activation | None = None,
    precision: Precision | None = None,
) -> Tensor:
    """gemm(gemm_gated(x, gate_up, gate_up_bias), down, bias=down_bias), bit for bit, as one node of autograd.

    Its backward computes dZ of gate and up, the gate's backward on the gradient through `down`, in one launch where a
    kernel of that form serves the call. x: (M, K) or (..., M, K); the others are 2-D. For calls that autograd records:
    elsewhere the two functions cost less.
    """
    if precision is None:
        precision = _precision_of_torch(x)
    d: Tensor = _gated_mlp(
        fold_rows(x) if x.dim() > 2 else x,
        gate_up,
        down,
        gate_up_bias,
        down_bias,
        activation=activation,
        precision=precision,
    )
    return d if x.dim() == 2 else d.view(*x.shape[:-1], d.shape[-1])


def _check_strictly(tensors: Sequence[Tensor | None], options: dict[str, Any]) -> None:
    """RuntimeError where the call, on CUDA tensors, takes a slower path, or where nothing can say whether it does."""
    a = tensors[0]
    assert a is not None
    refuse_tracing()
    if torch.is_autocast_enabled(a.device.type) and options.get("out") is None:
        tensors, options = _transforms.autocast(tensors, options)
    refuse_slow_path(check(*tensors, **options), a.device)  # type: ignore[arg-type]


def _precision_of_torch(a: Tensor) -> Precision | None:
    """The setting of torch for float32 products on CUDA. It is "none" or "ieee" unless the caller allowed tf32."""
    if a.dtype == torch.float32 and a.is_cuda and _float32_precision() == "tf32":
        return "tf32"
    return None


def _float32_precision() -> str:
    setting: str = torch.backends.cuda.matmul.fp32_precision
    return setting


# Dynamo of torch 2.11 can't trace the setting's getter. It evaluates a function marked so once, while it traces, and
# guards on torch's global settings. torch.compiler.assume_constant_result sets the same mark, but imports the compiler.
setattr(_float32_precision, "_dynamo_marked_constant", True)  # noqa: B010
