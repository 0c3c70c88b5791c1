"""B27-B36: partial sums, precision, rounding, overflow, dtypes, small integers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import gemmx
from every_way import OP, assert_every_way_is_right, every_way, normal, on_every_device, oracle, results, ways
from gemmx import reference
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import decide
from problems import DTYPES, bits

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
EVERY_SPLIT = range(2, 9)


@on_every_device
@dtypes
def test_b27_partial_sums_are_float32(place: str, dtype: torch.dtype) -> None:
    """float16 partials of these sums, +131072 and -131071, would be infinite and the result NaN."""
    a = torch.full((16, 4096), 8.0, device=place, dtype=dtype)
    b = torch.full((72, 4096), 8.0, device=place, dtype=dtype)
    b[:, 2048:] = -8.0
    b[:, -1] = -7.875
    for x, y in ((a, b.t()), (a, b.t().contiguous()), (a.t().contiguous().t(), b.t().contiguous())):
        for what, d in every_way(x, y, splits=EVERY_SPLIT):
            assert (d == 1.0).all(), what


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("m", [64, 512])
def test_b27_every_number_of_splits_keeps_the_bound(m: int, dtype: torch.dtype) -> None:
    n, k = (4096, 14_336) if dtype == torch.bfloat16 else (512, 14_336)
    generator = torch.Generator("cuda").manual_seed(m)
    a = torch.rand(m, k, device="cuda", generator=generator).mul_(2).sub_(1).to(dtype)
    b = torch.rand(n, k, device="cuda", generator=generator).mul_(2).sub_(1).to(dtype).t()
    assert assert_every_way_is_right(a, b, splits=(2, 3, 5, 8), outs=(None,)) > 1


@on_every_device
def test_b28_float32_is_not_tf32(place: str) -> None:
    integers = torch.arange(8192, device=place, dtype=torch.float32)[None]
    one = torch.ones(1, 1, device=place)
    for what, d in [*every_way(one, integers), *every_way(integers.t(), one)]:
        assert torch.equal(d.flatten(), integers.flatten()), what
    assert torch.equal(gemmx.gemm(one, integers), integers)
    assert torch.equal(torch.compile(gemmx.gemm, backend="aot_eager", fullgraph=True)(one, integers), integers)
    generator = torch.Generator(place).manual_seed(0)
    large = torch.randint(-(2**20), 2**20, (64, 64), device=place, generator=generator).float()
    for what, d in every_way(large, torch.eye(64, device=place)):
        assert torch.equal(d, large), what


@pytest.mark.gpu
def test_b28_the_precision_of_torch_is_followed() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    a = normal(256, 256, device="cuda")
    ieee = gemmx.gemm(a, a)
    try:
        matmul.fp32_precision = "tf32"
        assert torch.equal(gemmx.gemm(a, a), OP(a, a, precision="tf32"))
        assert torch.equal(torch.compile(gemmx.gemm, fullgraph=True, backend="aot_eager")(a, a), gemmx.gemm(a, a))
        assert torch.equal(gemmx.gemm(a, a, precision="ieee"), ieee)
    finally:
        matmul.fp32_precision = before
    assert_every_way_is_right(a, a, precision="tf32")


@pytest.mark.parametrize("options", [{"bias": "f32"}, {"c": "f32"}, {"activation": "relu"}], ids=str)
def test_b28_tf32_that_torch_allows_refuses_no_call(options: dict[str, Any]) -> None:
    """Torch's setting allows less accurate products; a float32 layer must not fail for it."""
    problem = check_shape(64, 128, 256, "f32", precision="tf32", **options).problem
    for model in ("h200", "a100"):
        assert decide(problem, profile(model), only_built=False).candidates


def test_b29_float32_promises_no_batch_invariance() -> None:
    with pytest.raises(RuntimeError, match=r"^numerics: 'batch_invariant' takes float16 and bfloat16 but a is float32"):
        OP(torch.ones(2, 3), torch.ones(3, 2), numerics="batch_invariant")


@on_every_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_b29_a_row_does_not_depend_on_its_batch(place: str, dtype: torch.dtype) -> None:
    """One row among random ones, in batches of many sizes and at every kind of place; tests/gpu has every kernel."""
    n, k = (4096, 4096) if place == "cuda" else (24, 96)
    anchor, b = normal(1, k, dtype=dtype, device=place), normal(n, k, dtype=dtype, device=place, seed=1).t()
    options: dict[str, Any] = {
        "bias": b[0],
        "activation": "gelu",
        "numerics": "batch_invariant",
    }
    expected = bits(OP(anchor, b, **options))
    for m in (1, 2, 5, 16, 17, 64, 65, 129, 257, *((1024, 4096) if place == "cuda" else ())):
        rows = normal(m, k, dtype=dtype, device=place, seed=m)
        for position in {0, m // 2, m - 1}:
            a = rows.clone()
            a[position] = anchor
            assert torch.equal(bits(OP(a, b, **options))[position], expected[0]), f"M={m}, row {position}"


@pytest.mark.gpu
@dtypes
def test_b29_a_row_of_equal_calls_has_equal_bits(dtype: torch.dtype) -> None:
    """At fixed M; and one kernel of one numerics class gives a row the same bits wherever in M it stands."""
    n = k = 2048 if dtype != torch.float32 else 512
    anchor, b = normal(1, k, dtype=dtype, device="cuda"), normal(n, k, dtype=dtype, device="cuda").t()
    for m in (1, 2, 17, 33, 128, 257, 1024):
        rows = normal(m, k, dtype=dtype, device="cuda", seed=m)
        for position in {0, m // 2, m - 1}:
            a = rows.clone()
            a[position] = anchor
            first = bits(OP(a, b))
            assert all(torch.equal(bits(OP(a, b)), first) for _ in range(3))


@on_every_device
@pytest.mark.parametrize("out_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_b30_8_bit_results_are_refused(place: str, out_dtype: torch.dtype) -> None:
    a = torch.ones(16, 16, device=place, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"^out_dtype: is float8_.* but bfloat16 inputs give bfloat16 or float32"):
        OP(a, a, out_dtype=out_dtype)


@on_every_device
def test_b30_overflow_rounds_to_infinity(place: str) -> None:
    """One rounding to nearest: the greatest finite number up to half a step beyond it, then infinity; by bits."""
    inf, nan = float("inf"), float("nan")
    f16 = {65_504.0: 65_504.0, 65_519.0: 65_504.0, 65_520.0: inf, 131_008.0: inf, inf: inf, nan: nan}
    greatest = torch.finfo(torch.bfloat16).max
    bf16 = {greatest: greatest, greatest + 2.0**118: greatest, greatest + 2.0**119: inf, inf: inf, nan: nan}
    for dtype, table in ((torch.float16, f16), (torch.bfloat16, bf16)):
        for sign, (value, expected) in itertools.product((1.0, -1.0), table.items()):
            head = torch.tensor(value, dtype=torch.float64).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
            head = head if abs(value) != inf else torch.tensor(value)
            rest = value - head.item() if abs(value) != inf and not math.isnan(value) else 0.0
            a = torch.zeros(8, 16, device=place, dtype=dtype)
            a[:, 0], a[:, 1] = sign * head.item(), sign * rest
            b = torch.zeros(16, 8, device=place, dtype=dtype)
            b[:2] = 1.0
            for what, d in every_way(a, b):
                wanted = torch.full_like(d, sign * expected)
                same = d.isnan() if math.isnan(expected) else bits(d) == bits(wanted)
                assert same.all(), f"{what}: {sign * value} became {d[0, 0].item()}"


def test_b31_block_scales_are_refused() -> None:
    a = torch.ones(4, 128, dtype=torch.float8_e4m3fn)
    for scale in (1.5, 1.0001, 1.9999):
        with pytest.raises(RuntimeError, match=r"^scale_a: scale tensors are not supported"):
            OP(a, a.t(), scale_a=torch.full((4, 1), scale), scale_b=torch.ones(1, 4))


ALL_DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


@on_every_device
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_b34_every_pair_of_dtypes(place: str, dtype: torch.dtype) -> None:
    m, n, k = (33, 40, 48) if place == "cuda" else (3, 4, 6)
    a = torch.randn(m, k, device=place).mul(2).to(dtype)
    b = torch.randn(k, n, device=place).mul(2).to(dtype)
    for out_dtype in ALL_DTYPES:
        if dtype in DTYPES.values() and out_dtype in (dtype, torch.float32):
            assert_every_way_is_right(a, b, out_dtype=out_dtype)
            assert OP(a, b, out_dtype=out_dtype).dtype == out_dtype
        else:
            with pytest.raises(RuntimeError, match="dtype"):
                OP(a, b, out_dtype=out_dtype)


@on_every_device
def test_b35_subnormal_numbers_are_kept(place: str) -> None:
    """Products of 2^-130 sum to 2^-126; flushed to zero they would sum to 0."""
    a = torch.full((8, 16), 2.0**-65, device=place, dtype=torch.bfloat16)
    for b in (a.t(), a.t().contiguous()):
        for what, d in every_way(a, b, out_dtype=torch.float32):
            assert (d == 2.0**-126).all(), what
        for what, d in every_way(a, b, out_dtype=torch.float32, alpha=0.25):
            assert (d == 2.0**-128).all(), what
    for dtype, least in ((torch.float16, 2.0**-24), (torch.bfloat16, 2.0**-133)):
        for m, k in ((1, 1), (16, 16)):
            tiny = torch.full((m, k), 0.0, device=place, dtype=dtype)
            tiny.fill_diagonal_(least)
            one = torch.eye(k, device=place, dtype=dtype)
            for what, d in every_way(tiny, one):
                assert torch.equal(d, tiny), what
    # C and bias are subnormal, too.
    zero, c = torch.zeros(8, 8, device=place), torch.full((8, 8), 2.0**-149, device=place)
    for what, d in every_way(zero, zero, c=c, bias=c[0]):
        assert (d == 2.0**-148).all(), what


@pytest.mark.parametrize("m", [0, 1, 8, 16, 17, 33])
def test_b36_int8_is_refused(m: int) -> None:
    with pytest.raises(RuntimeError, match=r"^a: dtype is int8 but gemm takes"):
        OP(torch.ones(m, 64, dtype=torch.int8), torch.ones(64, 64, dtype=torch.int8))


@on_every_device
@dtypes
def test_b36_every_small_m_and_odd_n_is_exact(place: str, dtype: torch.dtype) -> None:
    """Integers whose sums every type here holds."""
    sizes = [(m, 64, 64) for m in range(34)] + [(17, 17, 16), (5, 1, 3), (33, 63, 65), (64, 31, 64)]
    for m, n, k in sizes if place == "cuda" else sizes[::5]:
        a = (torch.arange(m * k, device=place) % 3 - 1).view(m, k).to(dtype)
        b = (torch.arange(k * n, device=place) % 2).view(k, n).to(dtype)
        expected = (a.double() @ b.double()).to(dtype)
        for x, y in ((a, b), (a, b.t().contiguous().t())):
            for way in ways(x, y, splits=()):
                for what, d in results(x, y, way=way, outs=(None,)):
                    assert torch.equal(d, expected), f"{what}: M={m} N={n} K={k}"
    assert reference.outside_bound(expected, *oracle(a, b)).sum() == 0
