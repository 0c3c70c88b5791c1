"""gemmx.compile_pass on a GPU: Inductor, dynamic rows, CUDA graphs, training, AOTInductor.

The models have nothing but products and their epilogues: fused they give Inductor nothing to write in Triton, which
needs a C compiler. What they are compared with runs in eager mode.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812, as everywhere
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

import gemmx
from gemmx import _C
from gemmx._library import torch_version
from test_compile import OPS, READS_DTYPES, Block, Ops, eager

pytestmark = pytest.mark.gpu

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    # Inductor pads a 16-bit product of 132 rows, or not, by what it times: one run's graphs are not the next one's.
    with fresh_cache(), inductor_config.patch(shape_padding=False):
        yield


def rows(*shape: int, width: int = 512, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(*shape, width, generator=generator, device="cuda").to(dtype)


def block(dtype: torch.dtype = BF16) -> Block:
    return Block(512, 1408).to("cuda", dtype)


def assert_near(d: Tensor, expected: Tensor) -> None:
    """Within what rounding in between changes, D's scale being 1."""
    torch.testing.assert_close(d, expected, rtol=2**-6, atol=2**-5)


def launches(call: Any) -> dict[str, int]:
    """How often the call launches which kernels of gemmx."""
    before = _C.launch_counts()
    call()
    return {name: count - before[name] for name, count in _C.launch_counts().items() if count > before[name]}


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_block(dtype: torch.dtype) -> None:
    model, x = block(dtype), rows(4, 33, dtype=dtype)
    with torch.no_grad(), gemmx.compile_pass() as report:
        compiled = torch.compile(model, fullgraph=True)
        assert_near(compiled(x), model(x))
        launched = launches(lambda: compiled(x))
        assert sum(launched.values()) >= len(OPS), f"{launched}, {report}"
    assert [row.op for row in report.rewritten] == OPS


def test_dynamic_rows() -> None:
    """One compilation; decode and prefill run different kernels behind it."""
    model = block()
    with torch.no_grad(), gemmx.compile_pass() as report:
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for shape in ((2, 3), (64, 2), (3, 1000), (16, 1), (1, 777)):
            assert_near(compiled(rows(*shape)), model(rows(*shape)))
    assert report.graphs <= 3  # a size of 1 is specialised by torch
    assert [row.op for row in report.rewritten[:3]] == OPS


def test_cuda_graphs() -> None:
    """mode="reduce-overhead": replays on other inputs give the bits of plain calls."""
    model = block()
    with torch.no_grad(), gemmx.compile_pass(cache=False) as report:
        plain = torch.compile(model, fullgraph=True)
        expected = [plain(rows(4, 16) * scale).clone() for scale in (1.0, 0.5, 2.0, 0.25)]
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            for scale, d in zip((1.0, 0.5, 2.0, 0.25), expected, strict=True):
                torch.compiler.cudagraph_mark_step_begin()
                assert torch.equal(compiled(rows(4, 16) * scale), d)
    assert [row.op for row in report.rewritten] == 2 * OPS
    x = rows(4, 16)
    with torch.no_grad():
        torch.compiler.cudagraph_mark_step_begin()
        assert launches(lambda: compiled(x)) == {}  # a replay


def test_batch_invariant_model() -> None:
    """Every product rewritten, each row has the same bits in every batch."""
    model = block()
    with torch.no_grad(), gemmx.compile_pass(everything=True, numerics="batch_invariant"):
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        x = rows(1024)
        whole = compiled(x)
        for m in (2, 17, 130, 1000):
            assert torch.equal(compiled(x[:m]), whole[:m])


def test_float32_follows_the_setting_of_torch() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    layer, x = nn.Linear(512, 512, device="cuda"), rows(64, dtype=F32)
    try:
        for setting, rewritten in (("ieee", 1), ("tf32", 0)):
            torch._dynamo.reset()
            matmul.fp32_precision = setting
            done = gemmx.compile_pass()
            with torch.no_grad():
                d = torch.compile(layer, backend=eager(done), fullgraph=True)(x)
                torch.testing.assert_close(d, layer(x), rtol=1e-2, atol=1e-2)
            assert len(done.rewritten) == rewritten
    finally:
        matmul.fp32_precision = before


def test_training_step() -> None:
    """The forward graph has relu fused; the gradients are those of the model."""
    layer, x = nn.Linear(512, 768, dtype=BF16, device="cuda"), rows(256).requires_grad_()
    done = gemmx.compile_pass()
    inputs = (x, *layer.parameters())
    expected = torch.autograd.grad(F.relu(layer(x)).float().sum(), inputs)
    compiled = torch.compile(lambda x: F.relu(layer(x)), backend=eager(done), fullgraph=True)
    for gradient, other in zip(torch.autograd.grad(compiled(x).float().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=2**-5, atol=2**-3)
    assert [row.op for row in done.rewritten] == ["gemm + bias + relu"]


@pytest.mark.skipif(torch_version() < (2, 12), reason="torch 2.11 ends with a segmentation fault in aoti_load_package")
def test_aot_inductor(tmp_path: Path) -> None:
    """A package that runs without Python's dispatcher: the op's C++ is called."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("AOTInductor needs a C++ compiler and there is none")
    if not any((Path(x) / "include" / "cuda.h").is_file() for x in cuda_homes()):
        pytest.skip("AOTInductor needs cuda.h and no CUDA toolkit is installed")
    model, done = Ops().cuda(), gemmx.compile_pass()
    small = lambda m: rows(m, width=32)  # noqa: E731
    with torch.no_grad():
        dynamic = {"x": {0: torch.export.Dim("m", min=2, max=512)}}
        program = torch.export.export(model, (small(8),), dynamic_shapes=dynamic)
        settings = {"aot_inductor.compile_wrapper_opt_level": "O0", "post_grad_custom_pre_pass": done}
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "ops.pt2"), inductor_configs=settings
        )
        loaded = torch._inductor.aoti_load_package(package)
        for m in (3, 8, 100):
            for d, expected in zip(loaded(small(m)), model(small(m)), strict=True):
                assert_near(d, expected)
    assert len(done.rewritten) == 1 + READS_DTYPES


def cuda_homes() -> list[str]:
    from torch.utils.cpp_extension import CUDA_HOME

    return [x for x in (CUDA_HOME, os.environ.get("CUDA_HOME"), "/usr/local/cuda") if x]
