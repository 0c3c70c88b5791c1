"""Suite epilogue without a GPU: what its arms compute, its goals, its rows and their table."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench_rows import ROOT, EagerGpu, make_row, script
from gemmx.bench import accuracy, epilogue, manifest, results, suite, timer
from gemmx.bench.cases import Call, Case, Inputs

ROWS = manifest.load(ROOT / "benchmarks" / "manifests" / "epilogue.csv")
TUNED = {
    "bias+gelu-2048x28672x4096", "bias+silu-2048x28672x4096", "bias+gelu_tanh-2048x6144x4096",
    "residual-2048x28672x4096", "swiglu-512x28672x4096", "swiglu-2048x28672x4096",
}  # fmt: skip


def small(terms: str, **changes: Any) -> manifest.Row:
    c = {"dtype_c": "bf16", "beta": 1.0} if "residual" in terms else {}
    return replace(make_row(), suite="epilogue", epilogue=terms, **c, **changes)


def with_eager_compiler(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """torch.compile without code generation; returns the options that it was called with."""
    compiled, real = [], torch.compile

    def compile_(function: Any, **options: Any) -> Any:
        compiled.append(options)
        return real(function, backend="eager", **{k: v for k, v in options.items() if k != "mode"})

    monkeypatch.setattr(torch, "compile", compile_)
    return compiled


# ---- manifest ------------------------------------------------------------------------------------------------------


def test_six_rows_are_compiled_with_max_autotune() -> None:
    assert {row.name for row in ROWS if row.compile == "max-autotune"} == TUNED
    assert {row.compile for row in ROWS} == {"", "max-autotune"}


def test_every_row_runs_and_swiglu_halves_its_columns() -> None:
    assert not any(row.unsupported() for row in ROWS)
    gated = [row for row in ROWS if row.gated]
    assert len(gated) == 5 and all(2 * row.d_columns == row.N for row in gated)
    assert all(row.d_columns == row.N for row in ROWS if not row.gated)
    row = next(row for row in gated if row.name == "swiglu-512x28672x4096")
    assert (row.N, row.d_columns, row.flops) == (28672, 14336, 2 * 512 * 28672 * 4096)


@pytest.mark.parametrize("changes", [{"N": 25}, {"batch": 2}])
def test_a_swiglu_row_needs_two_halves_and_one_batch(tmp_path: Path, changes: dict[str, Any]) -> None:
    record = {key: str(v) for key, v in asdict(small("swiglu", **changes)).items()}
    path = tmp_path / "bad.csv"
    path.write_text(",".join(record) + "\n" + ",".join(record.values()) + "\n")
    with pytest.raises(ValueError, match="one batch and an even N"):
        manifest.load(path)


# ---- arms ----------------------------------------------------------------------------------------------------------


def expected(terms: str, s: Inputs) -> Tensor:
    z = functional.linear(s.a, s.b.t().contiguous(), s.bias)
    if terms == "swiglu":
        return functional.silu(z[:, :12]) * z[:, 12:]
    if s.c is not None:
        return z + s.c
    act: Any = {"relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
           "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh")}  # fmt: skip
    return act[terms.split("+")[1]](z) if "+" in terms else z


@pytest.mark.parametrize("terms", sorted({row.epilogue for row in ROWS}))
def test_the_torch_arms_are_the_users_formula(terms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    compiled = with_eager_compiler(monkeypatch)
    case = Case(small(terms), device="cpu", sets=2)
    s = case.inputs[0]
    before = [None if x is None else x.clone() for x in (s.a, s.b, s.c, s.bias)]
    calls = epilogue.torch_calls(case.row)
    assert list(calls) == ["eager", "compile"] and compiled == [{"mode": None, "dynamic": False, "fullgraph": True}]
    for call in calls.values():
        d = call(s, None)
        assert torch.equal(d, expected(terms, s)) and d.shape == (5, case.row.d_columns)
        assert accuracy.error_over_bound(case, d) < 50  # the row's equation; torch may round Z first
    assert all(x is None or torch.equal(x, y) for x, y in zip((s.a, s.b, s.c, s.bias), before, strict=True))


def test_max_autotune_leaves_the_graphs_to_the_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = with_eager_compiler(monkeypatch)
    epilogue.torch_calls(small("swiglu", compile="max-autotune"))
    assert compiled[0]["mode"] == "max-autotune-no-cudagraphs"


@pytest.mark.parametrize("terms", sorted({row.epilogue for row in ROWS}))
def test_addmm_activation_where_torch_fuses(terms: str) -> None:
    case = Case(small(terms), device="cpu", sets=1)
    call = epilogue.addmm_activation_call(case.row)
    assert (call is not None) == (terms in ("bias+relu", "bias+gelu", "bias+gelu_tanh"))
    if call is not None:
        torch.testing.assert_close(call(case.inputs[0], None), expected(terms, case.inputs[0]), rtol=2e-2, atol=2e-2)


def test_a_row_that_the_formulas_do_not_cover_is_refused() -> None:
    with pytest.raises(ValueError, match="takes alpha 1"):
        epilogue.eager_function(small("bias", alpha=0.5))


def test_the_gated_op_computes_the_row_within_its_bound() -> None:
    torch.manual_seed(0)
    case = Case(small("swiglu"), device="cpu", sets=1)
    problem = case.problem()
    assert (problem.m, problem.n, problem.k, problem.gated) == (5, 12, 40, True)
    d = case.gemmx_call()(case.inputs[0], None)
    assert d.shape == case.make_out().shape == (5, 12) and case.bytes == case.read_bytes + 2 * 5 * 12
    assert 0 < accuracy.error_over_bound(case, d) <= 1
    wrong = d.clone()
    wrong[-1, -1] += 0.25
    assert accuracy.error_over_bound(case, wrong) > 1
    swapped = functional.silu(case.inputs[0].a @ case.inputs[0].b[:, 12:]) * (
        case.inputs[0].a @ case.inputs[0].b[:, :12]
    )
    assert accuracy.error_over_bound(case, swapped) > 1  # gate is the first half


# ---- goals ---------------------------------------------------------------------------------------------------------


def test_goals_of_the_manifest() -> None:
    found = {row.name: {g.over: g.least for g in epilogue.goals(asdict(row))} for row in ROWS}
    assert found["bias+gelu-2048x28672x4096"] == {"torch": 1.066, "addmm_activation": 1.0}
    assert found["residual-4096x8192x2048"] == {"torch": 1.133}
    assert found["swiglu-512x28672x4096"] == {"torch": 1.05, "eager": 1.32}
    assert found["bias+gelu_tanh-2048x6144x4096"] == {"eager": 1.17}
    assert found["residual-2048x6144x4096"] == {"torch": 1.066, "eager": 1.13}
    assert found["bias-2048x28672x4096"] == {}
    assert all(goals["torch"] == 1.02 for name, goals in found.items() if "-16x" in name)
    assert set(epilogue.EAGER_GOALS) <= set(found)


# ---- rows ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Lets a row of the suite be measured on CPU tensors; `us` is what an arm takes, in the order of the arms."""
    state = SimpleNamespace(device=SimpleNamespace(l2_bytes=1, sm_count=132), failing="", us={}, form_supported=True)
    plan = SimpleNamespace(kernel="sm90_gemm", schedule="data_parallel", splits=1)
    fake = SimpleNamespace(
        select=lambda problem, device: plan,
        form_supported=lambda problem, device: state.form_supported,
        plain_problem=lambda problem: SimpleNamespace(gated=False),
        kernels=lambda: [SimpleNamespace(name="sm90_gemm", family="sm90")],
        launch_counts=lambda: {"sm90_gemm": 1},
        reset_launch_counts=lambda: None,
    )
    real: Any = epilogue.torch_calls

    def torch_calls(row: manifest.Row) -> dict[str, Call]:
        calls: dict[str, Call] = real(row)
        if state.failing:

            def fail(s: Inputs, out: Tensor | None) -> Tensor:
                if state.broken:
                    raise RuntimeError("no such kernel")
                return calls["eager"](s, out)

            return calls | {state.failing: fail}
        return calls

    def time_arms(arms: dict[str, Any], **options: Any) -> dict[str, timer.Timing]:
        state.broken = True  # from here on, after the first call
        found = timer.time_arms(arms, **{**options, "backend": EagerGpu(), "max_rounds": 12})
        return {
            name: timer.Timing.from_samples([state.us.get(name, 10.0)] * 12, 20) if t.error is None else t
            for name, t in found.items()
        }

    state.broken = False
    with_eager_compiler(monkeypatch)
    monkeypatch.setattr(epilogue, "torch_calls", torch_calls)
    monkeypatch.setattr(suite, "_C", fake)
    monkeypatch.setattr(suite, "Case", lambda row, l2_bytes: Case(row, device="cpu", sets=2))
    monkeypatch.setattr(suite, "choose", lambda problem, device, exclude_families: plan)
    monkeypatch.setattr(suite, "request_for", lambda plan: {})
    monkeypatch.setattr(suite, "time_arms", time_arms)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return state


def document(rows: list[dict[str, Any]]) -> results.Document:
    header: dict[str, Any] = dict.fromkeys(results.HEADER_KEYS, "x")
    header |= {"suite": "epilogue", "gpu": "NVIDIA H200", "source_hash": "0123456789abcdef", "date": "2026-01-02"}
    return {"header": header, "rows": rows}


def test_torchs_time_is_the_better_of_eager_and_compile(pretend_gpu: SimpleNamespace) -> None:
    pretend_gpu.us = {"eager": 14.0, "compile": 12.0, "gemmx": 10.0, "addmm_activation": 11.0}
    row = suite.measure_row(small("bias+gelu"), pretend_gpu.device)
    assert results.validate(document([row])) == []
    assert (row["torch_arm"], row["torch_us"], row["torch_over_gemmx"]) == ("compile", 12.0, 1.2)
    assert (row["eager_over_gemmx"], row["compile_over_gemmx"], row["addmm_activation_over_gemmx"]) == (1.4, 1.2, 1.1)
    assert row["compile_mode"] == "default" and row["compile_seconds"] > 0
    pretend_gpu.us["eager"] = 11.0
    row = suite.measure_row(small("swiglu"), pretend_gpu.device)
    assert results.validate(document([row])) == []
    assert (row["torch_arm"], row["torch_us"]) == ("eager", 11.0) and "addmm_activation_us" not in row
    assert row["own_us"] == row["gemmx_us"] and 0 < row["error"] <= 1 and "two_steps" not in row


def test_a_gated_row_that_no_kernel_computes_alone_says_so(pretend_gpu: SimpleNamespace) -> None:
    pretend_gpu.form_supported = False
    row = suite.measure_row(small("swiglu"), pretend_gpu.device)
    assert results.validate(document([row])) == [] and row["two_steps"] is True


@pytest.mark.parametrize("arm", ["eager", "compile"])
def test_a_torch_arm_that_fails_fails_the_row(pretend_gpu: SimpleNamespace, arm: str) -> None:
    pretend_gpu.failing = arm
    with pytest.raises(RuntimeError, match=f"{arm}: RuntimeError: no such kernel"):
        suite.measure_row(small("bias+silu"), pretend_gpu.device)


def measured(**changes: Any) -> dict[str, Any]:
    row = next(row for row in ROWS if row.name == "bias+gelu-2048x28672x4096")
    result = suite.outcome(row, "measured")
    times = {"gemmx": 10.0, "own": 10.0, "torch": 11.0, "eager": 12.0, "compile": 11.0, "addmm_activation": 10.5}
    for arm, us in times.items():
        result |= {f"{arm}_us": us, f"{arm}_us_p10": us - 1, f"{arm}_us_p90": us + 1, f"{arm}_over_gemmx": us / 10}
    result |= {"torch_arm": "compile", "compile_mode": "max-autotune-no-cudagraphs", "compile_seconds": 20.0}
    result |= {"cublaslt_best_us": None, "cublaslt_best_reason": "r", "kernel": "k", "plan": "k", "error": 0.5}
    return result | {"torch_over_own": 1.1, "gbps": 1.0, "tflops": 1.0} | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"eager_us": None}, "eager_us"),
        ({"compile_us": 9.5}, "torch_us is not the smaller"),
        ({"torch_arm": "eager"}, "torch_us is not the smaller"),
        ({"torch_arm": "addmm_activation"}, "torch_us is not the smaller"),
        ({"addmm_activation_us_p10": 20.0}, "addmm_activation_us is not between"),
        ({"compile_over_gemmx": math.nan}, "compile_over_gemmx is not a positive number"),
        ({"compile_mode": ""}, "compile_mode is missing"),
        ({"error": 1.5}, "error is 1.5"),
    ],
)
def test_validate_names_the_fault(changes: dict[str, Any], fault: str) -> None:
    assert results.validate(document([measured()])) == []
    faults = results.validate(document([measured(**changes)]))
    assert any(fault in text for text in faults), faults


def test_the_table_shows_every_arm_and_marks_missed_goals(tmp_path: Path) -> None:
    report = script("report")
    page = tmp_path / "README.md"
    page.write_text("<!-- begin:epilogue nvidia-h200 -->\n<!-- end:epilogue -->\n")
    failed = suite.outcome(ROWS[0], "failed", "no | way")
    slow = measured(name="slow", addmm_activation_over_gemmx=0.9)
    results.write(tmp_path / "results" / "nvidia-h200" / "epilogue.json", document([measured(), slow, failed]))
    text = report.render(page, report.load_results(tmp_path / "results"), tmp_path)
    line = "| 10.00 | 12.00 | 11.00 | 10.50 | 1.100 | 1.07 | 1.200 |  | 1.050 | 1 | 0.50 |"
    assert f"| bias+gelu-2048x28672x4096 (max-autotune) {line}" in text
    assert "| 0.900 | 1 missed |" in text and "failed: no \\| way |" in text
    assert "Goals met: 3 of 4." in text
    assert "| slow |" not in text.replace("(max-autotune)", "")  # the mode stands beside the name
    page.write_text(text)
    assert report.render(page, report.load_results(tmp_path / "results"), tmp_path) == text


def test_run_prints_the_suites_own_columns(capsys: pytest.CaptureFixture[str]) -> None:
    script("run").print_suite(document([measured(torch_over_gemmx=1.0)]))
    printed = capsys.readouterr().out
    assert "torch 1.066 MISSED, addmm_activation 1" in printed and "20.0 tuned" in printed
