"""Gradients of CUDA tensors through the op, the function and torch.compile, against float64 and beside torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812, as everybody calls it
from torch import Tensor

import gemmx
from gemmx import _C
from gemmx.ops import describe

pytestmark = pytest.mark.gpu

Call = Callable[..., Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
}
WAYS = ("op", "function", "compiled op", "compiled function")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def linear(way: str, activation: str) -> Call:
    name: Any = None if activation == "none" else activation

    def op(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.gemmx.gemm(x, w.t(), None, bias, activation=name)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return gemmx.gemm(x, w.t(), bias=bias, activation=name)

    return made(way, op, function)


def gated(way: str) -> Call:
    def op(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.gemmx.gemm_gated(x, w.t(), bias)

    def function(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return gemmx.gemm_gated(x, w.t(), bias)

    return made(way, op, function)


def made(way: str, op: Call, function: Call) -> Call:
    call = op if "op" in way else function
    if "compiled" not in way:
        return call
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True)


def torchs_linear(activation: str) -> Call:
    return lambda x, w, bias: ACTIVATIONS[activation](F.linear(x, w, bias))


def torchs_gated(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    gate, up = F.linear(x, w, bias).chunk(2, -1)
    return F.silu(gate) * up


def gradients(call: Call, tensors: list[Tensor], weights: Tensor, dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors]
    return list(torch.autograd.grad(call(*leaves), leaves, weights.to(dtype)))


def error(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm())


def compare(own: Call, torchs: Call, columns: int, d_columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(300, 256), torch.randn(columns, 256) / 16, torch.randn(columns)]
    tensors = [x.cuda().to(dtype) for x in tensors]
    weights = torch.randn(300, d_columns, device="cuda").to(dtype)
    exact = gradients(torchs, tensors, weights, torch.float64)
    of_torch = gradients(torchs, tensors, weights, dtype)
    for x, y, reference in zip(gradients(own, tensors, weights, dtype), of_torch, exact, strict=True):
        assert x.dtype == dtype
        assert x.is_contiguous()
        assert error(x, reference) <= max(1.1 * error(y, reference), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_linear(way: str, activation: str, dtype: torch.dtype) -> None:
    if "compiled" in way and (activation in ("none", "gelu") or dtype == torch.float16):
        pytest.skip("compiled ways: two activations, two dtypes")
    compare(linear(way, activation), torchs_linear(activation), 128, 128, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_gated(way: str, dtype: torch.dtype) -> None:
    if "compiled" in way and dtype == torch.float16:
        pytest.skip("compiled ways: two dtypes")
    compare(gated(way), torchs_gated, 2 * 192, 192, dtype)


def test_one_launch_for_d_and_z() -> None:
    """A recorded call with an activation is one kernel of the form that keeps Z; without a gradient, a plain one."""
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(384, 512, device="cuda", dtype=torch.bfloat16)
    if not _C.form_supported(_C.check_gemm(*map(describe, (x, w.t())), aux=True).problem, _C.cuda_device(0)):
        pytest.skip("no kernel here keeps Z")
    for leaf, form in ((x, ""), (x.clone().requires_grad_(), "_aux")):
        before = _C.launch_counts()
        torch.ops.gemmx.gemm(leaf, w.t(), activation="silu")
        ran = [name for name, count in _C.launch_counts().items() if count > before[name]]
        assert len(ran) == 1
        assert ("_gemm_aux_" in ran[0]) == (form == "_aux")


def test_the_bits_of_a_recorded_call_are_those_of_any_other() -> None:
    x = torch.randn(200, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
    plain = torch.ops.gemmx.gemm(x, w.t(), activation="gelu", numerics="batch_invariant")
    recorded = torch.ops.gemmx.gemm(x.clone().requires_grad_(), w.t(), activation="gelu", numerics="batch_invariant")
    assert torch.equal(plain, recorded)
