"""B48-B54: how the op sits in torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmx
from every_way import OP, OP_OUT, normal, on_every_device
from watchdog import assert_runs

BF16 = torch.bfloat16


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
def test_b51_autocast_changes_no_dtype(place: str) -> None:
    a, weight = normal(4, 64, device=place), normal(64, 128, device=place)
    with torch.autocast(place, BF16):
        assert torch.equal(gemmx.gemm(a, weight), OP(a, weight))
        assert gemmx.gemm(a, weight).dtype == torch.float32
        with pytest.raises(ValueError, match=r"^b: dtype is bfloat16 but a's is float32"):
            gemmx.gemm(a, weight.to(BF16))


@on_every_device
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "leaky_relu"])
def test_b52_gradients_are_refused_at_the_forward_call(place: str, activation: Any) -> None:
    """For every tensor, alone: never a zero, a None or a node that fails later."""
    a, b, c, bias = (normal(*x, device=place) for x in ((3, 4), (4, 5), (3, 5), (5,)))
    for which in range(4):
        tensors = [x.clone().requires_grad_(i == which) for i, x in enumerate((a, b, c, bias))]
        calls: tuple[Any, ...] = (
            lambda t=tensors: OP(*t, activation=activation),
            lambda t=tensors: gemmx.gemm(*t, alpha=0.5, beta=2.0, activation=activation),
            lambda t=tensors: gemmx.gemm(*t, activation=activation, out=torch.empty(3, 5, device=place)),
        )
        for call in calls:
            with pytest.raises(RuntimeError, match="has no gradient yet and an argument requires grad"):
                call()
        with torch.no_grad():
            assert not OP(*tensors, activation=activation).requires_grad
    with pytest.raises(RuntimeError, match="has no gradient yet"):
        torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True)(a, b.clone().requires_grad_())
    torch._dynamo.reset()


def test_b53_there_are_no_modules_to_copy() -> None:
    """No packed weights and so no state; what there is, a function, pickles by name."""
    assert not hasattr(gemmx, "nn")
    assert pickle.loads(pickle.dumps(gemmx.gemm)) is gemmx.gemm
    assert copy.deepcopy(gemmx.gemm) is gemmx.gemm


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
