"""B14-B19: windows, broadcast operands, strides that decide nothing, aliasing, alignment."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import Tensor

from every_way import (
    OP,
    OP_OUT,
    Way,
    assert_every_way_is_right,
    every_way,
    new_out,
    normal,
    on_every_device,
    oracle,
    results,
    ways,
)
from gemmx import reference
from problems import ALIGNED, DTYPES, PACKED, Layout, bits

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


def window(m: int, n: int, dtype: torch.dtype, place: str, *, transposed: bool = False) -> Tensor:
    """A matrix inside one of twice the size that is NaN elsewhere."""
    rows, cols = (n, m) if transposed else (m, n)
    parent = torch.full((2 * rows, 2 * cols), torch.nan, dtype=dtype, device=place)
    view = parent[rows // 2 : rows // 2 + rows, cols // 2 : cols // 2 + cols]
    view.copy_(normal(rows, cols, device=place))
    return view.t() if transposed else view


@on_every_device
@dtypes
@pytest.mark.parametrize("m", [3, 4, 128, 512])
def test_b14_a_window_gives_the_bits_of_its_packed_copy(place: str, dtype: torch.dtype, m: int) -> None:
    """One operand at a time and together, both majors, out included."""
    n = k = 512 if place == "cuda" else 24
    if place == "cpu" and m > 4:
        pytest.skip("the reference has no tiles")
    for transposed_a, transposed_b in itertools.product((False, True), repeat=2):
        a = window(m, k, dtype, place, transposed=transposed_a)
        b = window(k, n, dtype, place, transposed=transposed_b)
        packed_a = a.t().contiguous().t() if transposed_a else a.contiguous()
        packed_b = b.t().contiguous().t() if transposed_b else b.contiguous()
        shared = set(ways(a, b)) & set(ways(packed_a, packed_b)) - {Way()}
        for way in (Way(), *sorted(shared, key=str)):
            expected = bits(next(iter(results(packed_a, packed_b, outs=(None,), way=way)))[1]).clone()
            for x, y in ((a, packed_b), (packed_a, b), (a, b)):
                if way in ways(x, y):
                    for what, d in results(x, y, way=way):
                        # The op may take another kernel for another layout: then the bound holds, not the bits.
                        if way.kernel:
                            assert torch.equal(bits(d), expected), what
                        else:
                            assert not reference.outside_bound(d, *oracle(x, y)).any(), what
            if way.kernel:
                out = new_out(a, b, Layout(ld_pad=n))
                OP_OUT(a, b, kernel_name=way.kernel, schedule=way.schedule, splits=way.splits, out=out.view)
                assert torch.equal(bits(out.view.contiguous()), expected), way
                assert not out.damaged_outside(), way


@on_every_device
@dtypes
def test_b15_stride_0_operands(place: str, dtype: torch.dtype) -> None:
    two = torch.full((1, 1), 2.0, device=place, dtype=dtype)
    for what, d in every_way(two.expand(1, 64), torch.ones(64, 1, device=place, dtype=dtype)):
        assert (d == 128.0).all(), what
    for size in (2, 512) if place == "cuda" else (2, 33):
        ones = torch.ones(1, 1, device=place, dtype=dtype).expand(size, size)  # the gradient of .sum()
        x = normal(size, size, dtype=dtype, device=place)
        row, column = x[:1].expand(size, size), x[:, :1].expand(size, size)
        for a, b in itertools.permutations((ones, x, x.t(), row, column), 2):
            assert_every_way_is_right(a, b, outs=(None,))
        c = x[:1, :1].expand(size, size)
        assert_every_way_is_right(x, x, c=c, bias=x[0, :1].expand(size), beta=0.5, outs=(None,))
    a, b = (normal(1, 8, 8, dtype=dtype, device=place).expand(3, 8, 8) for _ in range(2))
    assert_every_way_is_right(a, b)
    with pytest.raises(ValueError, match=r"^out: its strides put several elements"):
        OP_OUT(two, two.expand(1, 64), out=torch.empty(1, 1, device=place, dtype=dtype).expand(1, 64))


@on_every_device
@dtypes
def test_b17_strides_of_size_1_dimensions_decide_nothing(place: str, dtype: torch.dtype) -> None:
    def strided(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return normal(extent, dtype=dtype, device=place).as_strided(sizes, strides)

    big, small = (512, 256) if place == "cuda" else (33, 24)
    pairs = []
    for stride in (131_072, 1, 7, 0):
        pairs.append((strided((1, big, small), (stride, small, 1)), strided((1, small, 40), (7 * stride, 40, 1))))
        pairs.append((strided((1, big), (stride, 1)), strided((big, 24), (24, 1))))
        pairs.append((strided((40, small), (small, 1)), strided((small, 1), (1, stride))))
        pairs.append((strided((64, 1), (1, stride)), strided((1, 24), (stride, 1))))
        pairs.append((strided((64, 1), (5, stride)), strided((1, 24), (stride, 5))))
        pairs.append((strided((1, 1), (stride, stride)), strided((1, 1), (stride, 3))))
    for a, b in pairs:
        assert_every_way_is_right(a, b)
        copy = OP(a.contiguous().clone(), b.contiguous().clone())
        assert copy.shape == OP(a, b).shape
    # As a packed copy, so that no stride costs a slower kernel.
    a, b = strided((1, 64), (3, 1)), strided((64, 24), (24, 1))
    assert torch.equal(bits(OP(a, b)), bits(OP(a.contiguous().clone(), b)))


@on_every_device
@dtypes
@pytest.mark.parametrize("size", [4, 129, 5000])
def test_b18_out_aliases_an_input(place: str, dtype: torch.dtype, size: int) -> None:
    if size == 5000 and (place == "cpu" or dtype != torch.float32):
        pytest.skip("the size is one of float32 on a GPU")
    n = size
    a, b, c = (normal(n, n, dtype=dtype, device=place, seed=i) for i in range(3))
    storage = normal(2, n, n, dtype=dtype, device=place).flatten()
    first, second = storage[: n * n].view(n, n), storage[n * n // 2 : n * n // 2 + n * n].view(n, n)
    shifted = storage[1 : n * n + 1].view(n, n)
    for name, arguments, out in (
        ("a", (a, b), a),
        ("b", (a, b), b),
        ("ab", (b, b.t()), b),
        ("a", (first, b), second),
        ("c", (a, b, first), shifted),
        ("ac", (a, b, a.t()), a),
        ("c", (a, b, c[:1]), c),
    ):
        before = out.clone()
        sentence = "^out: shares memory with [abc], or cannot be shown not to; out may be exactly c"
        with pytest.raises(ValueError, match=sentence) as raised:
            OP_OUT(*arguments, out=out)
        assert re.search(f"with [{name}],", str(raised.value))
        assert torch.equal(out, before)
    # Exactly C is legal, under every kernel and schedule.
    exact, bound = oracle(a, b, c=c, beta=0.5)
    for way in ways(a, b, c=c, beta=0.5):
        out = new_out(a, b, PACKED if way.kernel else ALIGNED)
        out.view.copy_(c)
        request = {"kernel_name": way.kernel, "schedule": way.schedule, "splits": way.splits} if way.kernel else {}
        OP_OUT(a, b, out.view, beta=0.5, **request, out=out.view)
        assert not reference.outside_bound(out.view, exact, bound).any(), way
        assert not out.damaged_outside(), way


def test_b18_batches_that_alias() -> None:
    a = torch.ones(2, 99, 99)
    with pytest.raises(ValueError, match=r"^out: shares memory with a"):
        OP_OUT(a, torch.ones(99, 99), out=a)


@on_every_device
@dtypes
def test_b19_every_combination_of_alignments(place: str, dtype: torch.dtype) -> None:
    """Pointers 0, 1, 2, 4 or 8 elements off an aligned address, in a and b together, in out and in bias."""
    m, n, k = (40, 64, 96) if place == "cuda" else (5, 16, 16)

    def moved(rows: int, cols: int, offset: int) -> Tensor:
        return normal(rows * cols + offset, dtype=dtype, device=place)[offset:].view(rows, cols)

    offsets = (0, 1, 2, 4, 8)
    for offset_a, offset_b in itertools.product(offsets, repeat=2):
        a, b = moved(m, k, offset_a), moved(k, n, offset_b)
        outs = [Layout(offset=x) for x in offsets]
        bias = normal(n + 8, dtype=dtype, device=place)[offset_b : offset_b + n]
        exact, bound = oracle(a, b, bias=bias)
        for what, d in results(a, b, outs=outs, bias=bias):
            assert not reference.outside_bound(d, exact, bound).any(), f"{what}, a {offset_a}, b {offset_b}"
        if offset_a <= 1 or offset_b == 0:
            assert_every_way_is_right(a, moved(n, k, offset_b).t(), bias=bias, outs=(None,))


@pytest.mark.gpu
def test_b19_the_reported_strides() -> None:
    bf16 = torch.bfloat16
    a = normal(2048 * 1024, dtype=bf16, device="cuda").as_strided((1024, 2048), (1, 1024))
    b = normal(7920 * 2048, dtype=bf16, device="cuda").as_strided((2048, 1953), (7920, 1))
    assert_every_way_is_right(a, b)
    bias = normal(1954, dtype=bf16, device="cuda")[1:]
    assert_every_way_is_right(a, b, bias=bias)
