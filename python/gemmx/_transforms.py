"""gemmx's ops under torch.autocast and torch.vmap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from gemmx._dispatch import OPS, library, register
from gemmx._library import NAMESPACE

# ---- autocast -----------------------------------------------------------------------------------------------------

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def autocast(
    args: Sequence[Tensor | None], options: dict[str, Any], has_c: bool = True
) -> tuple[list[Tensor | None], dict[str, Any]]:
    """The tensors and options of a call under torch.autocast: torch.addmm's rule, all in the 16-bit type.

    With out_dtype float32 the c, the third tensor where the op has one, is left as it is. A precision is dropped: it is
    for float32.
    """
    a = args[0]
    assert a is not None
    dtype = torch.get_autocast_dtype(a.device.type)
    kept = 2 if has_c and options.get("out_dtype") == torch.float32 else None
    cast = [
        x.to(dtype) if x is not None and i != kept and x.dtype in _FLOATS and x.device == a.device else x
        for i, x in enumerate(args)
    ]
    if dtype != torch.float32 and "precision" in options:
        options = options | {"precision": None}
    return cast, options


def _autocast_kernel(op: str, key: DispatchKey) -> Callable[..., Any]:
    overload, keys = getattr(OPS, op).default, DispatchKeySet(key)
    has_c = "gated" not in op

    def kernel(*args: Any, **options: Any) -> Any:
        args, options = autocast(args, options, has_c)  # type: ignore[assignment]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return overload(*args, **options)

    return kernel


for _op in ("gemm", "gemm_aux", "gemm_gated", "gemm_gated_aux", "_gated_mlp"):
    for _key in (DispatchKey.AutocastCPU, DispatchKey.AutocastCUDA):
        register(_op, _autocast_kernel(_op, _key), _key.name)

# ---- vmap ---------------------------------------------------------------------------------------------------------


def _own_dims(x: Tensor, dim: int | None) -> int:
    """Dimensions of one sample."""
    return x.dim() - (dim is not None)


def _first(x: Tensor, dim: int | None) -> Tensor:
    """The tensor with vmap's batch in front."""
    return x if dim is None else x.movedim(dim, 0)


def _fold(x: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    """(size * batch, rows, columns) of an operand that may lack either; one shared matrix stays that."""
    if dim is None and x.dim() == 2:
        return x
    x = _first(x, dim)
    if dim is not None and x.dim() == 3:
        x = x.unsqueeze(1)
    return x.expand(size, batch, *x.shape[-2:]).reshape(size * batch, *x.shape[-2:])


def _align(x: Tensor, dim: int | None, dims: int) -> Tensor:
    """The tensor, vmap's batch in front, of so many dimensions beside it, so that it broadcasts as each sample does."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (dims + 1 - x.dim()), *x.shape[1:])


def _bias_as_c(c: Tensor | None, bias: Tensor, beta: float) -> Tensor:
    """A bias for each sample is a row of C for each; float32, which is C's for every D. Both are aligned."""
    bias = bias.float()
    return bias if c is None or beta == 0 else beta * c.float() + bias


def _vmap_gemm(op: str) -> Callable[..., Any]:
    """The batching rule of gemm and gemm_aux: one call, whose batch is vmap's times the samples' own."""
    overload = getattr(OPS, op).default

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any, **options: Any) -> Any:
        missing: list[Any] = [None] * (7 - len(args))
        a, b, c, bias, *scales = list(args) + missing
        of_a, of_b, of_c, of_bias, *_ = list(in_dims) + missing
        size, has_batch = info.batch_size, 3 in (_own_dims(a, of_a), _own_dims(b, of_b))
        dims = 3 if has_batch else 2
        c = None if c is None else _align(c, of_c, dims)
        if of_bias is not None:
            c = _bias_as_c(c, _align(bias, of_bias, dims), options.get("beta", 1.0))
            bias, options["beta"] = None, 1.0
        if has_batch:
            batch = next(_first(x, dim).shape[-3] for x, dim in ((a, of_a), (b, of_b)) if _own_dims(x, dim) == 3)
            a, b = _fold(a, of_a, size, batch), _fold(b, of_b, size, batch)
            if c is not None:
                c = c.unsqueeze(0) if c.dim() == 1 else c
                c = c.expand(size, batch, *c.shape[-2:]).reshape(size * batch, *c.shape[-2:])
        else:
            a, b = _first(a, of_a), _first(b, of_b)
            if a.dim() == b.dim() == 2:  # C alone differs
                a = a.expand(size, *a.shape)
        result = overload(a, b, c, bias, *scales, **options)
        if not has_batch:
            return result, (0, 0) if isinstance(result, tuple) else 0
        if isinstance(result, tuple):
            return tuple(x.view(size, batch, *x.shape[1:]) for x in result), (0, 0)
        return result.view(size, batch, *result.shape[1:]), 0

    return rule


def _vmap_gated(op: str) -> Callable[..., Any]:
    """The batching rule of gemm_gated and gemm_gated_aux: more rows of one call, or a call for each b and bias."""
    overload = getattr(OPS, op).default

    def rule(info: Any, in_dims: Sequence[int | None], a: Tensor, *others: Any, **options: Any) -> Any:
        size = info.batch_size
        if all(dim is None for dim in in_dims[1:]):
            a = _first(a, in_dims[0])
            result = overload(a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), *others, **options)
            if isinstance(result, tuple):
                return tuple(x.view(*a.shape[:-1], x.shape[-1]) for x in result), (0, 0)
            return result.view(*a.shape[:-1], result.shape[-1]), 0
        args = list(zip((a, *others), in_dims, strict=True))
        calls = [overload(*(x if d is None else x.select(d, i) for x, d in args), **options) for i in range(size)]
        if isinstance(calls[0], tuple):
            return tuple(torch.stack(x) for x in zip(*calls, strict=True)), (0, 0)
        return torch.stack(calls), 0

    return rule


def _vmap_gated_mlp(info: Any, in_dims: Sequence[int | None], *args: Any, **options: Any) -> Any:
    """The batching rule of _gated_mlp: those of its two products."""
    x, gate_up, down, bias, down_bias = (*args, None, None)[:5]
    of_x, of_gate_up, of_down, of_bias, of_down_bias = (*in_dims, None, None)[:5]
    precision = {"precision": options.get("precision")}
    of_hidden, of_first = None, (of_x, of_gate_up, of_bias)
    if all(dim is None for dim in of_first):  # the second product alone differs
        hidden = OPS.gemm_gated.default(x, gate_up, bias, **options)
    else:
        hidden, of_hidden = _vmap_gated("gemm_gated")(info, of_first, x, gate_up, bias, **options)
    of_second = (of_hidden, of_down, None, of_down_bias)
    return _vmap_gemm("gemm")(info, of_second, hidden, down, None, down_bias, **precision)


def _vmap_gated_dgrad(info: Any, in_dims: Sequence[int | None], *args: Any, **options: Any) -> Any:
    """The batching rule of _gated_dgrad: more rows of one call, or a call for each b."""
    op = OPS._gated_dgrad.default
    size, (grad, b, z), (of_grad, of_b, of_z) = info.batch_size, args, in_dims
    if of_b is None:
        grad, z = (x.expand(size, *x.shape) if d is None else x.movedim(d, 0) for x, d in ((grad, of_grad), (z, of_z)))
        dz = op(grad.flatten(0, 1), b, z.flatten(0, 1), **options)
        return dz.view(z.shape), 0
    pairs = list(zip(args, in_dims, strict=True))
    return torch.stack([op(*(x if d is None else x.select(d, i) for x, d in pairs), **options) for i in range(size)]), 0


torch.library.register_vmap(f"{NAMESPACE}::_gated_mlp", _vmap_gated_mlp, lib=library)
torch.library.register_vmap(f"{NAMESPACE}::_gated_dgrad", _vmap_gated_dgrad, lib=library)
for _op in ("gemm", "gemm_aux"):
    torch.library.register_vmap(f"{NAMESPACE}::{_op}", _vmap_gemm(_op), lib=library)
for _op in ("gemm_gated", "gemm_gated_aux"):
    torch.library.register_vmap(f"{NAMESPACE}::{_op}", _vmap_gated(_op), lib=library)
