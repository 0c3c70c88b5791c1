"""torch.compile, torch.export and AOTInductor with gemmx's ops and with gemmx.compile_pass, on the CPU.

The modules have nothing but products and their epilogues: Inductor has no C++ to compile. AOTInductor always has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812, as everywhere
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import fresh_cache

import gemmx
from gemmx._library import torch_version
from gemmx.fusion.inductor import CompilePass

BF16 = torch.bfloat16


class Block(nn.Module):
    """x + down(silu(gate) * up) of h = gelu(linear(x)): all that the pass rewrites, and nothing else."""

    def __init__(self, width: int = 32, hidden: int = 48) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.first = nn.Linear(width, width, dtype=BF16)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False, dtype=BF16)
        self.down = nn.Linear(hidden, width, bias=False, dtype=BF16)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(F.gelu(self.first(x))).chunk(2, -1)
        d: Tensor = x + self.down(F.silu(gate) * up)
        return d


OPS = ["gemm + bias + gelu", "gemm_gated + silu", "gemm + c"]


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, 32, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def assert_near(d: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(d, expected, rtol=2**-6, atol=2**-5)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert config.post_grad_custom_pre_pass is None


def eager(done: CompilePass) -> Any:
    """A backend that runs Inductor's graphs in eager mode, after the pass."""

    def compiler(traced: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        done(traced.graph)
        traced.recompile()
        return make_boxed_func(traced.forward)

    return aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table)


# ---- graphs of Dynamo and autograd --------------------------------------------------------------------------------


def test_dynamic_rows() -> None:
    """One compilation and one rewrite for every number of rows; the kernel is chosen when the op runs."""
    done, block = gemmx.compile_pass(devices=("cpu",)), Block()
    compiled = torch.compile(block, backend=eager(done), fullgraph=True, dynamic=True)
    with torch.no_grad():
        for shape in ((4, 3), (2, 17), (5, 2)):
            assert_near(compiled(rows(*shape)), block(rows(*shape)))
    assert [x.op for x in done.rewritten] == OPS
    assert done.graphs == 1
    assert " x 32 x 32 bf16" in done.rewritten[0].problem


def test_training() -> None:
    """What the backward pass keeps is not fused away: relu's D is enough for it, gelu's is not."""
    for act, op, note in (
        (F.relu, "gemm + bias + relu", ""),
        (F.gelu, "gemm + bias", "without the gelu: addmm is an output of the graph too, or kept for the backward pass"),
    ):
        torch._dynamo.reset()
        layer, x = nn.Linear(32, 48, dtype=BF16), rows(8).requires_grad_()
        done = gemmx.compile_pass(devices=("cpu",))
        expected = torch.autograd.grad(act(layer(x)).sum(), (x, *layer.parameters()))
        compiled = torch.compile(lambda x, layer=layer, act=act: act(layer(x)), backend=eager(done), fullgraph=True)
        gradients = torch.autograd.grad(compiled(x).sum(), (x, *layer.parameters()))
        for gradient, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, other, rtol=2**-5, atol=2**-5)
        assert [(x.op, x.note) for x in done.rewritten] == [(op, note)]
        assert done.graphs == 2
        assert all(x.reason.startswith("nothing to fuse: its result goes to ") for x in done.left)  # the backward's


def test_the_ops_themselves_are_left_alone() -> None:
    """A module that calls gemmx is one graph, and the pass finds nothing in it."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        d: Tensor = gemmx.gemm(x, w.t(), activation="silu") + 1
        return d

    done, w = gemmx.compile_pass(devices=("cpu",), everything=True), rows(16)
    compiled = torch.compile(function, backend=eager(done), fullgraph=True)
    assert torch.equal(compiled(rows(4), w), function(rows(4), w))
    assert (done.rewritten, done.left) == ([], [])


# ---- Inductor -----------------------------------------------------------------------------------------------------


def test_inductor() -> None:
    """As a context and as an option; a second compilation comes from Inductor's cache unless cache=False."""
    block, x = Block(), rows(4, 3)
    with fresh_cache(), torch.no_grad():
        expected = block(x)

        def compiled(done: CompilePass, option: bool) -> list[str]:
            torch._dynamo.reset()
            if option:
                options = {"post_grad_custom_pre_pass": done}
                assert_near(torch.compile(block, fullgraph=True, options=options)(x), expected)
            else:
                with done:
                    assert_near(torch.compile(block, fullgraph=True)(x), expected)
            return [row.op for row in done.rewritten]

        assert compiled(gemmx.compile_pass(devices=("cpu",)), option=False) == OPS
        again = gemmx.compile_pass(devices=("cpu",))
        assert compiled(again, option=False) == []
        assert "nothing was compiled" in str(again)
        assert compiled(gemmx.compile_pass(devices=("cpu",), cache=False), option=False) == OPS
        assert compiled(gemmx.compile_pass(devices=("cpu",), cache=False), option=True) == OPS
        # Another option is another key: what is in the cache is not taken for it.
        assert compiled(gemmx.compile_pass(devices=("cpu",), everything=True), option=True) == OPS


# ---- export and AOTInductor ---------------------------------------------------------------------------------------


# torch's AOTInductor misread an op's dtypes until then; gemmx/fusion/inductor.py knows.
READS_DTYPES = torch_version() >= (2, 14)


class Ops(nn.Module):
    """The ops by name, and layers for the pass: a one-sided clamp, and one with a float32 D."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(rows(48)), nn.Parameter(rows()[:1].expand(48).clone())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weight = self.weight.t()
        d = torch.ops.gemmx.gemm(
            x,
            weight,
            bias=self.bias,
            activation="clamp",
            activation_args=[-1.0, 2.0],
            out_dtype=torch.float32 if READS_DTYPES else None,
        )
        gated = torch.ops.gemmx.gemm_gated(x, weight, self.bias, activation="gelu")
        z = F.linear(x, self.weight, self.bias)
        return d, gated, z.clamp(min=0.25), F.linear(gated, self.weight[:, :24]).float().relu()


@pytest.fixture
def program() -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(Ops(), (rows(8),), dynamic_shapes={"x": {0: torch.export.Dim("m", min=2, max=512)}})


def test_export(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    """Saved and loaded, for any number of rows."""
    torch.export.save(program, tmp_path / "ops.pt2")
    loaded = torch.export.load(tmp_path / "ops.pt2").module()
    names = {str(node.target) for node in loaded.graph.nodes}
    assert {"gemmx.gemm.default", "gemmx.gemm_gated.default"} <= names
    with torch.no_grad():
        for m in (3, 8, 100):
            for d, expected in zip(loaded(rows(m)), program.module()(rows(m)), strict=True):
                assert torch.equal(d, expected)


def no_compiler() -> str:
    """Why AOTInductor cannot build here; "" where it can."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "AOTInductor needs a C++ compiler and there is none"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "AOTInductor needs Python.h and it is not installed"
    return ""


@pytest.mark.skipif(bool(no_compiler()), reason=no_compiler())
def test_aot_inductor(program: torch.export.ExportedProgram, tmp_path: Path) -> None:
    """Scalars, strings, lists and dtypes pass its runtime, in ops of the model's and of the pass."""
    done = gemmx.compile_pass(devices=("cpu",))
    settings = {"aot_inductor.compile_wrapper_opt_level": "O0", "post_grad_custom_pre_pass": done}
    with fresh_cache(), torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "ops.pt2"), inductor_configs=settings
        )
        loaded = torch._inductor.aoti_load_package(package)
        for m in (3, 8, 100):
            for d, expected in zip(loaded(rows(m)), program.module()(rows(m)), strict=True):
                assert d.dtype == expected.dtype
                assert_near(d, expected)
    ops = {"gemm + bias + clamp(0.25, inf)"} | ({"gemm + relu"} if READS_DTYPES else set())
    assert {x.op for x in done.rewritten} == ops
    assert READS_DTYPES or "misreads" in done.left[0].reason


def test_import_is_light() -> None:
    """`import gemmx` brings no compiler; only the call of compile_pass does."""
    probe = "import sys, gemmx; assert not {'torch._inductor', 'torch._dynamo', 'gemmx.fusion'} & sys.modules.keys()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=120, env=environment)
