"""Where K is cut (csrc/core/splits.h): every element once, in order, at multiples of the unit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmx import _C
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile

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


@pytest.mark.parametrize(
    ("n", "k", "splits"),
    [
        (4096, 14336, 2), (3584, 18944, 2), (4096, 11008, 2), (4224, 8193, 2),  # layers whose N does not fill a GPU
        (4225, 14336, 1), (6144, 14336, 1), (28672, 16384, 1),  # N fills it
        (4096, 8192, 1), (1024, 4096, 1), (1, 8192, 1), (8, 0, 1), (0, 0, 1),  # K is short
        (2816, 20000, 3), (1024, 32768, 4), (256, 65536, 4), (1, 2**31, 4),
    ],
)  # fmt: skip
def test_the_splits_of_batch_invariant_by_n_and_k(n: int, k: int, splits: int) -> None:
    assert _C.splits_for(n, k, 2) == splits
    assert _C.splits_for(n, 2 * k, 1) == splits


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 20))
def test_the_splits_of_batch_invariant_grow_with_k_and_fall_with_n(n: int, k: int) -> None:
    splits = _C.splits_for(n, k, 2)
    assert splits <= _C.splits_for(n, k + 1, 2) <= 4
    assert _C.splits_for(n + 1, k, 2) <= splits


def test_the_splits_of_batch_invariant_cannot_be_told_m() -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _C.splits_for(m=16, n=4096, k=4096, element_bytes=2)  # type: ignore[call-arg]


def test_the_wgmma_family_counts_splits_up_to_its_limit() -> None:
    limit = _C.testing.max_splits_of_grid
    k = (limit + 1) * 256
    assert _C.max_splits(k, 2) > limit
    spec = next(s for s in _C.kernels() if s.family == "sm90" and "split_k" in s.schedules)
    reasons = {
        splits: _C.supports(
            spec.name, check_shape(64, 64, k, schedule="split_k", splits=splits).problem, profile("h200")
        )
        for splits in (limit, limit + 1)
    }
    assert f"cuts K in at most {limit} parts, got splits={limit + 1}" in reasons[limit + 1]
    assert "parts" not in reasons[limit]
