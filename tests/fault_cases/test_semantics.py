"""B06-B13: alpha, beta, C and the epilogue mean the same on every path."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmx
from every_way import OP, assert_every_way_is_right, every_way, normal, on_every_device, results
from gemmx import reference
from problems import ACTIVATIONS, DTYPES, PACKED, Layout

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


@on_every_device
@dtypes
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_b06_beta_0_reads_no_c(place: str, dtype: torch.dtype, value: float) -> None:
    for batch, m, k, n in (((1,), 64, 128, 3520), ((), 64, 128, 3520), ((3,), 17, 40, 33)):
        a = normal(*batch, m, k, dtype=dtype, device=place)
        b = normal(*batch, k, n, dtype=dtype, device=place)
        if place == "cpu":
            a, b = a[..., :4, :], b[..., :24]
        shape = (*batch, a.shape[-2], b.shape[-1])
        for c_shape in (tuple(1 for _ in shape), shape, (shape[-1],)):
            c = torch.full(c_shape, value, dtype=dtype, device=place)
            assert_every_way_is_right(a, b, c=c, alpha=0.088, beta=0.0)
            assert_every_way_is_right(a, b, c=c, alpha=0.088, beta=0.0, activation="silu", outs=(PACKED,))


@on_every_device
@dtypes
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_b07_alpha_0_reads_no_product(place: str, dtype: torch.dtype, value: float) -> None:
    row = torch.tensor([[1.0, -2.0, 3.0, 0.5]], dtype=dtype, device=place)
    for batch, m, n, k in (((), 1, 4, 4), ((), 64, 64, 64), ((3,), 64, 64, 64), ((), 65, 130, 257)):
        a = torch.full((*batch, m, k), value, dtype=dtype, device=place)
        b = normal(*batch, k, n, dtype=dtype, device=place)
        c = row if n == 4 else normal(*batch, m, n, dtype=dtype, device=place)
        for x, y in ((a, b), (b.mT if m == n else a, b)):
            for what, d in every_way(x, y, c=c, alpha=0.0):
                assert torch.equal(d, c.expand(d.shape)), what
        for what, d in every_way(a, b, alpha=0.0):
            assert not d.any(), what


C_SHAPES = [
    ((3, 11), (7,), False), ((1, 1), (500, 1), False), ((3, 11), (), True), ((3, 11), (11,), True),
    ((3, 11), (3, 1), True), ((3, 11), (1, 1), True), ((3, 11), (1, 3, 11), False), ((3, 11), (11, 3), False),
    ((3, 11), (2, 11), False), ((3, 11), (0, 11), False), ((1, 11), (3, 11), False),
]  # fmt: skip


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize(("d_shape", "c_shape", "legal"), C_SHAPES)
@on_every_device
def test_b08_one_rule_for_the_shape_of_c(
    place: str, d_shape: tuple[int, int], c_shape: tuple[int, ...], legal: bool, beta: float
) -> None:
    """Eager, fake, meta and compiled; whatever beta is. C broadcasts to D's shape and never enlarges it."""
    a, b, c = (torch.ones(shape, device=place) for shape in ((d_shape[0], 5), (5, d_shape[1]), c_shape))
    mode = FakeTensorMode()

    def fake() -> Tensor:
        fakes = [mode.from_tensor(x) for x in (a, b, c)]
        with mode:
            return OP(*fakes, beta=beta)

    paths: dict[str, Callable[[], Tensor]] = {
        "op": lambda: OP(a, b, c, beta=beta),
        "gemmx.gemm": lambda: gemmx.gemm(a, b, c, beta=beta),
        "fake": fake,
        "meta": lambda: OP(a.to("meta"), b.to("meta"), c.to("meta"), beta=beta),
        "compiled": lambda: torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True)(a, b, c, beta=beta),
    }
    for path, call in paths.items():
        if legal:
            assert call().shape == d_shape, path
        else:
            with pytest.raises((ValueError, RuntimeError), match=r"c: shape is .* must broadcast to D's shape"):
                call()
    torch._dynamo.reset()


@on_every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_b10_scaling_comes_before_the_one_rounding(place: str, dtype: torch.dtype) -> None:
    """The accumulator, 131072, is beyond float16; alpha brings it to 512, and C and bias come in before rounding."""
    n = 8 if place == "cpu" else 72
    a = torch.full((4, 1024), 16.0, device=place, dtype=dtype)
    for b in (
        torch.full((n, 1024), 8.0, device=place, dtype=dtype).t(),
        torch.full((1024, n), 8.0, device=place, dtype=dtype),
    ):
        for what, d in every_way(a, b, alpha=1 / 256):
            assert (d == 512.0).all(), what
        # -131072 from C would be infinite as float16: it is C in float32 that takes the sum back into range.
        c = torch.full((4, n), -131_072.0, device=place)
        for what, d in every_way(a, b, c=c, bias=torch.full((n,), 3.0, device=place), activation="relu"):
            assert (d == 3.0).all(), what


@on_every_device
@pytest.mark.parametrize(("name", "at", "value"), [("gelu", -2.699, -0.009387), ("gelu_tanh", -2.699, -0.008914)])
def test_b12_gelu_is_the_named_one_on_every_path(place: str, name: Any, at: float, value: float) -> None:
    x = torch.linspace(-6, 6, 96 * 97, device=place).view(97, 96)
    x[0, 0] = at
    one = torch.eye(96, device=place)
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh" if name == "gelu_tanh" else "none")
    assert abs(expected[0, 0].item() - value) < 1e-5
    found = [(what, d) for what, d in every_way(x, one, activation=name)]
    found.append(("compiled", torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True)(x, one, activation=name)))
    found.append(("not fused", reference.activate(OP(x, one), name)))
    for what, d in found:
        assert (d.double() - expected).abs().max() < 1e-5, what


@on_every_device
@dtypes
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_b12_activations_at_their_edges(
    place: str, dtype: torch.dtype, activation: tuple[str, tuple[float, ...]]
) -> None:
    """Zeros, kinks, saturation and NaN, within the bound of the contract."""
    name, args = activation
    edges = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, -2.699, 6.0, -6.0, 20.0, -20.0, 1e-4, -1e-4, 300.0, -300.0, float("nan")]
    x = torch.tensor(edges, device=place, dtype=dtype).repeat(16, 1)
    one = torch.ones(1, 1, device=place, dtype=dtype)
    options: dict[str, Any] = {"activation": name, "activation_args": args or None}
    # K = 1, so that a NaN stays in its row or column; and a full tile of them.
    assert_every_way_is_right(one, x[:1], **options, outs=(None,))
    assert_every_way_is_right(x[:1].mT, one, **options, outs=(None,))
    assert_every_way_is_right(x, torch.eye(16, device=place, dtype=dtype), **options, outs=(None,))


@on_every_device
@dtypes
def test_b13_the_activation_reaches_any_out(place: str, dtype: torch.dtype) -> None:
    for m, n, k in ((17, 24, 40), (130, 136, 64)):
        if place == "cpu" and m > 64:
            continue
        a, b = normal(m, k, dtype=dtype, device=place), normal(k, n, dtype=dtype, device=place)
        bias, c = normal(n, dtype=dtype, device=place), normal(m, n, dtype=dtype, device=place)
        outs = [Layout(along, pad_to, pad, offset, step) for along, (pad_to, pad), offset, step in itertools.product(
            ("rows", "cols"), ((1, 0), (8, 8), (1, 5)), (0, 1), (1, 2))]  # fmt: skip
        for activation in ("relu", "gelu"):
            options: dict[str, Any] = {"bias": bias, "activation": activation}
            exact = reference.gemm(a, b, **options, out_dtype=torch.float64)
            bound = reference.error_bound(a, b, **options)
            for what, d in results(a, b, outs=outs, **options):
                assert not reference.outside_bound(d, exact, bound).any(), what
        assert_every_way_is_right(a, b, c=c, beta=0.5, activation="silu", outs=outs[:4])
