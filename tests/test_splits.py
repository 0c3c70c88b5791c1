"""Where K is cut (csrc/core/splits.h): every element once, in order, at multiples of the unit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmx import _C

UNIT_BYTES = 512
depths = st.one_of(st.integers(1, 1 << 20), st.sampled_from((1, 255, 256, 257, 4096, 14336, 2**31, 2**40)))
element_sizes = st.sampled_from((1, 2, 4))


def cuts(k: int, element_bytes: int, splits: int) -> list[int]:
    return [_C.cut_begin(k, element_bytes, i, splits) for i in range(splits + 1)]


@given(depths, element_sizes, st.integers(1, 64))
def test_cuts_cover_k_once_in_order_at_multiples_of_the_unit(k: int, element_bytes: int, splits: int) -> None:
    splits = min(splits, _C.max_splits(k, element_bytes))
    bounds = cuts(k, element_bytes, splits)
    assert bounds[0] == 0 and bounds[-1] == k
    assert all(begin < end for begin, end in pairwise(bounds))  # so that no cut is empty
    assert all(begin % (UNIT_BYTES // element_bytes) == 0 for begin in bounds[:-1])
    units = [-(-(end - begin) * element_bytes // UNIT_BYTES) for begin, end in pairwise(bounds)]
    assert max(units) - min(units) <= 1


@given(depths, element_sizes)
def test_one_split_more_than_the_most_leaves_a_cut_empty(k: int, element_bytes: int) -> None:
    most = _C.max_splits(k, element_bytes)
    if most < 1 << 16:
        bounds = cuts(k, element_bytes, most + 1)
        assert any(begin == end for begin, end in pairwise(bounds))


@given(st.integers(0, 1 << 31), st.integers(0, 1 << 31), element_sizes)
def test_the_splits_of_batch_invariant_can_be_cut(n: int, k: int, element_bytes: int) -> None:
    assert 1 <= _C.splits_for(n=n, k=k, element_bytes=element_bytes) <= _C.max_splits(k, element_bytes)


def test_the_splits_of_batch_invariant_cannot_be_told_m() -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _C.splits_for(m=16, n=4096, k=4096, element_bytes=2)  # type: ignore[call-arg]
