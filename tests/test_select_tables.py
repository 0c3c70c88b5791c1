"""Measured tables: what a row decides and for which problems, and every way that a file can be wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gemmx import _C
from gemmx.select import tables
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import choose, decide

SPECS = {s.name: s for s in _C.kernels()}


def shape_problem(m: int, n: int, k: int, dtype: str = "bf16", **options: Any) -> _C.Problem:
    return check_shape(m, n, k, dtype, **options).problem


def table_text(rows: list[dict[str, Any]], gpu: str = "NVIDIA H200") -> str:
    return json.dumps({"format": 1, "gpu": gpu, "rows": rows})


def slowest_row(m: int = 64, us: float = 9.5) -> tuple[dict[str, Any], str]:
    """A row that prescribes the plan that the model likes least, so that following it shows."""
    problem = shape_problem(m, 4096, 4096)
    worst = decide(problem, profile("h200"), only_built=False).candidates[-1].plan
    return tables.row_dict(problem, worst, us), worst.kernel


def test_a_table_row_overrules_the_model(tmp_path: Path, user_tables: None) -> None:
    row, kernel = slowest_row()
    path = tmp_path / "mine.json"
    path.write_text(table_text([row]))
    problem = shape_problem(64, 4096, 4096)
    assert choose(problem, profile("h200"), only_built=False).kernel != kernel
    assert tables.load_table(path) == 1
    decision = decide(problem, profile("h200"), only_built=False)
    assert decision.chosen.kernel.name == kernel
    assert decision.table_row is not None and decision.table_row.us == 9.5
    assert "mine.json" in decision.reason


@pytest.mark.parametrize(("m", "served"), [(33, True), (64, True), (128, True), (31, False), (129, False)])
def test_a_row_serves_m_within_a_factor_of_two(m: int, served: bool, tmp_path: Path, user_tables: None) -> None:
    row, kernel = slowest_row()
    (tmp_path / "t.json").write_text(table_text([row]))
    tables.load_table(tmp_path / "t.json")
    decision = decide(shape_problem(m, 4096, 4096), profile("h200"), only_built=False)
    assert (decision.table_row is not None) == served
    assert not served or decision.chosen.kernel.name == kernel


def test_the_nearest_of_several_rows_serves(tmp_path: Path, user_tables: None) -> None:
    rows = [slowest_row(m, us=float(m))[0] for m in (64, 96, 128)]
    (tmp_path / "t.json").write_text(table_text(rows))
    tables.load_table(tmp_path / "t.json")
    for m, nearest in ((64, 64), (70, 64), (90, 96), (125, 128)):
        row = decide(shape_problem(m, 4096, 4096), profile("h200"), only_built=False).table_row
        assert row is not None and row.m == nearest


def test_the_first_plan_of_a_problem_that_can_run_serves(tmp_path: Path, user_tables: None) -> None:
    problem = shape_problem(64, 4096, 4096)
    plans = [c.plan for c in decide(problem, profile("h200"), only_built=False).candidates]
    library = next(p for p in plans if SPECS[p.kernel].family == "cublaslt")
    own = [p for p in plans if SPECS[p.kernel].family != "cublaslt"][-2:]
    (tmp_path / "t.json").write_text(table_text([tables.row_dict(problem, p, 9.0) for p in (library, *own)]))
    assert tables.load_table(tmp_path / "t.json") == 3
    assert choose(problem, profile("h200"), only_built=False) == library
    assert choose(problem, profile("h200"), only_built=False, exclude_families=("cublaslt",)) == own[0]
    # A later table replaces all rows of the problem.
    (tmp_path / "t.json").write_text(table_text([tables.row_dict(problem, own[1], 9.0)]))
    tables.load_table(tmp_path / "t.json")
    assert choose(problem, profile("h200"), only_built=False) == own[1]


@pytest.mark.parametrize(
    "problem",
    [
        shape_problem(64, 4096, 4104),
        shape_problem(64, 4096, 4096, "f16"),
        shape_problem(64, 4096, 4096, out_dtype="f32"),
        shape_problem(64, 4096, 4096, major_b="n"),
        shape_problem(64, 4096, 4096, align_bytes=4),
        shape_problem(64, 4096, 4096, batch=2),
        shape_problem(64, 4096, 4096, schedule="data_parallel"),
        shape_problem(64, 4096, 4096, splits=1),
    ],
    ids=str,
)
def test_a_row_does_not_serve_another_problem(problem: _C.Problem, tmp_path: Path, user_tables: None) -> None:
    (tmp_path / "t.json").write_text(table_text([slowest_row()[0]]))
    tables.load_table(tmp_path / "t.json")
    assert decide(problem, profile("h200"), only_built=False).table_row is None


@pytest.mark.parametrize("options", [{"bias": "bf16"}, {"activation": "silu"}, {"c": "bf16"}], ids=str)
def test_the_plain_product_serves_an_epilogue_that_no_row_has(
    options: dict[str, Any], tmp_path: Path, user_tables: None
) -> None:
    problem = shape_problem(64, 4096, 4096)
    plans = [c.plan for c in decide(problem, profile("h200"), only_built=False).candidates]
    library = next(p for p in plans if SPECS[p.kernel].family == "cublaslt")
    own = [p for p in plans if SPECS[p.kernel].family == "sm80"][-1]
    (tmp_path / "t.json").write_text(table_text([tables.row_dict(problem, p, 9.0) for p in (library, own)]))
    tables.load_table(tmp_path / "t.json")
    decision = decide(shape_problem(64, 4096, 4096, **options), profile("h200"), only_built=False)
    assert decision.chosen.plan == own
    assert "M=64, epilogue none measured at" in decision.reason
    # A row of the epilogue itself goes first.
    with_epilogue = shape_problem(64, 4096, 4096, **options)
    other = decide(with_epilogue, profile("h200"), only_built=False).candidates[-1].plan
    (tmp_path / "t.json").write_text(table_text([tables.row_dict(with_epilogue, other, 9.0)]))
    tables.load_table(tmp_path / "t.json")
    assert choose(with_epilogue, profile("h200"), only_built=False) == other


def test_a_table_of_another_gpu_is_never_used(tmp_path: Path, user_tables: None) -> None:
    row, _ = slowest_row()
    (tmp_path / "t.json").write_text(table_text([row], gpu="NVIDIA H100 80GB HBM3"))
    tables.load_table(tmp_path / "t.json")
    problem = shape_problem(64, 4096, 4096)
    assert decide(problem, profile("h200"), only_built=False).table_row is None
    assert decide(problem, profile("h100"), only_built=False).table_row is not None


def test_a_row_whose_kernel_can_not_run_falls_back_to_the_model(tmp_path: Path, user_tables: None) -> None:
    row, _ = slowest_row()
    row["plan"]["kernel"] = next(n for n, s in SPECS.items() if s.min_capability == 100)
    (tmp_path / "t.json").write_text(table_text([row]))
    tables.load_table(tmp_path / "t.json")
    assert decide(shape_problem(64, 4096, 4096), profile("h200"), only_built=False).table_row is None


def test_a_row_of_a_removed_kernel_is_ignored_with_one_warning(tmp_path: Path, user_tables: None) -> None:
    row, _ = slowest_row()
    row["plan"]["kernel"] = "sm90_gemm_of_last_year"
    (tmp_path / "t.json").write_text(table_text([row, row]))
    with pytest.warns(UserWarning, match="sm90_gemm_of_last_year") as warned:
        assert tables.load_table(tmp_path / "t.json") == 0
    assert len(warned) == 1


def bad_row(**changes: Any) -> str:
    row, _ = slowest_row()
    plan = changes.pop("plan_changes", {})
    return table_text([{**row, **changes, "plan": {**row["plan"], **plan}}])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"format": 1, "gpu"', "is no JSON"),
        ("[]", r"is \[\], it must be an object"),
        ('{"format": 2, "gpu": "x", "rows": []}', "has format 2, this version reads 1"),
        ('{"format": 1, "rows": []}', "has gpu = None, it must be of type str"),
        ('{"format": 1, "gpu": "x"}', "has no list of rows"),
        ('{"format": 1, "gpu": "x", "rows": [7]}', "row 0, is 7, it must be an object"),
        (bad_row(m="64"), "row 0, has m = '64', it must be of type int"),
        (bad_row(m=0), "has m = 0 and us = 9.5, both must be positive"),
        (bad_row(us=-1.0), "has m = 64 and us = -1.0, both must be positive"),
        (bad_row(plan=None, plan_changes={"algo_version": 130100, "algo": [0] * 8}), "stores an algorithm of cuBLASLt"),
        (bad_row(plan=None, plan_changes={"splits": "2"}), "plan has splits = '2', it must be of type int"),
        (bad_row(plan_changes={"schedule": "sideways"}), "has a plan that can't be read"),
    ],
)
def test_a_malformed_table_is_one_sentence_and_changes_nothing(
    text: str, match: str, tmp_path: Path, user_tables: None
) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ValueError, match=match) as error:
        tables.load_table(tmp_path / "t.json")
    assert str(error.value).startswith("table ") and "\n" not in str(error.value)
    assert decide(shape_problem(64, 4096, 4096), profile("h200"), only_built=False).table_row is None


def test_a_binary_or_missing_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        tables.load_table(tmp_path / "t.json")
    with pytest.raises(OSError, match="nowhere"):
        tables.load_table(tmp_path / "nowhere.json")


def test_a_table_may_be_loaded_while_others_select(user_tables: None) -> None:
    """Selections in two threads while a third adds rows of the same N and K."""
    loaded, problem = tables.tables(), shape_problem(64, 4096, 4096)
    plan = decide(problem, profile("h200"), only_built=False).chosen.plan
    key = tables.table_key(problem)
    ended, errors = threading.Event(), []

    def select() -> None:
        try:
            while not ended.is_set():
                loaded.find(problem, profile("h200"))
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=select) for _ in range(2)]
    for thread in threads:
        thread.start()
    for m in range(1, 3000):
        loaded.add("NVIDIA H200", [(key, tables.TableRow(m, 1.0, plan, "t.json"))])
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert tables.tables() is loaded


def test_shipped_tables_parse() -> None:
    for path in tables.SHIPPED.glob("*.json"):
        gpu, rows = tables.parse_table(path.read_text(), path.name)
        assert gpu and rows
