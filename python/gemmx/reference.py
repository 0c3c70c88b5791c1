"""gemm and its forms in plain torch: what every kernel computes, and how far from it a kernel may be.

    Z = alpha * (A @ B) + beta * C + bias        D = act(Z), rounded once
    gated: B and bias have 2 N columns, gate | up        D = act(Z gate) * Z up, rounded once

The order of operations, what is left out and the bound are the contract of docs/design.md. alpha, beta and the
activation's arguments act as float32 numbers everywhere, so they are rounded to float32 first; all else is computed
in float64. Runs on any device: the op uses it for CPU tensors, the tests as the oracle for CUDA tensors.

Shapes: a (M, K) or (batch, M, K); b (K, N) or (batch, K, N); c broadcasts to D; bias (N,); D (M, N) or
(batch, M, N). No argument is checked here; the op does that.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Half the distance of 1 to the next number of the type: the largest relative error of one rounding.
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# Relative error of one product of float32 inputs beyond float32's own.
PRODUCT_ERROR = {"ieee": 0.0, "tf32": 2.0**-9, "3xtf32": 3 * 2.0**-22}
# The largest slope of an activation, by which it can enlarge an error of Z; 1 where it is not named.
LIPSCHITZ = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "hardswish": 1.5}
DEFAULT_SLOPE = 0.01  # of leaky_relu, as in torch


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """D, contiguous, in out_dtype (default: a's dtype; compute_dtype itself leaves the last rounding out)."""
    z = pre_activation(a, b, c, bias, alpha=alpha, beta=beta, compute_dtype=compute_dtype)
    return round_to(activate(z, activation, activation_args), out_dtype or a.dtype)


def pre_activation(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    batch_invariant: bool = False,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Z, in compute_dtype; rounded to D's dtype it is what gemm_aux returns.

    batch_invariant, for 16-bit operands: a row has the same bits whatever M is and wherever it stands, which a BLAS
    does not promise, since it may sum in another order for another M. D then takes its activation or gate by by_rows().
    """
    product = _product_in_order if batch_invariant else _product
    return _add_c_and_bias(product(a, b, alpha, compute_dtype), c, bias, beta)


def by_rows(
    function: Callable[[Tensor, str | None, Sequence[float] | None], Tensor],
    z: Tensor,
    activation: str | None = None,
    args: Sequence[float] | None = None,
) -> Tensor:
    """The function, activate or gate, of one row at a time, so that a row's bits do not depend on its place.

    torch's loops compute the elements at their ends by other code than the rest.
    """
    rows = [function(row.clone(), activation, args) for row in z.flatten(0, -2)] if z.numel() else []
    if not rows:
        return function(z, activation, args)
    return torch.stack(rows).view(*z.shape[:-1], -1)


def error_bound(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str | None = None,
) -> Tensor:
    """The largest |D - D64| that the Numerics contract allows each element of D, in D's shape, float64.

    u_out |D64| + L [(K 2^-24 + 2^-22 + e_p) |alpha| (|A| @ |B|) + 2^-22 (|beta C| + |bias|)]
      + [activation] 2^-21 (|Z64| + |D64|) + tiny
    """
    out_dtype = out_dtype or a.dtype
    k = a.shape[-1]
    lipschitz = LIPSCHITZ.get(activation or "none", 1.0)
    if activation == "leaky_relu" and activation_args:
        lipschitz = max(1.0, abs(_float32(activation_args[0])))

    z = _add_c_and_bias(_product(a, b, alpha, torch.float64), c, bias, beta)
    d = activate(z, activation, activation_args).abs()
    bound = UNIT_ROUNDOFF[out_dtype] * d
    if activation not in (None, "none"):
        bound += 2.0**-21 * (z.abs() + d)
    del z, d
    per_product = k * 2.0**-24 + 2.0**-22 + PRODUCT_ERROR[precision or "ieee"]
    bound += (lipschitz * per_product) * _product(a.abs(), b.abs(), abs(alpha), torch.float64)
    c, bias = (None if x is None else x.abs() for x in (c, bias))
    bound += (lipschitz * 2.0**-22) * _add_c_and_bias(torch.zeros_like(bound), c, bias, abs(beta))
    return bound.add_(tiny(out_dtype, k, alpha, lipschitz))


def tiny(out_dtype: torch.dtype, k: int, alpha: float = 1.0, lipschitz: float = 1.0) -> float:
    """What gradual underflow adds to the bound.

    Half of D's least subnormal number for the last rounding, and half of float32's for each of the K products and the
    few operations after them.
    """
    info = torch.finfo(out_dtype)
    least_subnormal = info.smallest_normal * info.eps
    return least_subnormal / 2 + lipschitz * (k * abs(_float32(alpha)) + 4) * 2.0**-150


def outside_bound(d: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """Which elements of D are wrong: a boolean tensor of D's shape.

    exact: gemm(..., out_dtype=torch.float64); bound: error_bound(...). Where the exact value or the bound is not
    finite D must be the exact value, rounded; NaN answers NaN. An infinite D is right where D's type overflows
    within the bound.
    """
    info = torch.finfo(d.dtype)
    overflow = info.max / (2 - info.eps) * (2 - info.eps / 2)  # from here on a number rounds to infinity
    rounded = round_to(exact, d.dtype)
    right = (d == rounded) | (d.isnan() & exact.isnan())
    right |= bound.isfinite() & ((d.double() - exact).abs() <= bound)
    right |= d.isinf() & (exact.abs() + bound >= overflow) & (d.sign() == exact.sign())
    return ~right


def activate(  # noqa: PLR0911, one line an activation
    z: Tensor, activation: str | None = None, args: Sequence[float] | None = None
) -> Tensor:
    """Applies the activation to z. A NaN stays NaN in every one."""
    values = [_float32(x) for x in args or ()]
    match activation:
        case None | "none":
            return z
        case "relu":
            return z.clamp(min=0.0)
        case "gelu":  # z Phi(z); erfc keeps the digits of Phi that 1 + erf cancels for z < 0
            return 0.5 * z * torch.erfc(-math.sqrt(0.5) * z)
        case "gelu_tanh":  # 0.5 z (1 + tanh u) = z sigmoid(2u)
            return z * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
        case "silu":
            return z * torch.sigmoid(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "tanh":
            return torch.tanh(z)
        case "hardswish":
            return z * (z + 3).clamp(0.0, 6.0) / 6
        case "leaky_relu":
            return torch.where(z < 0, z * (values[0] if values else _float32(DEFAULT_SLOPE)), z)
        case "clamp":
            return z.clamp(*values)
    raise ValueError(f"activation: {activation!r} is unknown")


def gate(z: Tensor, activation: str | None = None, args: Sequence[float] | None = None) -> Tensor:
    """act(gate) * up of z's columns gate | up. The activation None is silu."""
    z_gate, z_up = z.chunk(2, -1)
    return activate(z_gate, activation or "silu", args) * z_up


# Activations whose derivative their own value tells, so that D is saved for it and no Z.
SAVE_D = ("relu", "leaky_relu", "sigmoid", "tanh")


def derivative(  # noqa: PLR0911, one line an activation
    x: Tensor, activation: str | None = None, args: Sequence[float] | None = None, *, of_d: bool = False
) -> Tensor:
    """act'(Z) of x = Z, or with of_d, for an activation in SAVE_D, of x = act(Z). Differentiable in x.

    Where act has a corner it is what torch takes: relu'(0) = 0, leaky_relu'(0) = slope, hardswish'(-3) = 0 and
    hardswish'(3) = 1, clamp' = 1 at lo and hi.
    """
    values = [_float32(v) for v in args or ()]
    one = torch.ones_like(x)
    match activation:
        case None | "none":
            return one
        case "relu":
            return torch.where(x <= 0, 0.0, one)
        case "gelu":  # Phi(z) + z phi(z)
            return 0.5 * torch.erfc(-math.sqrt(0.5) * x) + x * torch.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        case "gelu_tanh":  # z s(2u): s + z s (1 - s) 2u'
            scale = 2 * math.sqrt(2 / math.pi)
            s = torch.sigmoid(scale * (x + 0.044715 * x**3))
            return s + x * s * (1 - s) * scale * (1 + 3 * 0.044715 * x * x)
        case "silu":
            s = torch.sigmoid(x)
            return s * (1 + x * (1 - s))
        case "sigmoid":
            s = x if of_d else torch.sigmoid(x)
            return s * (1 - s)
        case "tanh":
            t = x if of_d else torch.tanh(x)
            return 1 - t * t
        case "hardswish":
            return torch.where(x <= -3, 0.0, torch.where(x >= 3, one, x / 3 + 0.5))
        case "leaky_relu":
            return torch.where(x > 0, one, values[0] if values else _float32(DEFAULT_SLOPE))
        case "clamp":
            return torch.where((x >= values[0]) & (x <= values[1]), one, 0.0)
    raise ValueError(f"activation: {activation!r} is unknown")


def activation_backward(
    grad: Tensor,
    saved: Tensor,
    *,
    activation: str | None = None,
    activation_args: Sequence[float] | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """DZ = grad * act'(Z), in compute_dtype. saved is D for the activations in SAVE_D, else Z."""
    x = saved.to(compute_dtype)
    return grad.to(compute_dtype) * derivative(x, activation, activation_args, of_d=activation in SAVE_D)


def gated_backward(
    grad: Tensor,
    z: Tensor,
    *,
    activation: str | None = None,
    activation_args: Sequence[float] | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """DZ = grad * up * act'(gate) | grad * act(gate), in compute_dtype. The activation None is silu."""
    activation = activation or "silu"
    z_gate, z_up = z.to(compute_dtype).chunk(2, -1)
    grad = grad.to(compute_dtype)
    d_gate = grad * z_up * derivative(z_gate, activation, activation_args)
    return torch.cat((d_gate, grad * activate(z_gate, activation, activation_args)), -1)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds x to dtype once, to nearest even.

    torch converts float64 to a 16-bit type by way of float32, which rounds twice: 1 + 2^-8 + 2^-40 becomes
    1 + 2^-8 and then, as a tie, the bfloat16 1 instead of 1 + 2^-7. Rounded to odd in float32 (when inexact, to the
    neighbour whose last bit is 1) it keeps which side of a tie it was on.
    """
    if x.dtype != torch.float64 or dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    nearest = x.to(torch.float32)
    toward_x = torch.copysign(torch.full_like(nearest, math.inf), (x - nearest).to(torch.float32))
    is_even = nearest.view(torch.int32) & 1 == 0
    return torch.where((x != nearest) & is_even, torch.nextafter(nearest, toward_x), nearest).to(dtype)


def _float32(x: float) -> float:
    return ctypes.c_float(x).value


def _product(a: Tensor, b: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """Computes alpha * (A @ B); 0, with A and B left unread, where alpha or K is 0."""
    alpha = _float32(alpha)
    if alpha == 0 or a.shape[-1] == 0:
        batch = a.shape[:-2] or b.shape[:-2]
        return torch.zeros(*batch, a.shape[-2], b.shape[-1], dtype=dtype, device=a.device)
    return torch.matmul(a.to(dtype), b.to(dtype)).mul_(alpha)


def _product_in_order(a: Tensor, b: Tensor, alpha: float, dtype: torch.dtype) -> Tensor:
    """As _product, each element summed in ascending order of K, one addition at a time.

    In float64 products of 16-bit numbers are exact: it does not matter whether they are fused into the addition. A pass
    over D for each k: for tests, not for speed.
    """
    alpha = _float32(alpha)
    z = torch.zeros(*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1], dtype=dtype, device=a.device)
    if alpha == 0 or a.shape[-1] == 0:
        return z
    a, b = a.mT.to(dtype).contiguous(), b.to(dtype).contiguous()  # both K first
    for k in range(a.shape[-2]):
        z.addcmul_(a[..., k, :, None], b[..., k, None, :])
    return z.mul_(alpha)


def _add_c_and_bias(z: Tensor, c: Tensor | None, bias: Tensor | None, beta: float) -> Tensor:
    """Adds beta * C + bias to z in its memory; C is left unread where beta is 0."""
    beta = _float32(beta)
    if c is not None and beta != 0:
        z += beta * c.to(z.dtype)
    if bias is not None:
        z += bias.to(z.dtype)
    return z
