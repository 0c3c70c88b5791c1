"""The parts of the benchmarks, without a GPU: statistics, manifests, the timer on a fake clock, cases, host mode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from bench_rows import ROOT, make_row
from gemmx.bench import host, manifest, stats, timer
from gemmx.bench.accuracy import error_over_bound, spread
from gemmx.bench.cases import Case, matrix

MANIFESTS = sorted((ROOT / "benchmarks" / "manifests").glob("*.csv"))


# ---- statistics ----------------------------------------------------------------------------------------------


def test_quantile_interpolates_between_neighbours() -> None:
    assert stats.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert stats.quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    assert math.isnan(stats.quantile([], 0.5))


def test_paired_ratio_cancels_a_drift_that_separate_medians_do_not() -> None:
    drift = [1 + 0.02 * r for r in range(20)]
    slow, fast = [110 * d for d in drift], [100 * d for d in drift]
    ratio = stats.paired_ratio(slow, fast)
    assert (ratio.median, ratio.p10, ratio.p90) == pytest.approx((1.1, 1.1, 1.1))


def test_paired_ratio_refuses_different_runs() -> None:
    with pytest.raises(ValueError, match="one call of time_arms"):
        stats.paired_ratio([1.0], [1.0, 2.0])


def test_weighted_geomean() -> None:
    assert stats.weighted_geomean([(2.0, 1), (8.0, 1)]) == pytest.approx(4.0)
    assert stats.weighted_geomean([(2.0, 3), (8.0, 0)]) == pytest.approx(2.0)
    assert math.isnan(stats.weighted_geomean([]))


# ---- manifests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.stem)
def test_manifest_parses(path: Path) -> None:
    rows = manifest.load(path)
    assert rows
    assert {row.suite for row in rows} == {path.stem}


def test_manifests_say_what_this_version_does_not_run() -> None:
    rows = [row for path in MANIFESTS for row in manifest.load(path)]
    refused = Counter(row.suite for row in rows if row.unsupported())
    assert refused == {"fp8": 30, "int8": 5, "w4a16": 15, "grouped": 14}


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("M", "many", "row x: invalid literal"),
        ("major_a", "n", "major_a is 'n'; it takes 'k', 'm'"),
        ("epilogue", "bias+swish", "epilogue is 'bias\\+swish'"),
        ("dtype_c", "bf16", "residual exactly when dtype_c"),
        ("dtype_b", "fp4", "dtype_b is 'fp4'"),
        ("compile", "reduce-overhead", "compile is 'reduce-overhead'"),
        ("epilogue", "swiglu+gelu", "swiglu takes a bias and nothing else"),
    ],
)
def test_manifest_faults_name_row_and_column(tmp_path: Path, column: str, value: str, sentence: str) -> None:
    record = {key: str(v) for key, v in asdict(make_row(name="x")).items()} | {column: value}
    path = tmp_path / "bad.csv"
    path.write_text(",".join(record) + "\n" + ",".join(record.values()) + "\n")
    with pytest.raises(ValueError, match=sentence):
        manifest.load(path)


# ---- the timer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "sets"), [(33_000_000, 6), (180_000_000, 2), (10**10, 2), (1_000, 1024), (0, 1024)])
def test_sets_exceed_the_cache_threefold(size: int, sets: int) -> None:
    assert timer.sets_for(size) == sets
    assert timer.sets_for(33_000_000, l2_bytes=130_000_000) == 12


@pytest.mark.parametrize("kernel_us", [0.5, 2.5, 13.0, 49.0, 60.0, 900.0, 12_000.0])
@pytest.mark.parametrize("sets", [1, 2, 23, 1024])
def test_launches_are_a_multiple_of_the_sets(kernel_us: float, sets: int) -> None:
    launches = timer.launches_for(kernel_us, sets, 1500.0)
    assert launches > 0 and launches % sets == 0
    assert launches >= (20 if kernel_us < 50 else 1)
    assert launches <= timer.MAX_LAUNCHES + sets


def test_every_arm_takes_every_place_and_follows_every_other() -> None:
    orders = [timer.round_order("ABCDE", r) for r in range(10)]
    assert all(sorted(order) == list("ABCDE") for order in orders)
    for place in range(5):
        assert {order[place] for order in orders} == set("ABCDE")
    followers = {(x, y) for order in orders for x, y in pairwise(order)}
    assert {("A", "B"), ("B", "A"), ("E", "D"), ("D", "E")} <= followers
    assert timer.round_order(["only"], 7) == ["only"]


class FakeGpu:
    """A clock that runs only while something is replayed, slower as the card warms up."""

    def __init__(self, cost_us: dict[str, float]) -> None:
        self.cost_us = cost_us
        self.now = 0.0
        self.recorded: list[tuple[str, int]] = []  # (arm, set) of the call in progress
        self.played: list[str] = []
        self.graphs: list[list[tuple[str, int]]] = []
        self.waits = 0

    def arm(self, name: str) -> timer.Arm:
        return lambda i: self.recorded.append((name, i))

    def warm_up(self, run: Callable[[], None]) -> None:
        run()
        self.recorded = []

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        graph, self.recorded = self.recorded, []
        self.graphs.append(graph)

        def replay() -> None:
            self.played.append(graph[0][0])
            heat = 1 + min(0.1, self.now / 1e7)
            self.now += sum(self.cost_us[name] for name, _ in graph) * heat

        return replay

    def mark(self) -> float:
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        self.waits += 1


def test_time_arms_interleaves_equal_graphs_and_pairs_rounds() -> None:
    gpu = FakeGpu({"torch": 13.0, "gemmx": 10.0})
    timings = timer.time_arms({n: gpu.arm(n) for n in ("torch", "gemmx")}, sets=6, backend=gpu)
    assert list(timings) == ["torch", "gemmx"]
    *_, torch_graph, gemmx_graph = gpu.graphs
    assert len(torch_graph) == len(gemmx_graph) == timings["torch"].launches == 120  # 1500 us / 13 us, rounded to sets
    assert [i for _, i in torch_graph[:7]] == [0, 1, 2, 3, 4, 5, 0]
    rounds = len(timings["torch"].samples)
    assert rounds == len(timings["gemmx"].samples) == 100
    played = gpu.played[2:]  # after the probe
    assert played[:8] == ["torch", "gemmx", "torch", "gemmx", "torch", "gemmx", "torch", "gemmx"]
    assert Counter(played)["torch"] == Counter(played)["gemmx"]
    ratio = stats.paired_ratio(timings["torch"].samples, timings["gemmx"].samples)
    assert ratio.median == pytest.approx(1.3, rel=1e-3)
    assert timings["gemmx"].p10_us <= timings["gemmx"].median_us <= timings["gemmx"].p90_us
    assert gpu.waits == 3  # the probe, the first round, all other rounds: the card never idles in between


def test_time_arms_bounds_the_rounds_of_a_long_kernel() -> None:
    gpu = FakeGpu({"a": 12_000.0, "b": 12_000.0})
    timings = timer.time_arms({n: gpu.arm(n) for n in "ab"}, sets=2, backend=gpu)
    assert timings["a"].launches == 2
    assert len(timings["a"].samples) == 10


def test_a_failing_arm_is_reported_and_the_others_are_timed() -> None:
    gpu = FakeGpu({"good": 10.0})

    def bad(i: int) -> None:
        raise RuntimeError("no such kernel")

    timings = timer.time_arms({"bad": bad, "good": gpu.arm("good")}, sets=2, backend=gpu)
    assert timings["bad"].error == "RuntimeError: no such kernel"
    assert not timings["bad"].samples and math.isnan(timings["bad"].median_us)
    assert timings["good"].median_us > 0 and timings["good"].error is None
    assert timer.time_arms({"bad": bad}, sets=2, backend=gpu)["bad"].error


# ---- cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguous_cols", [True, False])
@pytest.mark.parametrize(("ld", "align", "batch"), [(0, 16, 1), (50, 16, 1), (0, 2, 1), (49, 2, 3)])
def test_matrix_has_the_layout_asked_for(contiguous_cols: bool, ld: int, align: int, batch: int) -> None:
    x = matrix(
        24, 40, batch=batch, contiguous_cols=contiguous_cols, ld=ld, dtype=torch.bfloat16, align=align, device="cpu"
    )
    assert x.shape[-2:] == (24, 40) and x.ndim == (3 if batch > 1 else 2)
    pitch = ld or (40 if contiguous_cols else 24)
    assert x.stride()[-2:] == ((pitch, 1) if contiguous_cols else (1, pitch))
    assert x.data_ptr() % 16 == align % 16
    assert x.float().std() > 0.5


def test_matrix_refuses_a_leading_dimension_below_the_row() -> None:
    with pytest.raises(ValueError, match="leading dimension is 39"):
        matrix(24, 40, batch=1, contiguous_cols=True, ld=39, dtype=torch.float32, align=16, device="cpu")


CASES = {
    "plain": {},
    "TN": {"major_a": "m", "major_b": "n"},
    "bias": {"epilogue": "bias"},
    "bias+gelu_tanh": {"epilogue": "bias+gelu_tanh"},
    "swiglu": {"epilogue": "swiglu"},
    "bias+swiglu": {"epilogue": "bias+swiglu"},
    "residual": {"epilogue": "residual", "dtype_c": "bf16", "beta": 1.0},
    "bias+residual": {"epilogue": "bias+residual", "dtype_c": "bf16", "beta": 1.0},
    "alpha": {"alpha": 0.5, "epilogue": "residual", "dtype_c": "bf16", "beta": 2.0},
    "alpha only": {"alpha": 0.5},
    "ldd": {"ldd": 25},
    "unaligned": {"align_bytes": 2, "lda": 41},
    "batched": {"batch": 3, "major_b": "n"},
    "f32": {"dtype_a": "f32", "dtype_b": "f32", "dtype_d": "f32"},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_op_and_torch_compute_the_row(changes: dict[str, Any]) -> None:
    """Both arms against float64: what is timed is the row's equation, in the same layout of D."""
    torch.manual_seed(0)
    case = Case(make_row(**changes), device="cpu", sets=2)
    problem = case.problem()
    assert (problem.m, problem.b_columns, problem.k, problem.batch) == (5, 24, 40, case.row.batch)
    assert problem.n == case.row.d_columns
    ours, theirs = (call(case.inputs[0], case.make_out() if case.needs_out else None)
                    for call in (case.gemmx_call(), case.torch_call()))  # fmt: skip
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    assert error_over_bound(case, ours) <= 1
    torch.testing.assert_close(ours, theirs, rtol=4e-2, atol=4e-2)


def test_a_wrong_result_breaks_its_bound() -> None:
    case = Case(make_row(), device="cpu", sets=1)
    d = case.gemmx_call()(case.inputs[0], None)
    d[-1, -1] += 0.5  # the last row is always sampled
    assert error_over_bound(case, d) > 1
    d[0, 0] = math.nan
    assert error_over_bound(case, d) == math.inf


def test_an_arm_rotates_inputs_and_keeps_outputs() -> None:
    case = Case(make_row(), device="cpu", sets=3)
    seen: list[tuple[int, int | None]] = []

    def call(s: Any, out: torch.Tensor | None) -> torch.Tensor:
        seen.append((s.a.data_ptr(), None if out is None else out.data_ptr()))
        return torch.zeros(1)

    outs = case.make_outs()
    run = case.arm(call, outs)
    for i in (0, 1, 2, 0):
        run(i)
    assert [a for a, _ in seen] == [case.inputs[i].a.data_ptr() for i in (0, 1, 2, 0)]
    assert [d for _, d in seen] == [outs[i].data_ptr() for i in (0, 1, 2, 0)]
    storages = [t.untyped_storage().data_ptr() for s in case.inputs for t in (s.a, s.b)]
    assert len(set(storages)) == 6  # sets share nothing


def test_bytes_of_a_row() -> None:
    case = Case(make_row(epilogue="bias+residual", dtype_c="bf16", beta=1.0), device="cpu", sets=1)
    assert case.read_bytes == 2 * (5 * 40 + 40 * 24 + 5 * 24 + 24)
    assert case.bytes == case.read_bytes + 2 * 5 * 24


def test_spread_takes_both_ends() -> None:
    assert spread(3, 64) == [0, 1, 2]
    sample = spread(16384, 64)
    assert (sample[0], sample[-1], len(set(sample))) == (0, 16383, 64)


# ---- host mode -----------------------------------------------------------------------------------------------


def test_host_batches_alternate_and_wait_outside_the_timed_part() -> None:
    events: list[str] = []
    now = [0.0]
    costs = {"gemmx": 2e-6, "torch": 6e-6}

    def function(name: str) -> host.Function:
        def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            now[0] += costs[name]
            events.append(name)
            return a

        return call

    def synchronize() -> None:
        now[0] += 1.0  # must not be seen
        events.append("wait")

    a = torch.zeros(1)
    samples = host.interleave({n: function(n) for n in costs}, a, [a] * host.WEIGHTS, synchronize=synchronize,
                              batches=3, clock=lambda: now[0])  # fmt: skip
    assert {name: len(values) for name, values in samples.items()} == {"gemmx": 3, "torch": 3}
    assert samples["gemmx"] == pytest.approx([2.0] * 3, rel=1e-6)
    assert samples["torch"] == pytest.approx([6.0] * 3, rel=1e-6)
    assert events[0] == "wait" and events[1 : 1 + host.CALLS] == ["gemmx"] * host.CALLS
