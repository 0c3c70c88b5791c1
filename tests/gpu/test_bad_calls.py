"""Wrong calls on CUDA tensors: the sentence of the table, nothing launched, the context usable."""

from __future__ import annotations

import pytest
import torch

from bad_calls import BAD_CALLS, BadCall, call
from gemmx import _C
from gemmx.ops import op_arguments

pytestmark = pytest.mark.gpu


def good_gemm() -> None:
    a, b = torch.ones(16, 32, device="cuda"), torch.ones(32, 8, device="cuda")
    assert torch.equal(torch.ops.gemmx.gemm(a, b), torch.full((16, 8), 32.0, device="cuda"))


@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.id)
def test_cuda_op_refuses(bad: BadCall) -> None:
    c = bad.make("cuda")
    before = sum(_C.launch_counts().values())
    op = torch.ops.gemmx.gemm_out if c.is_out else torch.ops.gemmx.gemm
    with pytest.raises(bad.error) as raised:
        op(c.a, c.b, **op_arguments(c.kwargs))
    assert bad.matches(str(raised.value), "cuda"), f"{raised.value}\nexpected: {bad.sentence}"
    assert sum(_C.launch_counts().values()) == before
    good_gemm()


@pytest.mark.parametrize("name", ["b", "c", "bias", "out"])
def test_cpu_tensor_beside_cuda_tensors(name: str) -> None:
    shapes = {"b": (5, 4), "c": (3, 4), "bias": (4,), "out": (3, 4)}
    c = call("cuda", **{name: torch.ones(shapes[name], dtype=torch.bfloat16)})
    op = torch.ops.gemmx.gemm_out if c.is_out else torch.ops.gemmx.gemm
    with pytest.raises(ValueError, match=f"^{name}: is on cpu but a is on cuda:0: all tensors of a call must be"):
        op(c.a, c.b, **op_arguments(c.kwargs))
    good_gemm()


def test_what_a_kernel_declines_is_refused_with_its_reason() -> None:
    """A request is honoured or refused, never replaced."""
    a, b = torch.ones(16, 64, device="cuda"), torch.ones(64, 16, device="cuda")
    names = [spec.name for spec in _C.kernels() if spec.dtype_a == "bf16"]
    for name in names:
        with pytest.raises(RuntimeError, match=name):
            torch.ops.gemmx.gemm(a, b, kernel_name=name)
    with pytest.raises(RuntimeError, match="stream_k"):
        torch.ops.gemmx.gemm(a, b, schedule="stream_k")
    good_gemm()
