"""Whether a call is right: csrc/core/checks.cpp on torch's tensors, and what it says where sizes are symbols.

The dispatch keys that are written in Python (_dispatch.py) come here, and explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gemmx import _C
from gemmx._dtypes import DTYPES, dtype_name


def describe(tensor: Tensor) -> _C.TensorDesc:
    """The tensor as _C.check_gemm sees it. A fake or meta tensor has no address: it counts as aligned."""
    fake = tensor.is_meta or isinstance(tensor, FakeTensor)
    return _C.TensorDesc(
        dtype_name(tensor.dtype),
        tensor.device.type,
        tensor.device.index or 0,
        tensor.shape,
        tensor.stride(),
        0 if fake else tensor.data_ptr(),
    )


def check(  # noqa: PLR0917
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> _C.Checked:
    """_C.check_gemm, the check of every dispatch key, on tensors of concrete sizes.

    Options are gemmx.gemm's, and gated, aux and gate_gradient, which say the form.
    """
    checked = _C.check_gemm(
        describe(a),
        describe(b),
        *(None if t is None else describe(t) for t in (c, bias, scale_a, scale_b, scale_d)),
        out=None if out is None else describe(out),
        out_dtype=None if out_dtype is None else dtype_name(out_dtype),
        **options,
    )
    if a.device.type == "cpu":
        _refuse_cuda_requests(**options)
    return checked


def check_backward(
    grad: Tensor,
    saved: Tensor,
    *,
    activation: str | None,
    activation_args: Sequence[float] | None = None,
    gated: bool = False,
) -> _C.CheckedBackward:
    """_C.check_activation_backward on tensors of concrete sizes."""
    return _C.check_activation_backward(
        describe(grad), describe(saved), activation=activation, activation_args=activation_args, gated=gated
    )


def _refuse_cuda_requests(kernel: str | None = None, schedule: str | None = None, splits: int = 0, **_: Any) -> None:
    """What only a CUDA kernel can honour is refused on the CPU, not ignored."""
    requests = (("kernel", kernel, (None, "")), ("schedule", schedule, (None, "", "auto")), ("splits", splits, (0,)))
    for name, value, defaults in requests:
        if value not in defaults:
            raise RuntimeError(
                f"{name}: is {value!r} but a is on cpu, where the reference runs and no kernel; leave {name} "
                f"at its default or move the tensors to cuda"
            )


# ---- sizes that are symbols ---------------------------------------------------------------------------------------


def are_symbolic(*tensors: Tensor | None) -> bool:
    """Whether some size or stride is a symbol."""
    return any(isinstance(x, torch.SymInt) for t in tensors if t is not None for x in (*t.shape, *t.stride()))


def holds(condition: Any) -> bool:
    """A condition on sizes or strides; False, and no guard that fixes a symbol, where it depends on data."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


class Result(NamedTuple):
    """What a call returns. Sizes may be symbols."""

    d_sizes: Sequence[Any]
    z_sizes: Sequence[Any]
    dtype: torch.dtype  # of both


def check_symbolic(  # noqa: PLR0917
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    gated: bool = False,
    gate_gradient: bool = False,
    **options: Any,
) -> Result:
    """What a call returns where some size is a symbol.

    The shape checks of csrc/core/checks.cpp are repeated here without fixing a symbol: an equality of two symbols
    becomes a guard, and only sizes of c are compared with a number, 1. All else is checked by _C.check_gemm on
    stand-in tensors that have small sizes in place of the real ones.
    """
    batch, m, columns = _check_symbolic_shapes(a, b, gated)
    z_sizes = [*batch, m, columns]
    d_sizes = [*batch, m, columns // 2] if gated else z_sizes
    if gate_gradient:
        d_sizes = z_sizes = _check_symbolic_z(c, z_sizes)
    elif c is not None:
        _check_symbolic_c(c, d_sizes)
    if bias is not None:
        if bias.dim() != 1:
            raise ValueError(f"bias: has {bias.dim()} dimensions but it must be (N,): one value a column of D")
        torch._check_value(
            bias.shape[0] == columns,
            lambda: f"bias: shape is ({bias.shape[0]},) but it must be {'(2 N,)' if gated else '(N,)'} = ({columns},)",
        )
    if out is not None:
        if out.dim() != len(d_sizes):
            raise ValueError(f"out: has {out.dim()} dimensions but D has {len(d_sizes)}")
        for have, want in zip(out.shape, d_sizes, strict=True):
            torch._check_value(have == want, lambda: f"out: shape is {tuple(out.shape)} but D is {tuple(d_sizes)}")

    if options.get("numerics") == "batch_invariant":  # whose cuts of K the stand-ins' K does not tell
        options = options | {"splits": 0}
    m, n, k = 3, 4, 5
    d = [2] * len(batch) + [m, n // 2 if gated else 2 * n if gate_gradient else n]
    checked = _C.check_gemm(
        _stand_in(a, [2, m, k][-a.dim() :]),
        _stand_in(b, [2, k, n][-b.dim() :]),
        None if c is None else _stand_in(c, d[len(d) - c.dim() :]),
        None if bias is None else _stand_in(bias, [n]),
        *(None if t is None else _stand_in(t, [1]) for t in (scale_a, scale_b, scale_d)),
        out=None if out is None else _stand_in(out, d),
        out_dtype=None if out_dtype is None else dtype_name(out_dtype),
        gated=gated,
        gate_gradient=gate_gradient,
        **options,
    )
    if a.device.type == "cpu":
        _refuse_cuda_requests(**options)
    return Result(d_sizes, z_sizes, DTYPES[checked.d_dtype])


def _check_symbolic_shapes(a: Tensor, b: Tensor, gated: bool) -> tuple[list[Any], Any, Any]:
    """(batch, M, columns of b)."""
    of_b = "(K, 2 N), the columns gate | up" if gated else "(K, N) or (batch, K, N)"
    rule = f"a is (M, K) or (batch, M, K) and b is {of_b}"
    for name, x, dims in (("a", a, (2, 3)), ("b", b, (2,) if gated else (2, 3))):
        if x.dim() not in dims:
            raise ValueError(f"{name}: has {x.dim()} dimensions, but {rule}")
    torch._check_value(b.shape[-2] == a.shape[-1], lambda: f"b: K is {b.shape[-2]} but a has K = {a.shape[-1]}: {rule}")
    if a.dim() == b.dim() == 3:
        torch._check_value(
            b.shape[0] == a.shape[0], lambda: f"b: batch is {b.shape[0]} but a has batch = {a.shape[0]}: {rule}"
        )
    if gated:
        torch._check_value(
            b.shape[1] % 2 == 0, lambda: f"b: has {b.shape[1]} columns, an odd number, but {rule}, as many of each"
        )
    return list(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1]


def _check_symbolic_z(z: Tensor | None, sizes: list[Any]) -> list[Any]:
    """The sizes of Z, which is c, and of its gradient; those of the product given."""
    if z is None or z.dim() != 2 or len(sizes) != 2:
        raise ValueError("z: the gradient of a gate takes a (M, K), b (K, N) and z (M, 2 N)")
    wanted = [sizes[0], 2 * sizes[1]]
    for have, want in zip(z.shape, wanted, strict=True):
        torch._check_value(have == want, lambda: f"z: shape is {tuple(z.shape)} but it must be {tuple(wanted)}")
    return wanted


def _check_symbolic_c(c: Tensor, sizes: list[Any]) -> None:
    if c.dim() > len(sizes):
        raise ValueError(f"c: has {c.dim()} dimensions but D has {len(sizes)} and c may not enlarge it")
    for have, want in zip(reversed(c.shape), reversed(sizes), strict=False):
        if not holds(have == 1):
            torch._check_value(
                have == want,
                lambda: (
                    f"c: shape is {tuple(c.shape)} but it must broadcast to D's shape {tuple(sizes)} without "
                    f"enlarging it"
                ),
            )


def check_backward_symbolic(grad: Tensor, saved: Tensor, *, gated: bool = False, **options: Any) -> None:
    """As check_backward, where some size is a symbol."""
    name = "z" if gated else "saved"
    if saved.dim() not in (2, 3) or grad.dim() != saved.dim():
        raise ValueError(f"grad: has {grad.dim()} dimensions and {name} has {saved.dim()}; both have two or three")
    columns = saved.shape[-1] // 2 if gated else saved.shape[-1]
    if gated:
        torch._check_value(saved.shape[-1] % 2 == 0, lambda: f"z: has {saved.shape[-1]} columns, an odd number")
    for have, want in zip(grad.shape, (*saved.shape[:-1], columns), strict=True):
        torch._check_value(
            have == want, lambda: f"grad: shape is {tuple(grad.shape)} but {name}'s is {tuple(saved.shape)}"
        )
    sizes = [2, 3, 4][-saved.dim() :]
    of_grad = [*sizes[:-1], 2] if gated else sizes
    _C.check_activation_backward(_stand_in(grad, of_grad), _stand_in(saved, sizes), gated=gated, **options)


def _stand_in(tensor: Tensor, sizes: list[int]) -> _C.TensorDesc:
    """A contiguous tensor of these sizes with the tensor's dtype and device."""
    strides = [1] * len(sizes)
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * sizes[i + 1]
    device = tensor.device
    return _C.TensorDesc(dtype_name(tensor.dtype), device.type, device.index or 0, sizes, strides, 0)
