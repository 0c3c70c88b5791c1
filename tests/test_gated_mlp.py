"""The gated MLP as one node of autograd, on the CPU: gradients, transforms, compile, where it stays two calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

import gemmx
from gemmx import reference
from gemmx.nn import GatedMLP, Linear
from gemmx.ops import gated_mlp
from problems import ACTIVATIONS

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64
# Ends of clamp that no bfloat16 has: torch 2.14 has another derivative there than torch 2.11.
ALL = (("none", ()), *(x for x in ACTIVATIONS if x[0] != "clamp"), ("clamp", (-0.501, 2.005)))
NODE = "_RecordedMLPBackward"


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def tensors_of(biases: bool, m: int = 9, k: int = 8, n: int = 12) -> list[Tensor | None]:
    """x, gate_up, down as they are stored, and the biases."""
    bias = (normal(2 * n), normal(k)) if biases else (None, None)
    return [normal(m, k), normal(2 * n, k) / k**0.5, normal(k, n, seed=1) / n**0.5, *bias]


def leaves(tensors: list[Tensor | None], dtype: torch.dtype = F32) -> list[Any]:
    return [None if x is None else x.detach().to(dtype, copy=True).requires_grad_() for x in tensors]


def plain(x: Tensor, gate_up: Tensor, down: Tensor, bias: Any = None, down_bias: Any = None, **options: Any) -> Tensor:
    z = x @ gate_up.t()
    z = z if bias is None else z + bias
    d = reference.gate(z, options.get("activation"), options.get("activation_args")) @ down.t()
    return d if down_bias is None else d + down_bias


def own(x: Tensor, gate_up: Tensor, down: Tensor, bias: Any = None, down_bias: Any = None, **options: Any) -> Tensor:
    op = torch.ops.gemmx._gated_mlp
    d: Tensor = op(x, gate_up.t(), down.t(), bias, down_bias, **options)
    return d


def gradients(function: Callable[..., Tensor], inputs: list[Any], **options: Any) -> list[Tensor]:
    d = function(*inputs, **options)
    weights = normal(*d.shape, seed=5, dtype=d.dtype)
    return list(torch.autograd.grad(d, [x for x in inputs if x is not None and x.requires_grad], weights))


def error(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm().clamp(min=1e-30))


# ---- the node -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("activation", "args"), ALL)
def test_gradients_against_float64(activation: str, args: tuple[float, ...], biases: bool) -> None:
    """Float32 to rounding; bfloat16 no worse than torch's own, which rounds every step."""
    options: dict[str, Any] = {"activation": activation, "activation_args": list(args) or None}
    sized = tensors_of(biases, 65, 64, 96)
    if activation == "hardswish":  # whose derivative jumps at -3 and 3, which a Z that is rounded may reach: stay below
        sized = [None if x is None else x / 4 for x in sized]
    for dtype in (F32, BF16):
        tensors = [None if x is None else x.to(dtype) for x in sized]
        exact = gradients(plain, leaves(tensors, F64), **options)
        torchs = gradients(plain, leaves(tensors, dtype), **options)
        found = gradients(own, leaves(tensors, dtype), **options)
        for x, of_torch, reference_ in zip(found, torchs, exact, strict=True):
            assert x.dtype == dtype
            assert error(x, reference_) <= max(1.1 * error(of_torch, reference_), 1e-6)


def test_d_has_the_bits_of_two_calls() -> None:
    for dtype in (F32, BF16, torch.float16):
        x, gate_up, down, bias, down_bias = leaves(tensors_of(True), dtype)
        d = gated_mlp(x, gate_up.t(), down.t(), bias, down_bias, activation="gelu")
        assert d.grad_fn.name() == NODE
        hidden = gemmx.gemm_gated(x, gate_up.t(), bias, activation="gelu")
        assert torch.equal(d, gemmx.gemm(hidden, down.t(), bias=down_bias))


@pytest.mark.parametrize("biases", [False, True])
def test_any_subset_of_gradients(biases: bool) -> None:
    """What is wanted is right, and only what it needs is saved."""
    tensors = tensors_of(biases)
    count = 5 if biases else 3
    exact = gradients(plain, leaves(tensors, F64))
    for wanted in range(1, 1 << count):
        inputs = leaves(tensors)
        for i in range(count):
            inputs[i].requires_grad_(bool(wanted >> i & 1))
        d = own(*inputs)
        x, gate_up, hidden, down, z = d.grad_fn.saved_tensors  # type: ignore[union-attr]
        through_gate = bool(wanted & 0b1011)
        assert [t is not None for t in (x, gate_up, hidden)] == [bool(wanted & 2), bool(wanted & 1), bool(wanted & 4)]
        assert [t is not None for t in (down, z)] == [through_gate] * 2
        d.backward(normal(*d.shape, seed=5))
        for i, g in enumerate(exact):
            if wanted >> i & 1:
                assert error(inputs[i].grad, g) < 1e-5
            else:
                assert inputs[i].grad is None


def test_gradients_of_weights_have_their_layout() -> None:
    inputs = leaves(tensors_of(False))
    assert all(g.is_contiguous() for g in gradients(own, inputs))
    x, gate_up, down = inputs[:3]
    columns = x.detach().t().contiguous().t().requires_grad_()
    d = own(columns, gate_up, down)
    d.sum().backward()
    own(x, gate_up, down).sum().backward()
    torch.testing.assert_close(columns.grad, x.grad)


def test_gradients_accumulate_and_repeat_their_bits() -> None:
    inputs = leaves(tensors_of(False))
    d = own(*inputs)
    d.sum().backward(retain_graph=True)
    once = inputs[1].grad.clone()
    d.sum().backward()
    assert torch.equal(inputs[1].grad, 2 * once)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("activation", "args"), ALL)
def test_second_derivatives(activation: str, args: tuple[float, ...], biases: bool) -> None:
    results = []
    for function, dtype in ((own, F32), (plain, F64)):
        inputs = leaves(tensors_of(biases), dtype)
        of = [x for x in inputs if x is not None]
        d = function(*inputs, activation=activation, activation_args=list(args) or None)
        first = torch.autograd.grad(d.square().sum(), of, create_graph=True)
        results.append(torch.autograd.grad(sum(x.square().sum() for x in first), of))
    for x, exact in zip(*results, strict=True):
        assert error(x, exact) < 1e-4


def test_batched_gradients() -> None:
    inputs = leaves(tensors_of(False))
    d = own(*inputs)
    weights = torch.stack([normal(*d.shape, seed=s) for s in range(3)])
    batched = torch.autograd.grad(d, inputs[:3], weights, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        alone = torch.autograd.grad(d, inputs[:3], weights[i], retain_graph=True)
        for x, y in zip(batched, alone, strict=True):
            torch.testing.assert_close(x[i], y)


def transforms() -> Iterator[tuple[str, Callable[[Callable[..., Tensor]], Tensor]]]:
    x, gate_up, down, *_ = tensors_of(False, m=3)
    more = normal(5, 3, 8), normal(5, 24, 8), normal(5, 8, 12)
    yield "grad", lambda f: grad(f, 1)(x, gate_up, down)
    yield "grad of grad", lambda f: grad(lambda w: grad(f)(x, w, down).square().sum())(gate_up)
    yield "hessian", lambda f: jacrev(jacrev(f, 0), 2)(x, gate_up, down)
    yield "gradients of samples", lambda f: vmap(grad(f, 2), (0, None, None))(more[0], gate_up, down)
    yield "gradients of an ensemble", lambda f: vmap(grad(f, 1))(*more)
    yield "vmap", lambda f: vmap(f, (0, None, 0))(more[0], gate_up, more[2])
    yield "autograd around grad", lambda f: around(f, x, gate_up, down)


def around(f: Callable[..., Tensor], *tensors: Any) -> Tensor:
    x, gate_up, down = tensors
    down = down.clone().requires_grad_()
    return torch.autograd.grad(grad(f)(x, gate_up, down).sum(), down)[0]


@pytest.mark.parametrize("name", dict(transforms()))
def test_transforms_of_torch_func(name: str) -> None:
    run = dict(transforms())[name]
    found, expected = (run(lambda *t, f=f: f(*t, activation="gelu").square().sum()) for f in (own, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_refuses_forward_mode() -> None:
    x, gate_up, down, *_ = tensors_of(False)
    with pytest.raises(RuntimeError, match=r"^gemmx\.gemm_gated has no forward-mode gradient"):
        torch.func.jvp(lambda x: own(x, gate_up, down), (x,), (x,))


# ---- the op of its backward -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float16])
def test_gradient_of_a_gate_is_rounded_once(dtype: torch.dtype) -> None:
    dy, down, z = normal(5, 8, dtype=dtype), normal(8, 12, dtype=dtype), normal(5, 24, dtype=dtype)
    dz = torch.ops.gemmx._gated_dgrad(dy, down, z, alpha=0.5, activation="gelu")
    exact = reference.gated_backward(0.5 * (dy.double() @ down.double()), z, activation="gelu")
    assert torch.equal(dz, reference.round_to(exact, dtype))
    assert dz.is_contiguous()
    assert torch.equal(
        torch.ops.gemmx._gated_dgrad(dy, down, z), torch.ops.gemmx._gated_dgrad(dy, down, z, activation="silu")
    )


@pytest.mark.parametrize("dims", [(0, None, 0), (0, None, None), (None, None, 1), (0, 1, 0)])
def test_vmap_of_the_op(dims: tuple[int | None, ...]) -> None:
    shapes = ((5, 8), (8, 12), (5, 24))
    args = [
        normal(*shape) if d is None else normal(3, *shape).movedim(0, d) for d, shape in zip(dims, shapes, strict=True)
    ]
    op = torch.ops.gemmx._gated_dgrad.default
    pairs = list(zip(args, dims, strict=True))
    alone = [op(*(x if d is None else x.select(d, i) for x, d in pairs)) for i in range(3)]
    torch.testing.assert_close(vmap(op, dims)(*args), torch.stack(alone))


def test_the_op_refuses_tensors_that_require_grad() -> None:
    dy = normal(5, 8).requires_grad_()
    with pytest.raises(RuntimeError, match=r"^gemmx\._gated_dgrad has no gradient and an argument requires grad"):
        torch.ops.gemmx._gated_dgrad(dy, normal(8, 12), normal(5, 24))


# ---- GatedMLP -------------------------------------------------------------------------------------------------------


def mlp_of(bias: bool = False, **options: Any) -> GatedMLP:
    torch.manual_seed(0)
    return GatedMLP(8, 12, bias, **options)


def is_one_node(mlp: nn.Module, x: Tensor) -> bool:
    node: Any = mlp(x).grad_fn
    while node is not None and node.name() in ("ViewBackward0", "SqueezeBackward1", "ToCopyBackward0"):
        node = node.next_functions[0][0]
    return node is not None and node.name() == NODE


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (8,), (0, 8), (2, 2, 3, 8)])
def test_module_records_one_node(shape: tuple[int, ...]) -> None:
    for bias in (False, True):
        mlp, x = mlp_of(bias), normal(*shape)
        assert is_one_node(mlp, x)
        d = mlp(x)
        with torch.no_grad():
            assert torch.equal(d, mlp(x))
        with torch.inference_mode():
            assert torch.equal(d, mlp(x))


def test_hooks_and_replacements_are_called() -> None:
    x = normal(3, 8)
    calls: list[str] = []
    for register in (
        lambda m: m.register_forward_hook(lambda *_: calls.append("forward")),
        lambda m: m.register_forward_pre_hook(lambda *_: calls.append("pre")),
        lambda m: m.register_full_backward_hook(lambda *_: calls.append("backward")),
        lambda m: m.register_full_backward_pre_hook(lambda *_: calls.append("backward pre")),
        lambda _: nn.modules.module.register_module_forward_hook(lambda *_: calls.append("global")),
    ):
        mlp = mlp_of()
        handle = register(mlp.down_proj)
        assert not is_one_node(mlp, x)
        mlp(x).sum().backward()
        handle.remove()
        assert is_one_node(mlp, x)
    assert set(calls) == {"forward", "pre", "backward", "backward pre", "global"}

    class Twice(Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    mlp, twice = mlp_of(), Twice(12, 8, bias=False)
    twice.weight = mlp.down_proj.weight
    expected = 2 * mlp(x)
    mlp.down_proj = twice
    assert not is_one_node(mlp, x)
    assert torch.equal(mlp(x), expected)
    mlp = mlp_of()
    mlp.down_proj.activation = "relu"
    assert torch.equal(mlp(x), mlp.down_proj(mlp._gate(x, mlp.gate_up_weight, None)))
    nn.utils.parametrize.register_parametrization(mlp.down_proj, "weight", nn.Identity())
    assert not is_one_node(mlp, x)


def test_two_calls_where_one_node_would_mean_another_thing() -> None:
    x = normal(3, 8, dtype=BF16)
    assert not is_one_node(mlp_of(dtype=BF16, numerics="batch_invariant"), x)
    mlp = mlp_of(dtype=BF16)
    mlp.down_proj.numerics = "batch_invariant"
    assert not is_one_node(mlp, x)
    mlp = mlp_of(dtype=BF16)
    mlp.gate_up_weight.requires_grad_(False)
    assert not is_one_node(mlp, x)  # the weight of down_proj alone needs no gradient of the gate
    assert is_one_node(mlp, x.clone().requires_grad_())
    with gemmx.strict():
        assert not is_one_node(mlp_of(dtype=BF16), x)

    class Kind(Tensor):
        pass

    assert not mlp_of(dtype=BF16)._is_one_node(x.as_subclass(Kind))


def test_activations_checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    mlp, x = mlp_of(), normal(3, 8)
    mlp(x).square().sum().backward()
    expected = [p.grad.clone() for p in mlp.parameters() if p.grad is not None]
    mlp.zero_grad()
    checkpoint(mlp, x, use_reentrant=False).square().sum().backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(mlp.parameters(), expected, strict=True) if p.grad is not None)


def test_autocast() -> None:
    mlp, x = mlp_of(True), normal(2, 3, 8)
    with torch.autocast("cpu", BF16):
        d = mlp(x)
        two = mlp.down_proj(mlp._gate(x, mlp.gate_up_weight, mlp.gate_up_bias))
    assert d.dtype == BF16
    assert torch.equal(d, two)
    for p, g, h in zip(
        mlp.parameters(),
        torch.autograd.grad(d.float().square().sum(), list(mlp.parameters())),
        torch.autograd.grad(two.float().square().sum(), list(mlp.parameters())),
        strict=True,
    ):
        assert g.dtype == p.dtype == F32
        torch.testing.assert_close(g, h, rtol=0.02, atol=0.02)


def test_functional_calls_and_samples() -> None:
    mlp, x = mlp_of(), normal(4, 3, 8)
    parameters = {name: p.detach() for name, p in mlp.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(mlp, parameters, (x,)).square().sum()

    own_samples = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(4):
        alone = torch.autograd.grad(mlp(x[i]).square().sum(), list(mlp.parameters()))
        for g, h in zip(own_samples.values(), alone, strict=True):
            torch.testing.assert_close(g[i], h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_compiled_graphs(bias: bool) -> None:
    """The forward keeps Z; the backward has one op where the products meet, with a bias the gate's own."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph)

    mlp = mlp_of(bias)
    compiled = torch.compile(mlp, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True)
    x, y = (normal(2, 3, 8).requires_grad_() for _ in range(2))
    compiled(x).square().sum().backward()
    mlp(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    with torch.no_grad():
        assert torch.equal(compiled(x), mlp(x))
    forward, backward, inference = graphs
    assert "gemmx.gemm_gated_aux.default" in forward
    assert ("gemmx._gated_dgrad.default" in backward) != bias
    assert ("gemmx.gated_backward.default" in backward) == bias
    assert "_aux" not in inference


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients(backend: str) -> None:
    mlp = mlp_of()
    compiled = torch.compile(mlp, backend=backend, fullgraph=True, dynamic=True)
    for m in (3, 8):
        found, expected = (
            torch.autograd.grad(f(normal(2, m, 8)).square().sum(), list(mlp.parameters())) for f in (compiled, mlp)
        )
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
