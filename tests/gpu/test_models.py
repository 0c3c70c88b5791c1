"""gemmx.nn and gemmx.convert on a GPU: beside torch's own layers, in graphs, compiled, in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gemmx
from models import MLP, decoder

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = {"hidden": 128, "intermediate": 384}


def model_of(dtype: torch.dtype) -> Any:
    return decoder(**SIZES).to("cuda", dtype)


def tokens() -> Tensor:
    return torch.arange(64, device="cuda").view(4, 16) % 11


def close(x: Tensor, y: Tensor, dtype: torch.dtype, scale: float | None = None) -> None:
    """Relative to the largest value: two orders of rounding through some layers."""
    scale = scale or y.float().abs().max().item()
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(x.float() / scale, y.float() / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_converted_decoder(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    original = copy.deepcopy(model)
    report = gemmx.convert(model)
    assert not report.left
    for m in (original, model):
        m(tokens()).float().square().mean().backward()
    close(model(tokens()), original(tokens()), dtype)
    report.restore()
    # The keys' bias has the gradient zero, softmax being what it is: rounding alone, to be compared with the others.
    largest = max(float(y.grad.abs().max()) for y in original.parameters())
    for (name, x), y in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(x, y), name
        assert x.grad is not None
        assert y.grad is not None
        close(x.grad, y.grad, dtype, largest if name.endswith("k_proj.bias") else None)
    assert torch.equal(model(tokens()), original(tokens()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_mlp(dtype: torch.dtype) -> None:
    """Against float64, closer than the original, which rounds between."""
    torch.manual_seed(0)
    theirs = MLP(256, 512, bias=True).to("cuda", dtype)
    model = nn.Sequential(copy.deepcopy(theirs))
    gemmx.convert(model)
    x = torch.randn(3, 5, 256, device="cuda").to(dtype)
    exact = copy.deepcopy(theirs).double()(x.double())
    with torch.inference_mode():
        close(model(x), exact, dtype)
        if dtype != torch.float32:
            assert (model(x) - exact).abs().mean() <= 1.1 * (theirs(x) - exact).abs().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiled_as_one_graph(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    gemmx.convert(model)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, fullgraph=True)
    with torch.inference_mode():
        close(compiled(tokens()), model(tokens()), dtype)
    compiled(tokens()).float().sum().backward()


def test_in_a_cuda_graph() -> None:
    model = model_of(torch.bfloat16)
    gemmx.convert(model)
    x = tokens()
    with torch.inference_mode():
        expected = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = model(x)
        d.zero_()
        graph.replay()
    assert torch.equal(d, expected)


def test_batch_invariant_layers() -> None:
    model = nn.Sequential(MLP(256, 512), nn.Linear(256, 64)).to("cuda", torch.bfloat16)
    assert not gemmx.convert(model, numerics="batch_invariant").left
    x = torch.randn(200, 256, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(model(x)[17:18], model(x[17:18]))


def test_autocast() -> None:
    model = decoder(**SIZES).to("cuda")
    original = copy.deepcopy(model)
    gemmx.convert(model)
    with torch.autocast("cuda", torch.bfloat16):
        d, expected = model(tokens()), original(tokens())
    assert d.dtype == expected.dtype
    close(d, expected, torch.bfloat16)
    d.float().sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


def test_moves_between_devices() -> None:
    model = decoder(**SIZES)
    expected = model(tokens().cpu())
    report = gemmx.convert(model)
    model.to("cuda")
    close(model(tokens()).cpu(), expected, torch.float32)
    model.cpu()
    report.restore()
    assert torch.equal(model(tokens().cpu()), expected)
