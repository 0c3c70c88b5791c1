"""The index arithmetic of the device code, compiled for the host: every tile and every byte once, no bank conflicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemmx import _C

t = _C.testing

CHUNK = 16
BANK_GROUPS = 8  # 16-byte groups of the 32 banks: what one phase of eight 16-byte accesses must spread over
RASTERS = ("along_m", "along_n")


@dataclass(frozen=True)
class Operand:
    """One operand of one row of the family: its tile and the part of it that a warp reads."""

    kernel: str
    is_a: bool
    extent_mn: int
    extent_k: int
    k_major: bool
    warp_mn: int
    threads: int
    vectors: tuple[int, ...]
    halves: int = 1  # of the tile: gate and up, of each of which a warp reads the same part

    @property
    def tile(self) -> t.OperandTile:
        return t.OperandTile(self.extent_mn, self.extent_k, self.k_major)


def operands() -> Iterator[Operand]:
    for spec in _C.kernels():
        if spec.family != "sm80":
            continue
        warp = re.search(r"_w(\d+)x(\d+)_", spec.name)
        assert warp is not None, f"{spec.name} does not name its warp tile"
        tile_m, tile_n, tile_k = spec.tile
        vectors = (16, 8, 4, 2) if spec.name.endswith("_align2") else (16,)
        yield Operand(spec.name, True, tile_m, tile_k, spec.major_a == "k", int(warp[1]), spec.threads, vectors)
        halves = 2 if spec.gated else 1
        yield Operand(
            spec.name, False, tile_n, tile_k, spec.major_b == "k", int(warp[2]), spec.threads, vectors, halves
        )


# Rows share tiles: each distinct geometry once.
OPERANDS = list(
    {
        (o.is_a, o.extent_mn, o.extent_k, o.k_major, o.warp_mn, o.threads, o.vectors, o.halves): o for o in operands()
    }.values()
)
each_operand = pytest.mark.parametrize("o", OPERANDS, ids=lambda o: f"{'A' if o.is_a else 'B'}-{o.kernel}")


def test_rows_are_covered() -> None:
    assert len(OPERANDS) >= 10


@each_operand
def test_swizzle_is_a_bijection(o: Operand) -> None:
    tile = o.tile
    offsets = [tile.offset(row, byte) for row in range(tile.rows) for byte in range(0, tile.row_bytes, 2)]
    assert sorted(offsets) == list(range(0, tile.bytes, 2))


@each_operand
def test_warp_reads_its_fragments_without_conflicts(o: Operand) -> None:
    tile = o.tile
    half, share = o.extent_mn // o.halves, o.warp_mn // o.halves
    blocks = [at // 16 for first in range(0, o.extent_mn, half) for at in range(first, first + share, 16)]
    for warp_mn in range(0, half, share):
        lanes = [tile.lane_offset(lane, warp_mn, o.is_a) for lane in range(32)]
        for block in blocks:
            for step in range(o.extent_k // 16):
                offsets = [tile.block_offset(lane, block, step) for lane in lanes]
                for matrix in range(4):
                    rows = offsets[8 * matrix : 8 * matrix + 8]
                    assert len({offset // CHUNK % BANK_GROUPS for offset in rows}) == 8
                    # The 8 x 8 matrices in the order of the mma fragment: A steps along m first, B along k.
                    fast, slow = matrix % 2 * 8, matrix // 2 * 8
                    mn = warp_mn + block * 16 + (fast if o.is_a else slow)
                    k = step * 16 + (slow if o.is_a else fast)
                    first, along = (mn, k) if o.k_major else (k, mn)
                    assert rows == [tile.offset(first + i, 2 * along) for i in range(8)]


@each_operand
def test_copy_covers_the_tile_once(o: Operand) -> None:
    tile = o.tile
    for vector in o.vectors:
        copy = t.CopyMap(tile, o.threads, vector)
        assert copy.even()
        assert o.halves == 1 or not o.k_major or copy.passes % 2 == 0  # a pass has rows of one half
        pieces = [
            tile.offset(copy.row(thread) + i * copy.rows_per_pass, copy.byte(thread))
            for i in range(copy.passes)
            for thread in range(o.threads)
        ]
        assert sorted(pieces) == list(range(0, tile.bytes, vector))
        assert all(offset % vector == 0 for offset in pieces)


@each_operand
def test_sixteen_byte_stores_have_no_conflicts(o: Operand) -> None:
    copy = t.CopyMap(o.tile, o.threads, CHUNK)
    for i in range(copy.passes):
        for first in range(0, o.threads, 8):
            groups = {
                o.tile.offset(copy.row(thread) + i * copy.rows_per_pass, copy.byte(thread)) // CHUNK % BANK_GROUPS
                for thread in range(first, first + 8)
            }
            assert len(groups) == 8


@given(st.integers(0, 512), st.integers(-512, 1024), st.sampled_from([2, 4, 8, 16]))
def test_valid_bytes_counts_what_lies_before_the_end(byte: int, row_end: int, vector: int) -> None:
    assert t.valid_bytes(byte, row_end, vector) == sum(at < row_end for at in range(byte, byte + vector))


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 900), st.integers(1, 900), st.integers(1, 3)),
    splits=st.integers(1, 4),
    tile=st.sampled_from([(128, 256), (64, 64), (16, 64)]),
    raster=st.sampled_from(RASTERS),
    swizzle=st.integers(-1, 20),
)
def test_scheduler_visits_every_tile_once(
    shape: tuple[int, int, int], splits: int, tile: tuple[int, int], raster: str, swizzle: int
) -> None:
    m, n, batch = shape
    scheduler = t.TileScheduler(m, n, splits, *tile, raster, swizzle)
    count = t.cta_count(m, n, batch, splits, *tile)
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    assert count == tiles_m * tiles_n * batch * splits
    want = {(b, s, i, j) for b in range(batch) for s in range(splits) for i in range(tiles_m) for j in range(tiles_n)}
    assert {scheduler.coord(index) for index in range(count)} == want


@settings(deadline=None, max_examples=2000)
@given(
    n=st.integers(0, 2**32 - 1),
    divisor=st.integers(1, 2**32 - 1)
    | st.integers(1, 1000)
    | st.sampled_from([2**i + d for i in range(1, 32) for d in (-1, 0, 1)]),
)
def test_fast_divisor_divides(n: int, divisor: int) -> None:
    multiple = n - n % divisor
    for dividend in {n, multiple, max(multiple - 1, 0), 2**32 - 1}:
        assert t.fast_divide(dividend, divisor) == dividend // divisor


@settings(deadline=None, max_examples=60)
@given(
    k=st.integers(1, 40_000) | st.integers(1, 2**31 - 1025),
    splits=st.integers(1, t.max_splits_of_grid),
    tile_k=st.sampled_from([64, 128, 256]),
)
@example(k=2**31 - 1025, splits=65535, tile_k=64)
def test_k_cuts_begin_where_cut_begin_says(k: int, splits: int, tile_k: int) -> None:
    splits = min(splits, _C.max_splits(k, 2))
    want = [min(_C.cut_begin(k, 2, i, splits) // tile_k, -(-k // tile_k)) for i in range(splits)]
    assert t.k_cut_tiles(k, splits, tile_k) == [*want, -(-k // tile_k)]


@pytest.mark.parametrize("raster", RASTERS)
def test_scheduler_walks_in_bands(raster: str) -> None:
    # 5 x 5 tiles in bands of 2: the first ten CTAs stay in two rows or columns of tiles, the last band has one.
    scheduler = t.TileScheduler(5 * 64, 5 * 64, 1, 64, 64, raster, 2)
    minor = [scheduler.coord(index)[3 if raster == "along_m" else 2] for index in range(25)]
    major = [scheduler.coord(index)[2 if raster == "along_m" else 3] for index in range(25)]
    assert minor == [0, 1] * 5 + [2, 3] * 5 + [4] * 5
    assert major == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] * 2 + [0, 1, 2, 3, 4]


def test_scheduler_at_the_limit_of_a_launch() -> None:
    batch = 2**31 - 1
    assert t.cta_count(8, 8, batch, 1, 64, 64) == t.max_grid_x
    assert t.cta_count(8, 8, batch, 2, 64, 64) > t.max_grid_x
    assert t.cta_count(2**62, 2**62, 2**62, 1, 64, 64) > t.max_grid_x
    scheduler = t.TileScheduler(8, 8, 1, 64, 64, "along_m", 1)
    assert scheduler.coord(batch - 1) == (batch - 1, 0, 0, 0)
    # 46340 x 46341 tiles, swizzled: no product of the decomposition leaves 32 bits.
    scheduler = t.TileScheduler(46340 * 64, 46341 * 64, 1, 64, 64, "along_m", 46341)
    assert scheduler.coord(46340 * 46341 - 1) == (0, 0, 46339, 46340)


@settings(deadline=None)
@given(
    tiles=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    raster=st.sampled_from(RASTERS),
    swizzle=st.sampled_from([t.hilbert, 1, 4, 8, 16, 64]),
)
def test_every_order_visits_every_tile_once(tiles: tuple[int, int], raster: str, swizzle: int) -> None:
    order = t.tile_order(128 * tiles[0] - 3, 256 * tiles[1] - 255, 128, 256, raster, swizzle)
    assert sorted(order) == [(m, n) for m in range(tiles[0]) for n in range(tiles[1])]


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 32])
def test_hilbert_walks_to_a_neighbour(side: int) -> None:
    order = t.tile_order(side, side, 1, 1, "along_m", t.hilbert)
    steps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise(order)]
    assert steps == [1] * (side * side - 1)


def test_hilbert_stays_in_a_quadrant_until_it_is_done() -> None:
    order = t.tile_order(24, 17, 1, 1, "along_m", t.hilbert)  # a rectangle that no square of the curve fits
    seen: list[tuple[int, int]] = []
    for m, n in order:
        if (quadrant := (m // 16, n // 16)) not in seen[-1:]:
            seen.append(quadrant)
    assert sorted(seen) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_wave_in_hilbert_order_needs_the_fewest_rows_and_columns() -> None:
    """What the order is for: the rows and columns of tiles that 64 CTAs at a time share."""

    def lines(raster: str, swizzle: int) -> int:
        order = t.tile_order(64, 64, 1, 1, raster, swizzle)
        waves = [order[i : i + 64] for i in range(0, len(order), 64)]
        return sum(len({m for m, _ in wave}) + len({n for _, n in wave}) for wave in waves)

    assert lines("along_n", 1) == 64 * (1 + 64)
    assert lines("along_n", 4) == 64 * (4 + 16)
    assert lines("along_n", 8) == lines("along_n", t.hilbert) == 64 * (8 + 8)
    assert lines("along_m", 16) == 64 * (16 + 4)


def parts_of(schedule: t.StreamK, worker: int) -> list[tuple[int, int, int, int]]:
    """The parts of cut tiles that a worker computes, in its order."""
    unit, left = schedule.begin(worker), schedule.units_of(worker)
    assert unit + left == schedule.begin(worker + 1)
    parts = []
    while left > 0:
        parts.append(schedule.part(worker, unit, left))
        unit, left = unit + parts[-1][2], left - parts[-1][2]
    return parts


@settings(deadline=None)
@given(tiles=st.integers(1, 700), k_tiles=st.integers(1, 90), workers=st.integers(1, 140))
def test_stream_k_computes_every_unit_once(tiles: int, k_tiles: int, workers: int) -> None:
    schedule = t.StreamK(tiles, k_tiles, workers)
    assert schedule.first + schedule.tiles == tiles
    assert schedule.first % workers == 0
    assert schedule.tiles < workers
    if schedule.tiles == 0:
        assert schedule.slots == 0
        return
    assert schedule.workers == min(workers, schedule.tiles * k_tiles)
    units: list[tuple[int, int]] = []
    slots: list[int] = []
    loads: list[int] = []
    for worker in range(schedule.workers):
        parts = parts_of(schedule, worker)
        assert 1 <= len(parts) <= 2
        loads.append(sum(count for _, _, count, _ in parts))
        for tile, begin, count, slot in parts:
            units += [(tile, k) for k in range(begin, begin + count)]
            slots.append(slot)
            assert schedule.worker_of(tile * k_tiles + begin) == worker
            assert schedule.worker_of(tile * k_tiles + begin + count - 1) == worker
    assert units == [(tile, k) for tile in range(schedule.tiles) for k in range(k_tiles)]
    assert len(set(slots)) == len(slots)
    assert max(slots) < schedule.slots
    assert max(loads) - min(loads) <= 1


def test_stream_k_at_the_limits() -> None:
    # K of 2^31 elements in tiles of 64, 127 tiles: the units fill 32 bits. One worker more and they do not fit.
    assert t.stream_k_counts(2**25, 127)
    assert not t.stream_k_counts(2**25, 128)
    schedule = t.StreamK(126, 2**25, 127)
    assert schedule.worker_of(126 * 2**25 - 1) == 126
    tile, begin, count, _ = parts_of(schedule, 126)[-1]
    assert (tile, begin + count) == (125, 2**25)
