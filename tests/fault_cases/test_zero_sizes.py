"""B01-B05: empty sums, empty operands, rows that nobody computes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import gemmx
from every_way import OP, OP_OUT, assert_no_op, every_way, normal, on_every_device, results
from gemmx import reference
from problems import ALIGNED, DTYPES, PACKED, Layout

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
OUTS = (None, PACKED, ALIGNED, Layout(along="cols"), Layout(step=2))


@on_every_device
@dtypes
@pytest.mark.parametrize("shape", [(10, 1, 43_200), (3, 2, 3), (0, 4, 5), (4, 0, 5), (1, 1, 1), (2, 129, 130)], ids=str)
def test_b01_an_empty_sum_writes_every_element(place: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    batch, m, n = shape
    if place == "cpu" and m * n > 1000 and dtype != torch.float32:
        pytest.skip("the reference has no tiles")
    a, b = torch.empty(batch, m, 0, device=place, dtype=dtype), torch.empty(batch, 0, n, device=place, dtype=dtype)
    bias = normal(n, dtype=dtype, device=place)
    options: tuple[dict[str, Any], ...] = (
        {},
        {"bias": bias},
        {"bias": bias, "activation": "gelu"},
        {"out_dtype": torch.float32},
    )
    for option in options:
        expected = reference.gemm(a, b, **option)
        for what, d in every_way(a, b, outs=OUTS if m * n < 1000 else (None, PACKED), **option):
            assert d.shape == shape
            assert torch.allclose(d, expected, rtol=1e-2, atol=1e-5), f"{what}, {option.keys()}"
            if "activation" not in option:
                assert torch.equal(d, expected), f"{what}, {option.keys()}"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_b01_empty_sums_of_8_bit_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError, match=r"^a: dtype is .* but gemm takes float32, float16 and bfloat16"):
        OP(torch.empty(3, 0, dtype=dtype), torch.empty(0, 4, dtype=dtype))


@on_every_device
@dtypes
@pytest.mark.parametrize("batch", [(), (3,)])
def test_b02_an_empty_sum_keeps_beta_and_ignores_alpha(place: str, dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    a, b = torch.ones(*batch, 2, 0, device=place, dtype=dtype), torch.ones(*batch, 0, 2, device=place, dtype=dtype)

    def c(value: float, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.full(shape, value, device=place, dtype=dtype)

    for shape in ((*batch, 2, 2), (1, 2), (2, 1), ()):
        for value, alpha, beta, expected in (
            (1.0, 0.0, 2.0, 2.0),
            (4.0, float("nan"), 0.5, 2.0),
            (4.0, float("inf"), 0.5, 2.0),
            (float("nan"), 1.0, 0.0, 0.0),
            (3.0, 1.0, 1.0, 3.0),
        ):
            for what, d in every_way(a, b, c=c(value, shape), alpha=alpha, beta=beta):
                assert (d == expected).all(), f"{what}: C of {shape}, alpha {alpha}, beta {beta}"


@on_every_device
def test_b02_no_batch_is_an_empty_d(place: str) -> None:
    d = OP(torch.ones(0, 2, 3, device=place), torch.ones(0, 3, 4, device=place), torch.ones(2, 4, device=place))
    assert d.shape == (0, 2, 4)


EMPTY = [sizes for sizes in itertools.product((0, 3), (0, 4), (0, 5)) if 0 in sizes]


@on_every_device
@dtypes
@pytest.mark.parametrize("sizes", EMPTY, ids=str)
def test_b03_empty_operands_of_any_strides_are_taken(
    place: str, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    """No stride of an empty matrix could pass a test of alignment, so none is made; the compiled path agrees."""
    m, n, k = sizes
    for strides_a, strides_b in itertools.product(((1, 1), (0, 1), (7, 3), (1, 0)), repeat=2):
        a = torch.ones(64, device=place, dtype=dtype).as_strided((m, k), strides_a, 1)
        b = torch.ones(64, device=place, dtype=dtype).as_strided((k, n), strides_b, 3)
        for d in (OP(a, b), *(d for _, d in results(a, b, outs=(PACKED,)))):
            assert (d.shape, d.dtype) == ((m, n), dtype)
            assert not d.any()
    torch._dynamo.reset()
    compiled = torch.compile(gemmx.gemm, backend="eager", fullgraph=True)(a, b)
    assert (compiled.shape, compiled.dtype) == ((m, n), dtype)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 32, 64), (16, 0, 64), (16, 32, 0)])
def test_b03_scaled_8_bit_operands_are_refused(m: int, n: int, k: int) -> None:
    a, b = torch.empty(m, k, dtype=torch.float8_e4m3fn), torch.empty(n, k, dtype=torch.float8_e4m3fn).t()
    with pytest.raises(RuntimeError, match=r"^scale_a: scale tensors are not supported"):
        OP(a, b, scale_a=torch.ones(m, 1), scale_b=torch.ones(1, n))
    with pytest.raises(RuntimeError, match=r"^a: dtype is float8_e4m3fn but"):
        OP(a, b)


def test_b03_b05_there_is_no_grouped_gemm() -> None:
    """Rows past the last offset, empty groups and the weight-gradient form come with the op."""
    assert_no_op("grouped_gemm")


@on_every_device
@dtypes
def test_b05_no_row_is_left_to_what_memory_held(place: str, dtype: torch.dtype) -> None:
    """Twice, with blocks full of NaN freed in between: the second call shows what the first left unwritten."""
    for m, n in ((64, 32), (65, 33), (1, 7), (130, 257)) if place == "cuda" else ((5, 4), (5, 1)):
        a, b = torch.ones(m, 48, device=place, dtype=dtype), torch.ones(48, n, device=place, dtype=dtype)
        for _ in range(2):
            for what, d in every_way(a, b):
                assert (d == 48.0).all(), what
            torch.full((8, m, n), torch.nan, device=place, dtype=dtype)
    out = torch.full((m, n), torch.nan, device=place, dtype=dtype)
    OP_OUT(a, b, out=out)
    assert (out == 48.0).all()
