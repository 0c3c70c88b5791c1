"""Inputs on which GEMM libraries are known to have failed, each against its exact or float64 result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gemmx
from gemmx import _C, reference
from gemmx.ops import check
from problems import DTYPES

pytestmark = pytest.mark.gpu

SPECS = {spec.name: spec for spec in _C.kernels()}


def kernels_for(a: Tensor, b: Tensor, device: _C.Device, **kwargs: Any) -> list[str]:
    """The built kernels that take the call: each must get it right."""
    problem = check(a, b, **kwargs).problem
    return [name for name in SPECS if _C.built_for(name, device.capability) and not _C.supports(name, problem, device)]


def assert_right(d: Tensor, exact: Tensor, bound: Tensor, what: str) -> None:
    assert not reference.outside_bound(d, exact, bound).any(), what


def assert_product(d: Tensor, a: Tensor, b: Tensor, what: str) -> None:
    bound = reference.error_bound(a, b, out_dtype=d.dtype)
    assert_right(d, reference.gemm(a, b, out_dtype=torch.float64), bound, what)


def test_offsets_beyond_32_bits(device: _C.Device) -> None:
    """Batch * M * N > 2^31 with the last batch beyond it: every kernel, D inside a larger buffer."""
    batch, m, n, k = 512, 8216, 512, 8
    numel = batch * m * n
    if torch.cuda.mem_get_info()[0] < 3 * 2 * numel:
        pytest.skip("needs 13 GB of free memory")
    rows = torch.arange(batch, device="cuda")[:, None] + torch.arange(m, device="cuda")[None]
    a = (rows % 7).to(torch.bfloat16)[:, :, None].repeat(1, 1, k)
    b = (torch.arange(n, device="cuda") % 5).to(torch.bfloat16)[None, :, None].repeat(batch, 1, k).mT
    buffer = torch.full((numel + 2048,), torch.nan, dtype=torch.bfloat16, device="cuda")
    out = buffer[1024 : 1024 + numel].view(batch, m, n)
    for name in kernels_for(a, b, device, out=out):
        out[[0, 255, 511]] = torch.nan
        torch.ops.gemmx.gemm_out(a, b, out=out, kernel_name=name)
        for i in (0, 255, 511):
            assert torch.equal(out[i].float(), a[i].float() @ b[i].float()), f"{name}, batch {i}"
        assert buffer[:1024].isnan().all(), name
        assert buffer[-1024:].isnan().all(), name


@pytest.mark.parametrize("batch", [65_535, 65_536, 131_072])
@pytest.mark.parametrize("shape", [(8, 8, 8), (225, 1, 4)])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_more_batches_than_a_grid_dimension(batch: int, shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(batch)
    a = torch.randn(batch, m, k, device="cuda", generator=generator).to(DTYPES[dtype])
    b = torch.randn(batch, k, n, device="cuda", generator=generator).to(DTYPES[dtype])
    d = torch.ops.gemmx.gemm(a, b)
    assert_product(d, a, b, f"{batch} batches")


def test_empty_sum_writes_every_element() -> None:
    """K = 0 with a batch: zeros, or act(beta * C + bias), over whatever out held."""
    for dtype in DTYPES.values():
        a, b = torch.empty(10, 1, 0, device="cuda", dtype=dtype), torch.empty(10, 0, 43_200, device="cuda", dtype=dtype)
        out = torch.full((10, 1, 43_200), torch.nan, device="cuda", dtype=dtype)
        torch.ops.gemmx.gemm_out(a, b, out=out)
        assert not out.any()
        bias = torch.randn(43_200, device="cuda").to(dtype)
        torch.ops.gemmx.gemm_out(a, b, bias=bias, activation="relu", out=out)
        assert torch.equal(out, bias.relu().expand_as(out))
        c = torch.full((1, 1), 4.0, device="cuda", dtype=dtype)
        torch.ops.gemmx.gemm_out(a, b, c, alpha=float("nan"), beta=0.5, out=out)
        assert (out == 2.0).all()


def test_what_is_not_read_gives_no_nan() -> None:
    for dtype in DTYPES.values():
        a, b = torch.ones(64, 128, device="cuda", dtype=dtype), torch.ones(128, 96, device="cuda", dtype=dtype)
        c = torch.full((1, 1), torch.nan, device="cuda", dtype=dtype)
        assert (torch.ops.gemmx.gemm(a, b, c, beta=0.0, alpha=0.5) == 64.0).all()
        nan = torch.full_like(a, torch.nan)
        values = torch.randn(64, 96, device="cuda").to(dtype)
        assert torch.equal(torch.ops.gemmx.gemm(nan, b, values, alpha=0.0), values)


def test_expanded_operands() -> None:
    two = torch.full((1, 1), 2.0, device="cuda")
    assert torch.ops.gemmx.gemm(two.expand(1, 64), torch.ones(64, 1, device="cuda")).item() == 128.0
    for size in (2, 512):
        grad = torch.ones(1, 1, device="cuda").expand(size, size)  # of .sum()
        x = torch.randn(size, size, device="cuda")
        assert_product(torch.ops.gemmx.gemm(grad, x.t()), grad, x.t(), "dA")
        assert_product(torch.ops.gemmx.gemm(x.t(), grad), x.t(), grad, "dB")


def test_scale_comes_before_rounding(device: _C.Device) -> None:
    """The accumulator, 131072, is beyond float16; alpha brings it to 512."""
    a = torch.full((4, 1024), 16.0, device="cuda", dtype=torch.float16)
    b = torch.full((64, 1024), 8.0, device="cuda", dtype=torch.float16).t()
    for name in kernels_for(a, b, device, alpha=1 / 256):
        assert (torch.ops.gemmx.gemm(a, b, alpha=1 / 256, kernel_name=name) == 512.0).all(), name


def test_partial_sums_are_float32(device: _C.Device) -> None:
    """float16 partials of these sums, +131072 and -131071, would be infinite and the result NaN."""
    a = torch.full((16, 4096), 8.0, device="cuda", dtype=torch.float16)
    b = torch.full((64, 4096), 8.0, device="cuda", dtype=torch.float16)
    b[:, 2048:] = -8.0
    b[:, -1] = -7.875
    for splits in range(1, 9):
        for name in kernels_for(a, b.t(), device, splits=splits):
            assert (torch.ops.gemmx.gemm(a, b.t(), splits=splits, kernel_name=name) == 1.0).all(), (
                f"{name}, {splits} splits"
            )


def test_splits_keep_the_bound(device: _C.Device) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    for m in (64, 512):
        a = torch.rand(m, 14_336, device="cuda", generator=generator).mul_(2).sub_(1).bfloat16()
        b = torch.rand(4096, 14_336, device="cuda", generator=generator).mul_(2).sub_(1).bfloat16().t()
        exact, bound = reference.gemm(a, b, out_dtype=torch.float64), reference.error_bound(a, b)
        for splits in (1, 2, 3, 5, 8):
            for name in kernels_for(a, b, device, splits=splits):
                d = torch.ops.gemmx.gemm(a, b, splits=splits, kernel_name=name)
                assert_right(d, exact, bound, f"{name}, {splits} splits")


def test_float32_is_not_tf32() -> None:
    integers = torch.arange(8192, device="cuda", dtype=torch.float32)[None]
    one = torch.ones(1, 1, device="cuda")
    assert torch.equal(torch.ops.gemmx.gemm(one, integers), integers)
    assert torch.equal(gemmx.gemm(one, integers), integers)
    large = torch.randint(-(2**20), 2**20, (64, 64), device="cuda").float()
    assert torch.equal(torch.ops.gemmx.gemm(large, torch.eye(64, device="cuda")), large)


def test_float32_precision_of_torch_is_followed() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    a = torch.randn(256, 256, device="cuda")
    ieee = gemmx.gemm(a, a)
    try:
        matmul.fp32_precision = "tf32"
        assert torch.equal(gemmx.gemm(a, a), torch.ops.gemmx.gemm(a, a, precision="tf32"))
        assert torch.equal(gemmx.gemm(a, a, precision="ieee"), ieee)
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("out_dtype", [*DTYPES.values(), torch.float64, torch.float8_e4m3fn, torch.int8, torch.int32])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float64, torch.float8_e4m3fn, torch.int8, torch.int32])
def test_every_dtype_pair(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    a = torch.randn(33, 48, device="cuda").to(dtype)
    b = torch.randn(48, 40, device="cuda").to(dtype)
    if dtype in DTYPES.values() and out_dtype in (dtype, torch.float32):
        d = torch.ops.gemmx.gemm(a, b, out_dtype=out_dtype)
        assert d.dtype == out_dtype
        assert_product(d, a, b, f"{dtype} -> {out_dtype}")
    else:
        with pytest.raises(RuntimeError, match="dtype"):
            torch.ops.gemmx.gemm(a, b, out_dtype=out_dtype)


def test_subnormal_sums_are_kept(device: _C.Device) -> None:
    """Products of 2^-130 sum to 2^-126; flushed to zero they would sum to 0."""
    a = torch.full((8, 16), 2.0**-65, device="cuda", dtype=torch.bfloat16)
    b = torch.full((8, 16), 2.0**-65, device="cuda", dtype=torch.bfloat16).t()
    for name in kernels_for(a, b, device, out_dtype=torch.float32):
        assert (torch.ops.gemmx.gemm(a, b, out_dtype=torch.float32, kernel_name=name) == 2.0**-126).all(), name
    tiny = torch.full((1, 1), 2.0**-24, device="cuda", dtype=torch.float16)
    for name in kernels_for(tiny, torch.ones_like(tiny), device):
        assert torch.ops.gemmx.gemm(tiny, torch.ones_like(tiny), kernel_name=name).item() == 2.0**-24, name


@pytest.mark.parametrize("size", [4, 4096])
def test_c_may_be_out(size: int, device: _C.Device) -> None:
    generator = torch.Generator("cuda").manual_seed(size)
    a, b, c = (torch.randn(size, size, device="cuda", generator=generator).bfloat16() for _ in range(3))
    exact, bound = reference.gemm(a, b, c, beta=0.5, out_dtype=torch.float64), reference.error_bound(a, b, c, beta=0.5)
    for splits in (0, 4):
        for name in kernels_for(a, b, device, c=c, out=c, beta=0.5, splits=splits):
            out = c.clone()
            torch.ops.gemmx.gemm_out(a, b, out, beta=0.5, splits=splits, kernel_name=name, out=out)
            assert_right(out, exact, bound, f"{name}, {splits} splits")


def test_windows_of_larger_tensors_equal_packed_ones() -> None:
    """A leading dimension is not replaced by the packed one: bit for bit, with the memory around out untouched."""
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(1024, 1024, device="cuda", generator=generator).bfloat16()[256:768, 128:640] for _ in range(2))
    for m in (3, 4, 128, 512):
        packed = torch.ops.gemmx.gemm(a[:m].contiguous(), b.contiguous())
        out = torch.full((1024, 1024), torch.nan, device="cuda", dtype=torch.bfloat16)
        torch.ops.gemmx.gemm_out(a[:m], b, out=out[256 : 256 + m, 128:640])
        assert torch.equal(out[256 : 256 + m, 128:640], packed)
        out[256 : 256 + m, 128:640] = torch.nan
        assert out.isnan().all()
