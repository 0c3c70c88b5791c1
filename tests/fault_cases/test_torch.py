"""B48-B54: how the op sits in torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812, as everywhere
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmx
from every_way import OP, OP_OUT, normal, on_every_device
from watchdog import assert_runs

BF16, F32 = torch.bfloat16, torch.float32


def shapes() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [((3, 4), (4, 5)), ((0, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((1, 4), (4, 1))]


@on_every_device
@pytest.mark.parametrize("out_dtype", [None, torch.float32, BF16, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_b48_the_fake_is_as_the_real_d(place: str, dtype: torch.dtype, out_dtype: torch.dtype | None) -> None:
    """Shape, strides, dtype and device; where the real call is refused the fake is."""
    for shape_a, shape_b in shapes():
        for transposed in (False, True):
            a, b = normal(*shape_a, dtype=dtype, device=place), normal(*shape_b, dtype=dtype, device=place)
            if transposed:
                a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
            mode = FakeTensorMode()
            fakes = [mode.from_tensor(x) for x in (a, b)]
            try:
                real = OP(a, b, out_dtype=out_dtype)
            except RuntimeError as error:
                with mode, pytest.raises(RuntimeError) as raised:
                    OP(*fakes, out_dtype=out_dtype)
                assert str(raised.value) == str(error)
                continue
            with mode:
                fake = OP(*fakes, out_dtype=out_dtype)
            for name in ("shape", "dtype", "device"):
                assert getattr(fake, name) == getattr(real, name)
            assert fake.stride() == real.stride()


@on_every_device
def test_b48_opcheck(place: str) -> None:
    for shape_a, shape_b in shapes():
        a, b = normal(*shape_a, device=place), normal(*shape_b, device=place)
        torch.library.opcheck(OP.default, (a, b), {"activation": "relu"}, test_utils=CHECKS)
        for out in (torch.empty_like(OP(a, b)), torch.empty_like(OP(a, b)).mT.contiguous().mT):
            torch.library.opcheck(OP_OUT.default, (a, b), {"out": out}, test_utils=CHECKS)


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@on_every_device
def test_b48_compiles_whole_with_dynamic_m(place: str) -> None:
    b, bias = normal(4, 5, device=place), normal(5, device=place)
    compiled = torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True, dynamic=True)
    for m in (3, 1, 0, 17, 64):
        a = normal(m, 4, device=place)
        assert torch.equal(compiled(a, b, bias=bias, activation="gelu"), gemmx.gemm(a, b, bias=bias, activation="gelu"))
    torch._dynamo.reset()


def test_b49_schemas_say_what_is_written() -> None:
    assert not OP.default._schema.is_mutable
    written = [x.name for x in OP_OUT.default._schema.arguments if x.alias_info is not None and x.alias_info.is_write]
    assert written == ["out"]


@on_every_device
def test_b49_inputs_are_not_cloned_by_compile(place: str) -> None:
    """The graph that the backend gets has the op on the inputs themselves, one copy at most, that of out."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    def block(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        OP_OUT(a, b, out=out)
        return out * 2 + OP(a, b) + a.sum()

    a, b, out = normal(3, 4, device=place), normal(4, 5, device=place), torch.empty(3, 5, device=place)
    compiled = torch.compile(block, backend=aot_autograd(fw_compiler=backend), fullgraph=True)
    d = compiled(a, b, out)
    product = gemmx.gemm(a, b)
    assert torch.equal(out, product)
    assert torch.allclose(d, product * 3 + a.sum())
    calls = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("clone" in x for x in calls) == 0, calls
    assert sum("copy" in x for x in calls) <= 1, calls
    torch._dynamo.reset()


@on_every_device
def test_b51_autocast_casts_as_for_mm_and_the_backward_with_it(place: str) -> None:
    """Parameters in float32: D in the autocast dtype, gradients in the parameters' dtypes, called outside of it."""
    a, weight = (normal(*shape, device=place).requires_grad_() for shape in ((4, 64), (64, 128)))
    with torch.autocast(place, BF16):
        d, mixed, expected = gemmx.gemm(a, weight), gemmx.gemm(a, weight.to(BF16)), torch.mm(a, weight)
        assert torch.equal(d, OP(a, weight))
    assert d.dtype == mixed.dtype == expected.dtype == BF16
    ours, torchs = (torch.autograd.grad(x.sum(), (a, weight)) for x in (d, expected))
    for x, y in zip(ours, torchs, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=2**-7, atol=2**-4)


@on_every_device
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "leaky_relu"])
def test_b52_gradients_are_right_at_first_and_second_order(place: str, activation: Any) -> None:
    """For every tensor, alone: never a zero, a None or a node that fails later. out is refused at the call."""
    tensors = [normal(*x, device=place) for x in ((3, 4), (4, 5), (3, 5), (5,))]
    act: Any = getattr(F, activation) if activation else lambda z: z

    def torchs(a: Tensor, b: Tensor, c: Tensor, bias: Tensor) -> Tensor:
        return act(0.5 * (a @ b) + 2.0 * c + bias)

    def ours(*x: Tensor) -> Tensor:
        return gemmx.gemm(*x, alpha=0.5, beta=2.0, activation=activation)

    def derivatives(call: Any, which: int, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_(i == which) for i, x in enumerate(tensors)]
        (first,) = torch.autograd.grad(call(*leaves).square().sum(), leaves[which], create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaves[which])
        return [first.detach(), second]

    for which in range(4):
        for x, exact in zip(derivatives(ours, which, F32), derivatives(torchs, which, torch.float64), strict=True):
            torch.testing.assert_close(x.double(), exact, rtol=1e-3, atol=1e-3)
        wanted = [x.clone().requires_grad_(i == which) for i, x in enumerate(tensors)]
        with pytest.raises(RuntimeError, match="has no gradient and an argument requires grad"):
            gemmx.gemm(*wanted, activation=activation, out=torch.empty(3, 5, device=place))
        with torch.no_grad():
            assert not OP(*wanted, activation=activation).requires_grad


def test_b52_a_compiled_second_derivative_is_refused() -> None:
    """AOTAutograd refuses it itself, before anything is wrong."""
    a, b = normal(3, 4), normal(4, 5).requires_grad_()
    compiled = torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True)
    (first,) = torch.autograd.grad(compiled(a, b).square().sum(), b, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), b)
    torch._dynamo.reset()


def test_b53_modules_copy_and_pickle() -> None:
    """A copy has parameters of its own and computes the same; the function pickles by name."""
    model = torch.nn.Sequential(gemmx.nn.Linear(16, 24, activation="silu"), gemmx.nn.GatedMLP(24, 40))
    x = normal(3, 16)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert not {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}
    assert pickle.loads(pickle.dumps(gemmx.gemm)) is gemmx.gemm


@on_every_device
def test_b54_a_forked_child_may_use_the_device(place: str) -> None:
    """Importing leaves CUDA alone, in the parent that forks after it, too."""
    children = "\n".join(
        [
            "import os, torch, gemmx",
            "gemmx.explain.shape(16, 64, 64, device='h200')",
            "assert not torch.cuda.is_initialized()",
            "children = []",
            "for i in range(3):",
            "    child = os.fork()",
            "    if child == 0:",
            f"        x = torch.ones(2 + i, 3, device='{place}')",
            "        d = gemmx.gemm(x, x.t())",
            "        os._exit(0 if (d == 3).all() else 1)",
            "    children.append(child)",
            "assert all(os.waitpid(child, 0)[1] == 0 for child in children)",
            "assert not torch.cuda.is_initialized()",
            "print('forked')",
        ]
    )
    assert "forked" in assert_runs(children, timeout=120)
