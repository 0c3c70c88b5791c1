"""What batch_invariant costs: measuring a row without a GPU, the schema of invariant.json, the tables made from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_rows import make_row, script
from gemmx.bench import invariant, results, suite, timer
from gemmx.bench.cases import Case
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import decide
from test_bench_results import EagerGpu, document

DEFAULT, IN_CLASS = "cublaslt_gemm", "sm90_gemm"


def measured(name: str = "x", over: float = 1.1, **changes: Any) -> dict[str, Any]:
    row = suite.outcome(replace(make_row(), name=name), "measured")
    for arm, us in {"default": 10.0, "invariant": 10 * over, "torch": 12.0}.items():
        row |= {f"{arm}_us": us, f"{arm}_us_p10": us - 1, f"{arm}_us_p90": us + 1}
    row |= {"invariant_over_default": over, "torch_over_invariant": 1.2 / over}
    row |= {"kernel": IN_CLASS, "plan": IN_CLASS, "default_kernel": DEFAULT, "default_plan": DEFAULT}
    return row | {"same_plan": False, "error": 0.5} | changes


def invariant_document(rows: list[dict[str, Any]]) -> results.Document:
    return document(rows, "invariant")


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CPU tensors, and a selector that takes one of two kernels as it is asked for invariance or not."""
    state = SimpleNamespace(default=DEFAULT)

    def problem(case: Case, **request: Any) -> str:
        return str(request.get("numerics", "deterministic"))

    def gemmx_call(case: Case, **request: Any) -> Callable[..., torch.Tensor]:
        def call(s: Any, out: torch.Tensor | None) -> torch.Tensor:
            state.launched = IN_CLASS if request else state.default
            return case.torch_call()(s, out)

        return call

    fake = SimpleNamespace(
        select=lambda p, device: SimpleNamespace(kernel=IN_CLASS if p == "batch_invariant" else state.default),
        launch_counts=lambda: {state.launched: 1},
        reset_launch_counts=lambda: None,
    )
    gpu = EagerGpu()
    monkeypatch.setattr(Case, "problem", problem)
    monkeypatch.setattr(Case, "gemmx_call", gemmx_call)
    monkeypatch.setattr(invariant, "_C", fake)
    monkeypatch.setattr(suite, "_C", fake)
    monkeypatch.setattr(invariant, "Case", lambda row, l2_bytes=0: Case(row, device="cpu", sets=2))
    monkeypatch.setattr(
        invariant, "time_arms", lambda arms, **k: timer.time_arms(arms, **k, backend=gpu, max_rounds=12)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return state


def test_a_row_has_three_arms_and_two_plans(pretend: SimpleNamespace) -> None:
    row = invariant.measure_invariant_row(make_row(), SimpleNamespace(l2_bytes=1))
    assert results.validate(invariant_document([row])) == []
    assert (row["kernel"], row["default_kernel"], row["same_plan"]) == (IN_CLASS, DEFAULT, False)
    assert row["invariant_over_default"] == row["torch_over_invariant"] == 1.0
    assert row["error"] <= 1 and row["default_error"] <= 1


def test_one_plan_is_one_arm(pretend: SimpleNamespace) -> None:
    pretend.default = IN_CLASS
    row = invariant.measure_invariant_row(make_row(), SimpleNamespace(l2_bytes=1))
    assert results.validate(invariant_document([row])) == []
    assert row["same_plan"] and row["default_us"] == row["invariant_us"] and "default_error" not in row


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"default_us": None}, "default_us"),
        ({"torch_us_p10": 13.0}, "not between"),
        ({"default_plan": ""}, "default_plan is missing"),
        ({"invariant_over_default": math.nan}, "invariant_over_default is not"),
        ({"same_plan": True}, "same_plan is True"),
        ({"error": 1.5}, "error is 1.5"),
        ({"status": "failed"}, "needs a reason"),
        ({"status": "fine"}, "status is 'fine'"),
    ],
)
def test_the_schema_finds_what_is_wrong(changes: dict[str, Any], fault: str) -> None:
    assert results.validate(invariant_document([measured()])) == []
    assert any(fault in text for text in results.validate(invariant_document([measured(**changes)])))


def test_costs_are_weighted_and_name_the_worst_rows() -> None:
    rows = [
        measured("cheap", 1.0, same_plan=True, suite="dense"),
        measured("dear", 1.21, suite="dense"),
        measured("one", 1.3, suite="decode"),
        suite.outcome(replace(make_row(), suite="decode"), "failed", "r"),
    ]
    dense, decode = invariant.costs(invariant_document(rows))
    assert (dense.suite, dense.rows, dense.same_plan, dense.failed) == ("dense", 2, 1, 0)
    assert dense.over_default == pytest.approx(1.1)
    assert (dense.worst, dense.worst_row, dense.slowest_row) == (1.21, "dear", "dear")
    assert (decode.rows, decode.failed) == (1, 1)


PAGE = """<!-- begin:results nvidia-h200 -->
<!-- end:results -->
<!-- begin:invariant nvidia-h200 -->
old
<!-- end:invariant -->
<!-- begin:invariant nvidia-b200 -->
<!-- end:invariant -->
"""


def test_the_report_shows_the_suites_and_the_rows_that_cost(tmp_path: Path) -> None:
    report = script("report")
    rows = [measured("cheap", 1.04), measured("dear", 1.5)]
    path = tmp_path / "benchmarks" / "results" / "nvidia-h200" / "invariant.json"
    results.write(path, invariant_document(rows))
    (tmp_path / "README.md").write_text(PAGE)
    found = report.load_results(tmp_path / "benchmarks" / "results")
    text = report.render(tmp_path / "README.md", found, tmp_path)
    assert text.count("| decode | 2 | 0 | 1.25 (1.50) | 0.96 (0.80) |") == 2  # in both blocks
    assert "Rows that take over 1.05 of the default's time: 1." in text
    assert "| decode/dear | 5x24x40 | 10.00 | 15.00 | 12.00 | 1.50 | `cublaslt_gemm` |" in text
    assert "old" not in text and "begin:invariant nvidia-b200 -->\n\nNot measured." in text
    assert report.plot_points(found["nvidia-h200"]) == {}
    (tmp_path / "README.md").write_text(text)
    assert report.stale(tmp_path, found) == []


def test_the_mode_writes_a_file_only_of_all_its_suites(
    pretend: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = script("run")
    device = SimpleNamespace(l2_bytes=1)
    asked: list[str] = []
    monkeypatch.setattr(run, "suites", lambda names: asked.append(names) or {"decode": [make_row(name="one")]})
    monkeypatch.setattr(run._C, "source_hash", lambda: "0123456789abcdef")
    monkeypatch.setattr(run.results, "make_header", lambda suite, *rest: document([], suite)["header"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    options = SimpleNamespace(suite=None, rows="", limit=0, out=None)
    assert run.run_invariant(device, tmp_path, options) == 0
    assert asked == ["dense,mid,decode"]
    written = results.read(tmp_path / "nvidia-h200" / "invariant.json")
    assert results.validate(written) == [] and written["header"]["suite"] == "invariant"
    assert "decode: 1 measured, 0 failed, 0 run the default's plan; geomean invariant/default 1.000" in (
        capsys.readouterr().out
    )
    options.rows = "nothing has this name"
    assert run.run_invariant(device, tmp_path / "part", options) == 0
    assert not (tmp_path / "part").exists()


def test_its_method_says_how_long_it_warms_up() -> None:
    assert ">= 30 ms of warm-up" in invariant.INVARIANT_METHOD and invariant.TIMES["warmup_us"] == 30_000


def test_tuned_rows_of_batch_invariant_stand_beside_those_of_the_default() -> None:
    tune = script("tune")
    rows = []
    for numerics in (None, "batch_invariant"):
        problem = check_shape(16, 4096, 4096, numerics=numerics).problem
        plan = decide(problem, profile("h200"), only_built=False).candidates[0].plan
        rows.append(tune.row_dict(problem, plan, 9.0))
    assert tune.identity(rows[0]) != tune.identity(rows[1])
    assert tune.identity(rows[0])[:-1] == tune.identity(rows[1])[:-1]
