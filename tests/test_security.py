"""Files and callers that mean harm: tables, manifests and plans are data, and sizes near 2^63 are counted right."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemmx
from gemmx import _C
from gemmx.bench import manifest
from gemmx.select import tables
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import WORKSPACE_LIMIT, decide

ROOT = Path(__file__).parents[1]
REPEATABLE = settings(
    max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
H200 = profile("h200")
SPECS = {spec.name: spec for spec in _C.kernels()}


# ---- nothing that is read is executed -------------------------------------------------------------------------------

EXECUTES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "eval", "exec", "compile", "system", "popen"}


def names_of(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported and functions that are called, by their last name; re.compile and its like aside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "compile":
            yield node.func.attr
            if node.func.attr == "load" and isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                yield "pickle"
            if any(keyword.arg == "shell" for keyword in node.keywords):
                yield "system"


@pytest.mark.parametrize("folder", ["python/gemmx", "benchmarks"])
def test_no_module_can_execute_what_it_reads(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        found = EXECUTES & set(names_of(ast.parse(path.read_text())))
        assert not found, f"{path}: {found}"


# ---- plans ----------------------------------------------------------------------------------------------------------

PROBLEM = check_shape(64, 4096, 4096).problem


def kernel_with(schedule: str) -> str:
    return next(s.name for s in SPECS.values() if schedule in s.schedules and not _C.supports(s.name, PROBLEM, H200))


def plan(schedule: str = "split_k", splits: int = 2, kernel: str = "", swizzle: int = 1) -> _C.Plan:
    return _C.Plan(
        kernel or kernel_with(schedule if schedule != "auto" else "split_k"), schedule, splits, "along_m", swizzle
    )


OTHER = next(s.name for s in SPECS.values() if s.dtype_a == "f32")
BAD_PLANS: dict[str, tuple[Callable[[], _C.Plan], str]] = {
    "no kernel": (lambda: _C.Plan(""), "names no kernel"),
    "a request": (lambda: plan("auto", 1), "has schedule auto"),
    "no splits": (lambda: plan(splits=0), "has 0 splits, the least is 1"),
    "negative splits": (lambda: plan(splits=-(2**31)), "has -2147483648 splits"),
    "splits of another schedule": (lambda: plan("data_parallel", 4), "has 4 splits without schedule split_k"),
    "more splits than cuts": (lambda: plan(splits=17), "can be cut into at most 16"),
    "splits without end": (lambda: plan(splits=2**31 - 1), "can be cut into at most 16"),
    "no swizzle": (lambda: plan(swizzle=0), "has swizzle 0, the least is 1"),
    "another dtype's kernel": (lambda: plan("data_parallel", 1, OTHER), "takes A f32 and B f32"),
    "a schedule that the kernel lacks": (
        lambda: plan("stream_k", 1, kernel_with("split_k")),
        "has no stream_k schedule",
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_no_kernel_could_run_is_refused(name: str) -> None:
    make, reason = BAD_PLANS[name]
    assert reason in _C.check_plan(make(), PROBLEM, H200)
    assert _C.check_plan(plan(), PROBLEM, H200) == ""
    assert _C.check_plan(plan(swizzle=2**31 - 1), PROBLEM, H200) == ""  # no wider than the tiles are


def test_a_plan_other_than_the_one_asked_for_is_refused() -> None:
    for options, reason in (
        ({"kernel": kernel_with("data_parallel")}, "another kernel"),
        ({"schedule": "data_parallel"}, "another schedule"),
        ({"splits": 3}, "other splits"),
    ):
        asked = check_shape(64, 4096, 4096, **options).problem
        wrong = next(s for s in SPECS.values() if "split_k" in s.schedules and s.name != options.get("kernel"))
        assert reason in _C.check_plan(plan(kernel=wrong.name), asked, H200)


def test_a_plan_for_an_empty_problem_is_refused() -> None:
    for field in ("m", "n", "batch"):
        problem = PROBLEM.copy()
        setattr(problem, field, 0)
        for spec in SPECS.values():
            assert _C.supports(spec.name, problem, H200) == "computes no D that is empty"


# ---- tables ---------------------------------------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    plan_changes = changes.pop("plan", {})
    base = tables.row_dict(PROBLEM, plan(), 9.0)
    return {**base, **changes, "plan": {**base["plan"], **plan_changes}}


def table_text(*rows: Any) -> str:
    return json.dumps({"format": 1, "gpu": H200.name, "rows": list(rows)})


BAD_TABLES = {
    "nested without end": "[" * 100_000,
    "a number of 5,000 digits": '{"format": 1, "gpu": "x", "rows": [' + "9" * 5000 + "]}",
    "beyond 64 bits": table_text(row(n=2**64)),
    "a time beyond float": table_text(row(us=10**400)),
    "no time": table_text(row(us=math.nan)),
    "no splits": table_text(row(plan={"splits": 0})),
    "splits of another schedule": table_text(row(plan={"schedule": "data_parallel", "splits": 4})),
    "splits beyond 32 bits": table_text(row(plan={"splits": 2**40})),
    "negative swizzle": table_text(row(plan={"swizzle": -1})),
    "a request": table_text(row(plan={"schedule": "auto", "splits": 1})),
    "an algorithm": table_text(row(plan={"algo": [2**63] * 8, "algo_version": 130_100})),
    "half an algorithm": table_text(row(plan={"algo_version": 0})),
    "code for a kernel": table_text(row(plan={"kernel": ["__import__('os').system('true')"]})),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_harmful_table_is_one_sentence_and_changes_nothing(name: str, tmp_path: Path, user_tables: None) -> None:
    path = tmp_path / "t.json"
    path.write_text(BAD_TABLES[name])
    before = decide(PROBLEM, H200, only_built=False).chosen.plan
    with pytest.raises(ValueError, match=r"^table ") as error:
        gemmx.load_table(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    assert decide(PROBLEM, H200, only_built=False).chosen.plan == before


def test_a_file_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="has more than 1 MiB"):
        gemmx.load_table("/dev/zero")


def test_control_characters_of_a_file_stay_out_of_the_terminal(tmp_path: Path, user_tables: None) -> None:
    (tmp_path / "t.json").write_text(table_text(row(plan={"kernel": "\x1b[31m\nred"})))
    with pytest.warns(UserWarning, match="does not have") as warned:
        gemmx.load_table(tmp_path / "t.json")
    assert "\x1b" not in str(warned[0].message)
    assert "\n" not in str(warned[0].message)


ODD = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([0, 1, 2, 16, 17, 64, 2**31 - 1, 2**31]), st.floats(),
    st.text(max_size=8), st.booleans(), st.none(),
)  # fmt: skip
COLUMNS = (*tables._COLUMNS, *(f"plan.{name}" for name in (*tables._PLAN_COLUMNS, "algo", "algo_version")))


@REPEATABLE
@given(
    changes=st.dictionaries(st.sampled_from(COLUMNS), ODD, max_size=3),
    kernel=st.sampled_from(sorted(SPECS)),
    schedule=st.sampled_from(["data_parallel", "split_k", "stream_k", "auto"]),
    splits=st.sampled_from([-1, 0, 1, 2, 16, 17, 1 << 20, 2**31 - 1]),
)
def test_no_table_can_make_an_illegal_plan(changes: dict[str, Any], kernel: str, schedule: str, splits: int) -> None:
    """Whatever a row says: it is refused, passed over, or its plan passes the check, within the workspace."""
    poisoned = row(plan={"kernel": kernel, "schedule": schedule, "splits": splits})
    for name, value in changes.items():
        at = poisoned["plan"] if name.startswith("plan.") else poisoned
        if isinstance(at, dict):
            at[name.removeprefix("plan.")] = value
    tables.reset_tables()
    try:
        _, rows = tables.parse_table(table_text(poisoned), "t.json")
        tables.tables().add(H200.name, rows)
        for problem in (PROBLEM, check_shape(64, 4096, 4096, bias="bf16").problem):
            chosen = decide(problem, H200, only_built=False).chosen.plan
            assert _C.check_plan(chosen, problem, H200) == ""
            assert 0 <= _C.workspace_size(chosen.kernel, problem, chosen, H200) <= WORKSPACE_LIMIT
    except ValueError as error:
        assert str(error).startswith("table t.json")
    finally:
        tables.reset_tables()


# ---- manifests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (",1,", ",-1,"),
        (",1,", f",{2**70},"),
        (",bf16,", ",object,"),
        (",", "\x00"),
        ("suite,", "suit,"),
        (",k,", ",'''\n,"),
    ],
)
def test_a_broken_manifest_is_one_error(old: str, new: str, tmp_path: Path) -> None:
    source = next((ROOT / "benchmarks" / "manifests").glob("dense.csv")).read_text()
    path = tmp_path / "m.csv"
    path.write_text(source.replace(old, new))
    assert path.read_text() != source
    with pytest.raises(ValueError, match=r"m\.csv"):
        manifest.load(path)


# ---- sizes near 2^63 ------------------------------------------------------------------------------------------------

EDGES = [0, 1, 2, 2**20, 2**21, 2**31 - 1, 2**31, 2**32, 2**42, 2**60, 2**61, 2**62, 2**63 - 1]
SIZE = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1), st.integers(1, 300))


@REPEATABLE
@given(
    batch=st.one_of(st.none(), SIZE),
    sizes=st.tuples(SIZE, SIZE, SIZE),
    broadcast=st.booleans(),
    splits=st.sampled_from([0, 0, 2, 2**31 - 1]),
)
def test_sizes_up_to_2_63_are_counted_or_refused(
    batch: int | None, sizes: tuple[int, int, int], broadcast: bool, splits: int
) -> None:
    """No product of sizes wraps: a call passes the checks with operands of less than 2^63 bytes, or is a ValueError.

    What passes gets a plan whose cuts and workspace are countable, or a RuntimeError.
    """
    m, n, k = sizes
    lead = () if batch is None else (batch,)

    def desc(rows: int, cols: int) -> _C.TensorDesc:
        packed = [min(rows * cols, 2**62), min(cols, 2**62), 1]
        strides = [0, 0, 0] if broadcast else packed
        return _C.TensorDesc("bf16", "cuda", 0, (*lead, rows, cols), strides[-len(lead) - 2 :], 0)

    try:
        checked = _C.check_gemm(desc(m, k), desc(k, n), splits=splits)
    except ValueError as error:
        assert "2^63" in str(error)
        return
    problem = checked.problem
    assert max(1, problem.batch) * max(1, problem.m) * max(1, problem.n) * 8 < 2**63
    assert max(1, problem.batch) * max(1, problem.m) * max(1, problem.k) * 8 < 2**63
    if checked.empty:
        return
    for model in ("h200", "b200"):
        device = profile(model)
        try:
            found = decide(problem, device, only_built=False)
        except RuntimeError as error:
            assert "can run" in str(error)
            continue
        for candidate in found.candidates:
            assert _C.check_plan(candidate.plan, problem, device) == "", (candidate.plan, str(problem))
            assert _C.workspace_size(candidate.plan.kernel, problem, candidate.plan, device) >= 0


def test_cuts_beyond_63_bits_are_refused() -> None:
    """2^31 - 1 splits of a K of 2^41 elements that are all one: the products of the cuts do not fit."""
    one = [_C.TensorDesc("bf16", "cuda", 0, sizes, (0, 0), 0) for sizes in ((1, 2**41), (2**41, 1))]
    problem = _C.check_gemm(*one, splits=2**31 - 1).problem
    reasons = {_C.check_plan(_C.Plan(name, "split_k", 2**31 - 1), problem, H200) for name in SPECS}
    assert "cuts K into more than 63 bits can count" in reasons
    assert "" not in reasons


def test_out_of_memory_is_the_error_of_torch() -> None:
    """A CUDA build on a machine without a driver has no usable context, and says that instead."""
    if _C.build_archs() and not torch.cuda.is_available():
        expected: tuple[type[Exception], str] = (
            RuntimeError,
            r"^an allocation failed because the CUDA context is unusable",
        )
    else:
        expected = (
            torch.OutOfMemoryError,
            r"^CUDA out of memory: gemmx asked torch for 3.00 MiB for D on cuda:1",
        )
    with pytest.raises(expected[0], match=expected[1]) as raised:
        _C.testing.throw_allocation_failed("D", 3 << 20, 1)
    assert type(raised.value) is expected[0]
