"""gemmx.nn.Linear and GatedMLP as torch's modules: state_dict, gradients, devices, copies, compile; on the CPU."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gemmx
from gemmx import reference
from gemmx.nn import GatedMLP, Linear
from models import MLP

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def x_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def seeded(cls: Any, *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return cls(*args, **options)


def pair(bias: bool = True) -> tuple[GatedMLP, MLP]:
    return seeded(GatedMLP, 8, 12, bias), seeded(MLP, 8, 12, bias=bias)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


# ---- Linear -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_is_drop_in(bias: bool, dtype: torch.dtype) -> None:
    own, theirs = (seeded(cls, 8, 5, bias, "cpu", dtype) for cls in (Linear, nn.Linear))
    assert isinstance(own, nn.Linear)
    assert list(own.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():  # the same initial values, too
        assert torch.equal(own.state_dict()[name], value)
    for shape in ((3, 8), (2, 3, 8), (2, 2, 3, 8), (8,), (0, 8)):
        x = x_of(*shape, dtype=dtype)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(own(x), theirs(x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("activation", [None, "silu", "clamp"])
def test_linear_is_gemm(activation: Any) -> None:
    arguments = (-0.1, 0.1) if activation == "clamp" else None
    layer = Linear(8, 5, activation=activation, activation_args=arguments)
    x = x_of(3, 8)
    with torch.no_grad():
        expected = gemmx.gemm(x, layer.weight.t(), bias=layer.bias, activation=activation, activation_args=arguments)
        assert torch.equal(layer(x), expected)


def test_linear_passes_numerics_and_precision_on() -> None:
    layer = Linear(8, 5, dtype=torch.bfloat16, numerics="batch_invariant")
    x = x_of(7, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(layer(x)[3], layer(x[3]))
        with pytest.raises(RuntimeError, match=r"^numerics: 'batch_invariant' takes float16 and bfloat16"):
            Linear(8, 5, numerics="batch_invariant")(x.float())
        with pytest.raises(ValueError, match=r"^precision: 'tf32' is for float32 inputs"):
            Linear(8, 5, dtype=torch.bfloat16, precision="tf32")(x)


@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
def test_gradients_of_linear(activation: Any) -> None:
    own, theirs = seeded(Linear, 8, 5, activation=activation), seeded(nn.Linear, 8, 5)
    act = {None: nn.Identity(), "gelu": nn.GELU(), "relu": nn.ReLU()}[activation]
    grads = []
    for call in (own, lambda x: act(theirs(x))):
        x = x_of(2, 3, 8).requires_grad_()
        (call(x) * x_of(2, 3, 5)).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(own.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(own.bias.grad, theirs.bias.grad)


# ---- GatedMLP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_gated_mlp_is_drop_in(bias: bool) -> None:
    own, theirs = pair(bias)
    state = theirs.state_dict()
    assert list(own.state_dict()) == list(state)
    for name, value in state.items():
        assert torch.equal(own.state_dict()[name], value)
    for shape in ((3, 8), (2, 3, 8), (8,), (0, 8)):
        torch.testing.assert_close(own(x_of(*shape)), theirs(x_of(*shape)))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
def test_gated_mlp_rounds_the_gated_product_once(activation: Any) -> None:
    mlp = GatedMLP(8, 12, dtype=torch.bfloat16, activation=activation)
    x = x_of(3, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        z = x.double() @ mlp.gate_up_weight.t().double()
        hidden = reference.round_to(reference.activate(z[:, :12], activation) * z[:, 12:], torch.bfloat16)
        assert torch.equal(mlp(x), mlp.down_proj(hidden))


def test_gradients_of_gated_mlp() -> None:
    own, theirs = pair()
    grads = []
    for mlp in (own, theirs):
        x = x_of(2, 3, 8).requires_grad_()
        (mlp(x) * x_of(2, 3, 8)).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    assert own.gate_up_weight.grad is not None
    gate, up = own.gate_up_weight.grad.chunk(2)
    torch.testing.assert_close(gate, theirs.gate_proj.weight.grad)
    torch.testing.assert_close(up, theirs.up_proj.weight.grad)
    torch.testing.assert_close(own.down_proj.bias.grad, theirs.down_proj.bias.grad)


def test_checkpoints_fit_either_mlp() -> None:
    own, theirs = GatedMLP(8, 12, True), MLP(8, 12, bias=True)
    own.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(own(x_of(3, 8)), theirs(x_of(3, 8)))
    other = MLP(8, 12, bias=True)
    buffer = io.BytesIO()
    torch.save(own.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(other(x_of(3, 8)), theirs(x_of(3, 8)))
    before = own.gate_up_weight
    own.load_state_dict({name: x.double() * 2 for name, x in theirs.state_dict().items()})
    assert own.gate_up_weight is before
    assert own.gate_up_weight.dtype == torch.float32
    torch.testing.assert_close(own.gate_up_weight[12:], theirs.up_proj.weight * 2)


def test_loading_says_what_is_missing_unexpected_or_of_another_shape() -> None:
    own = nn.Sequential(GatedMLP(8, 12))
    state = nn.Sequential(MLP(8, 12)).state_dict()
    del state["0.up_proj.weight"]
    state["0.gate_proj.scale"] = state["0.gate_weight"] = torch.ones(1)
    result = own.load_state_dict(state, strict=False)
    assert result.missing_keys == ["0.up_proj.weight"]
    assert sorted(result.unexpected_keys) == ["0.gate_proj.scale", "0.gate_weight"]
    torch.testing.assert_close(own.state_dict()["0.gate_proj.weight"], state["0.gate_proj.weight"])
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.gate_proj\.weight"):
        own.load_state_dict(nn.Sequential(MLP(8, 13)).state_dict())
    with pytest.raises(RuntimeError, match=r"gate_up_weight: assign=True takes gate_proj.weight and up_proj.weight"):
        own.load_state_dict(state, strict=False, assign=True)


def test_load_by_assignment_from_meta() -> None:
    theirs = MLP(8, 12, bias=True)
    own = GatedMLP(8, 12, True, device="meta")
    assert own(torch.empty(3, 8, device="meta")).shape == (3, 8)
    own.gate_up_bias.requires_grad_(False)  # type: ignore[union-attr]
    own.load_state_dict(theirs.state_dict(), assign=True)
    assert own.gate_up_weight.requires_grad
    assert not own.gate_up_bias.requires_grad  # type: ignore[union-attr]
    torch.testing.assert_close(own(x_of(3, 8)), theirs(x_of(3, 8)))


def test_keep_vars_keeps_the_graph() -> None:
    own = GatedMLP(8, 12)
    own.state_dict(keep_vars=True)["up_proj.weight"].sum().backward()
    assert own.gate_up_weight.grad is not None
    assert own.gate_up_weight.grad[:12].eq(0).all()
    assert own.gate_up_weight.grad[12:].eq(1).all()


# ---- both -------------------------------------------------------------------------------------------------------

MODULES: dict[str, Any] = {
    "linear": lambda: Linear(8, 8, activation="silu"),
    "gated": lambda: GatedMLP(8, 12, True),
}


@pytest.mark.parametrize("name", MODULES)
def test_copies(name: str) -> None:
    module = MODULES[name]()
    x = x_of(3, 8)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))
        next(other.parameters()).data.zero_()
    assert next(module.parameters()).abs().sum() > 0
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = MODULES[name]()
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("name", MODULES)
def test_devices_dtypes_and_modes(name: str) -> None:
    module = MODULES[name]().to(torch.bfloat16)
    assert module(x_of(3, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not module.eval().training
    assert module.train().training
    meta = module.to("meta")
    assert all(p.is_meta for p in meta.parameters())
    assert meta(torch.empty(2, 3, 8, device="meta", dtype=torch.bfloat16)).shape == (2, 3, 8)
    assert not next(meta.to_empty(device="cpu").parameters()).is_meta


@pytest.mark.parametrize("name", MODULES)
def test_autocast(name: str) -> None:
    """As torch.nn.Linear: float32 parameters, 16-bit products, float32 gradients."""
    module = MODULES[name]()
    x = x_of(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        d = module(x)
    assert d.dtype == torch.bfloat16
    d.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())
    torch.testing.assert_close(d.float(), module(x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", MODULES)
def test_compiles_as_one_graph(name: str) -> None:
    module = MODULES[name]()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for shape in ((3, 8), (2, 3, 8), (8,)):
        x = x_of(*shape)
        with torch.no_grad():
            assert torch.equal(compiled(x), module(x))
    x, y = (x_of(3, 8).requires_grad_() for _ in range(2))
    compiled(x).sum().backward()
    module(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_print() -> None:
    assert repr(Linear(8, 5, activation="gelu", numerics="batch_invariant")) == (
        "Linear(in_features=8, out_features=5, bias=True, activation=gelu, numerics=batch_invariant)"
    )
    assert repr(GatedMLP(8, 12)).startswith(
        "GatedMLP(\n  hidden_size=8, intermediate_size=12, bias=False, activation=silu\n  (down_proj): Linear("
    )
