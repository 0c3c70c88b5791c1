"""Running the benchmarks and their result files, without a GPU: measured rows, the schema, reports, variants."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_rows import ROOT, EagerGpu, make_row, script
from gemmx import _C
from gemmx.bench import chain, invariant, manifest, model, results, suite, timer
from gemmx.bench.cases import SMALL_M, Case
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import decide, every_plan

COMMITTED = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"))


# ---- result files --------------------------------------------------------------------------------------------


def measured_row(**changes: Any) -> dict[str, Any]:
    row = suite.outcome(make_row(), "measured")
    for arm, us in {"gemmx": 10.0, "own": 11.0, "torch": 12.0, "cublaslt_best": 10.5, "floor": 8.0}.items():
        row |= {f"{arm}_us": us, f"{arm}_us_p10": us - 1, f"{arm}_us_p90": us + 1}
    row |= {"torch_over_gemmx": 1.2, "torch_over_own": 1.09, "cublaslt_best_over_gemmx": 1.05, "floor_over_gemmx": 0.8}
    row |= {"kernel": "cublaslt_gemm", "kernel_family": "cublaslt", "plan": "cublaslt_gemm data_parallel"}
    return row | {"gbps": 100.0, "tflops": 1.0, "error": 0.5} | changes


def document(rows: list[dict[str, Any]], name: str = "decode") -> results.Document:
    header: dict[str, Any] = dict.fromkeys(results.HEADER_KEYS, "x")
    header |= {"suite": name, "gpu": "NVIDIA H200", "source_hash": "0123456789abcdef", "date": "2026-01-02T03:04:05"}
    return {"header": header, "rows": rows}


def test_a_good_document_has_no_faults_and_survives_the_file(tmp_path: Path) -> None:
    good = document([measured_row(), suite.outcome(make_row(name="y"), "skipped", "not today")])
    assert results.validate(good) == []
    path = tmp_path / "gpu" / "decode.json"
    results.write(path, good)
    assert results.read(path) == good
    assert len(path.read_text().splitlines()) == 2 + len(results.HEADER_KEYS) + 1 + 4 + 1  # one line per row


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"error": 1.5}, "error is 1.5"),
        ({"error": math.nan}, "error is nan"),
        ({"gemmx_us": None}, "gemmx_us"),
        ({"torch_us_p10": 13.0}, "not between"),
        ({"own_us": None}, "own_reason"),
        ({"kernel": ""}, "kernel is missing"),
        ({"status": "fine"}, "status is 'fine'"),
        ({"status": "failed"}, "needs a reason"),
        ({"torch_over_gemmx": None}, "torch_over_gemmx"),
    ],
)
def test_validate_names_the_fault(changes: dict[str, Any], fault: str) -> None:
    faults = results.validate(document([measured_row(**changes)]))
    assert any(fault in text for text in faults), faults


def test_validate_wants_the_header_complete() -> None:
    good = document([])
    del good["header"]["source_hash"]
    assert results.validate(good) == ["header: source_hash is missing or empty"]
    assert results.validate({"rows": []})


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_committed_results_are_complete(path: Path) -> None:
    found = results.read(path)
    assert results.validate(found) == []
    assert found["header"]["suite"] == path.stem
    assert results.slug(found["header"]["gpu"]) == path.parent.name
    assert not [row["name"] for row in found["rows"] if row.get("status") == "failed"]
    if path.stem == "ladder":
        rungs = {row["name"] for row in found["rows"]} & {s.name for s in _C.kernels() if s.family == "ladder"}
        assert len(rungs) == 8
    elif path.stem == "chain":
        assert [row["M"] for row in found["rows"]] == list(chain.M_VALUES)
        assert all(chain.LLAMA.flushes_itself(row["l2_bytes"]) for row in found["rows"])
    elif path.stem == "invariant":
        manifests = [manifest.load(ROOT / "benchmarks" / "manifests" / f"{s}.csv") for s in invariant.SUITES]
        assert [(r["suite"], r["name"]) for r in found["rows"]] == [(r.suite, r.name) for m in manifests for r in m]
    elif path.stem == model.SUITE:
        assert [row["name"] for row in found["rows"]] == list(model.GOALS)
        assert all(row["layers"] in (16, 32) for row in found["rows"])  # whole models
    elif path.stem != "host":
        names = [row.name for row in manifest.load(ROOT / "benchmarks" / "manifests" / f"{path.stem}.csv")]
        assert [row["name"] for row in found["rows"]] == names


def test_summary_counts_and_weighs() -> None:
    rows = [
        measured_row(),
        measured_row(name="slow", torch_over_gemmx=0.3, weight=0.0, kernel_family="sm80"),
        suite.outcome(make_row(), "skipped", "r"),
        suite.outcome(make_row(), "failed", "r"),
    ]
    s = results.summarise(document(rows))
    assert (s.measured, s.skipped, s.failed) == (2, 1, 1)
    assert s.torch_over_gemmx == pytest.approx(1.2)
    assert (s.worst, s.worst_row) == (0.3, "slow")
    assert s.cublaslt_share == 0.5
    assert math.isnan(results.summarise(document([])).torch_over_gemmx)


def test_slug() -> None:
    assert results.slug("NVIDIA H200") == "nvidia-h200"
    assert results.slug("NVIDIA GeForce RTX 4090") == "nvidia-geforce-rtx-4090"


# ---- running a suite -----------------------------------------------------------------------------------------


KERNELS = {"sm90_gemm": "cutlass", "sm80_gemm": "sm80", "cublaslt_gemm": "cublaslt"}


class Plan(SimpleNamespace):
    """As _C.Plan: fields, == and a name."""

    def __str__(self) -> str:
        return f"{self.kernel} {self.schedule} splits {self.splits}"


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Lets the code that measures run on CPU tensors.

    A registry of three kernels, cuBLASLt's first three heuristics and one read variant. `chosen` is the kernel
    that the selector takes, `ran` the one that the op launches whatever it is asked for.
    """
    state = SimpleNamespace(chosen="cublaslt_gemm", ran=None)

    def select(problem: Any, device: Any) -> Plan:
        asked = getattr(problem, "kernel", "")
        schedule = getattr(problem, "schedule", "auto")
        return Plan(
            kernel=asked or state.chosen, schedule="data_parallel" if schedule == "auto" else schedule, splits=1
        )

    def choose(problem: Any, device: Any, exclude_families: tuple[str, ...]) -> Plan:
        assert exclude_families == ("cublaslt",)
        kernel = "sm90_gemm" if state.chosen == "cublaslt_gemm" else state.chosen
        return Plan(kernel=kernel, schedule="data_parallel", splits=1)

    def lt_baseline(*args: Any) -> bool:
        workspace_bytes, _, index = args[5:]
        assert workspace_bytes == 64 << 20
        return bool(index < 3)

    def problem_of(case: Case, **request: Any) -> SimpleNamespace:
        state.requested = request.get("kernel", "")
        return SimpleNamespace(kernel=state.requested, schedule=request.get("schedule", "auto"))

    def gemmx_call(case: Case, **request: Any) -> Any:
        def call(s: Any, out: torch.Tensor | None) -> torch.Tensor:
            state.launched = state.ran or request.get("kernel") or state.chosen
            return case.torch_call()(s, out)

        return call

    fake = SimpleNamespace(
        kernels=lambda: [SimpleNamespace(name=n, family=f, schedules=("data_parallel", "split_k")) for n, f in
                         KERNELS.items()],
        select=select,
        launch_counts=lambda: {name: int(name == state.launched) for name in KERNELS},
        reset_launch_counts=lambda: None,
        lt_baseline=lt_baseline,
        stream_read=lambda *args: None,
        stream_read_variants=lambda: 1,
        built_for=lambda name, capability: True,
        cuda_device=lambda ordinal: SimpleNamespace(l2_bytes=1, sm_count=132, capability=90),
        build_archs=lambda: ("90a",),
        source_hash=lambda: "0123456789abcdef",
    )  # fmt: skip
    gpu = EagerGpu()
    small = {"backend": gpu, "max_rounds": 12}
    state.fake, state.timer = fake, lambda arms, **k: timer.time_arms(arms, **{**k, **small})
    state.case = lambda row, l2_bytes=0: Case(row, device="cpu", sets=2)
    monkeypatch.setattr(Case, "problem", problem_of)
    monkeypatch.setattr(Case, "gemmx_call", gemmx_call)
    monkeypatch.setattr("gemmx.bench.cases._C", fake)
    monkeypatch.setattr(suite, "_C", fake)
    monkeypatch.setattr(suite, "Case", state.case)
    monkeypatch.setattr(suite, "time_arms", state.timer)
    monkeypatch.setattr(suite, "choose", choose)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return state


def test_a_measured_row_is_complete(pretend_gpu: SimpleNamespace) -> None:
    device = pretend_gpu.fake.cuda_device(0)
    row = suite.measure_row(make_row(), device)
    assert results.validate(document([row])) == []
    assert (row["kernel"], row["kernel_family"], row["own_kernel"]) == ("cublaslt_gemm", "cublaslt", "sm90_gemm")
    assert row["cublaslt_best_index"] in (0, 1, 2) and row["floor_variant"] == 0
    assert row["torch_over_gemmx"] == row["torch_over_own"] == row["floor_over_gemmx"] == 1.0
    assert row["error"] <= 1 and row["own_error"] <= 1


def test_own_is_the_same_arm_where_the_selector_takes_our_kernel(pretend_gpu: SimpleNamespace) -> None:
    pretend_gpu.chosen = "sm80_gemm"
    row = suite.measure_row(make_row(epilogue="bias+relu"), pretend_gpu.fake.cuda_device(0))
    assert results.validate(document([row])) == []
    assert row["own_us"] == row["gemmx_us"] and row["own_plan"] == row["plan"]
    assert row["cublaslt_best_us"] is None and "plain products only" in row["cublaslt_best_reason"]


@pytest.mark.parametrize(
    ("name", "m", "measured"), [("decode", 1, True), ("mid", 64, True), ("mid", 65, False), ("dense", 5, False)]
)
def test_the_floor_is_measured_at_small_m_of_decode_and_mid(
    pretend_gpu: SimpleNamespace, name: str, m: int, measured: bool
) -> None:
    row = suite.measure_row(replace(make_row(), suite=name, M=m), pretend_gpu.fake.cuda_device(0))
    assert results.validate(document([row])) == []
    assert (row["floor_us"] is not None) == ("floor_over_gemmx" in row) == measured
    if not measured:
        assert row["floor_reason"] == "measured for rows of the suites decode and mid with M of at most 64"


def test_the_manifests_have_a_floor_at_every_m_of_the_bandwidths_plot() -> None:
    rows = [row for path in sorted((ROOT / "benchmarks" / "manifests").glob("*.csv")) for row in manifest.load(path)]
    with_floor = {row.M for row in rows if not row.unsupported() and not row.without_floor()}
    assert set(script("report").BANDWIDTH_M) <= with_floor == {1, 2, 4, 8, 16, 32, 64}


def test_a_row_whose_op_runs_another_kernel_fails(pretend_gpu: SimpleNamespace) -> None:
    pretend_gpu.ran = "sm80_gemm"
    with pytest.raises(RuntimeError, match="the plan names cublaslt_gemm, but the op launched sm80_gemm"):
        suite.measure_row(make_row(), pretend_gpu.fake.cuda_device(0))


def test_run_writes_a_valid_file_and_reports_skipped_rows(
    pretend_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = script("run")
    rows = [make_row(name="one"), make_row(name="scaled", scaling="row")]
    facts = {"gpu": "NVIDIA H200", "uuid": "GPU-0", "driver": "1", "clocks": {"sm_mhz": "1"}}
    monkeypatch.setattr(run, "_C", pretend_gpu.fake)
    monkeypatch.setattr(run, "check_gpu", lambda arch: "")
    monkeypatch.setattr(run, "suites", lambda names: {"decode": rows})
    monkeypatch.setattr(results, "gpu_facts", lambda device: facts)
    monkeypatch.setattr(results, "cublaslt_version", lambda: "13.1.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--out", str(tmp_path)])
    assert run.main() == 0
    written = results.read(tmp_path / "nvidia-h200" / "decode.json")
    assert results.validate(written) == []
    assert [row["status"] for row in written["rows"]] == ["measured", "skipped"]
    printed = capsys.readouterr().out
    assert "skipped scaled: scaling is row" in printed
    assert "decode: 1 measured, 1 skipped, 0 failed; geomean torch/gemmx 1.000 (worst 1.000 one)" in printed


@pytest.fixture
def variants(pretend_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = script("variants")
    monkeypatch.setattr(module, "_C", pretend_gpu.fake)
    monkeypatch.setattr(module, "Case", pretend_gpu.case)
    monkeypatch.setattr(module, "time_arms", pretend_gpu.timer)
    return module


def test_variants_time_what_matches_and_say_why_not(
    variants: Any, pretend_gpu: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    device = pretend_gpu.fake.cuda_device(0)
    candidates = variants.requests("sm", [1, 4], False, device)
    assert list(candidates) == ["sm90_gemm", "sm90_gemm split_k 4", "sm80_gemm", "sm80_gemm split_k 4"]
    row = variants.shape_row("5x24x40", "kk", "bf16")
    pretend_gpu.ran = "sm90_gemm"  # whatever was asked for: the others are refused
    entries = {entry["name"]: entry for entry in variants.measure(row, candidates, device)}
    assert entries["sm90_gemm"]["of_torch"] == 1.0 and entries["sm90_gemm"]["error"] <= 1
    assert "the op launched sm90_gemm" in entries["sm80_gemm"]["reason"]
    variants.print_shape(row, list(entries.values()))
    printed = capsys.readouterr().out
    assert "100.0" in printed and "not timed sm80_gemm: the plan names sm80_gemm" in printed
    assert "behind" not in printed and not any("behind_us" in entry for entry in entries.values())


def test_variants_behind_elementwise_kernels(
    variants: Any, pretend_gpu: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_gpu.ran = "sm90_gemm"
    row = variants.shape_row("5x24x40", "kk", "bf16")
    candidates = {"sm90_gemm": {"kernel": "sm90_gemm"}}
    (entry,) = variants.measure(row, candidates, pretend_gpu.fake.cuda_device(0), behind=True)
    assert entry["behind_us"] > 0 and entry["torch_behind_us"] > 0
    variants.print_shape(row, [entry])
    assert "torch behind us" in capsys.readouterr().out


def test_a_row_that_raises_does_not_stop_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    run = script("run")
    rows = [make_row(name=name) for name in ("good", "raises", "good too", "kills", "after")]

    def fake_measure(row: manifest.Row, device: Any) -> dict[str, Any]:
        if row.name in ("raises", "kills"):
            lost["now"] = row.name == "kills"
            raise RuntimeError(f"{row.name}!")
        return measured_row(name=row.name)

    def synchronize() -> None:
        if lost["now"]:
            raise RuntimeError("an illegal memory access was encountered")

    lost = {"now": False}
    monkeypatch.setattr(run, "measure_row", fake_measure)
    monkeypatch.setattr(run.torch.cuda, "synchronize", synchronize)
    found = run.run_rows(rows, SimpleNamespace(), run.measure_row)
    assert [row["status"] for row in found] == ["measured", "failed", "measured", "failed", "failed"]
    assert found[1]["reason"] == "RuntimeError: raises!"
    assert "row kills destroyed the CUDA context" in found[4]["reason"]
    assert [run.broken(row) for row in found] == [False, True, False, True, True]
    assert run.broken(measured_row(error=1.01)) and run.broken(measured_row(own_error=math.nan))
    assert results.validate(document(found)) == []


def test_the_recorded_command_leaves_the_output_folder_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = script("run")
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--suite", "dense", "--out", "/some/where", "--rows", "m16$"])
    assert run.command() == "python benchmarks/run.py --suite dense --rows 'm16$'"
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--out=/some/where"])
    assert run.command() == "python benchmarks/run.py"


@pytest.mark.parametrize(
    "arguments",
    ["--mode host --suite dense", "--mode host --rows m16", "--mode host --limit 1", "--mode chain --suite f16"],
)
def test_an_option_that_a_mode_does_not_take_is_refused(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = script("run")
    monkeypatch.setattr(run.sys, "argv", ["run.py", *arguments.split()])
    with pytest.raises(SystemExit):
        run.parse_arguments()
    assert "says nothing to --mode" in capsys.readouterr().err
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--mode", "chain", "--rows", "m1$", "--limit", "1"])
    assert run.parse_arguments().rows == "m1$"


def test_default_suites_are_those_with_a_supported_row() -> None:
    names = set(script("run").suites(None))
    assert {"dense", "decode", "layouts", "epilogue", "fp32"} <= names
    assert not {"fp8", "int8", "w4a16", "grouped"} & names


# ---- reports -------------------------------------------------------------------------------------------------

PAGE = """# Title

<!-- begin:results nvidia-h200 -->
old
<!-- end:results -->
between
<!-- begin:results nvidia-b200 -->
<!-- end:results -->
<!-- begin:rows nvidia-h200 decode -->
<!-- end:rows -->
"""


def report_root(folder: Path) -> Path:
    rows = [measured_row(), suite.outcome(make_row(name="y"), "skipped", "not today")]
    results.write(folder / "benchmarks" / "results" / "nvidia-h200" / "decode.json", document(rows))
    hosts = [{"name": "p", "mode": "inference", "M": 16, "N": 64, "K": 64, "gemmx_us": 4.0, "torch_us": 11.0,
              "torch_over_gemmx": 2.75}]  # fmt: skip
    results.write(folder / "benchmarks" / "results" / "nvidia-h200" / "host.json", document(hosts, "host"))
    (folder / "README.md").write_text(PAGE)
    return folder


def test_report_fills_the_blocks_and_is_idempotent(tmp_path: Path) -> None:
    report, root = script("report"), report_root(tmp_path)
    found = report.load_results(root / "benchmarks" / "results")
    text = report.render(root / "README.md", found, root)
    assert "| decode | 1 (+1 not supported) | 1.20 (1.20) | 1.09 (1.09) | 1.05 | 100 % | 80 % | 0.50 |" in text
    assert "| 16x64x64 | inference | 4.00 | 11.00 | 2.75 |" in text
    assert "docs/img/nvidia-h200.svg" in text
    assert "old" not in text and "between" in text
    assert "begin:results nvidia-b200 -->\n\nNot measured." in text
    assert "skipped: not today" in text
    (root / "README.md").write_text(text)
    assert report.render(root / "README.md", found, root) == text


def test_report_check_sees_stale_pages_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, root = script("report"), report_root(tmp_path)
    monkeypatch.setattr(report.sys, "argv", ["report.py", "--check", "--root", str(root)])
    assert report.main() == 1
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(report.sys, "argv", ["report.py", "--root", str(root)])
    assert report.main() == 0
    monkeypatch.setattr(report.sys, "argv", ["report.py", "--check", "--root", str(root)])
    assert report.main() == 0
    path = root / "benchmarks" / "results" / "nvidia-h200" / "decode.json"
    changed = json.loads(path.read_text())
    changed["rows"][0]["torch_over_gemmx"] = 1.3
    results.write(path, changed)
    found = report.load_results(root / "benchmarks" / "results")
    assert len(report.stale(root, found)) == 2  # the page and the plot


def test_published_pages_show_the_committed_results() -> None:
    report = script("report")
    assert report.stale(ROOT, report.load_results(ROOT / "benchmarks" / "results")) == []


# ---- variants ------------------------------------------------------------------------------------------------


def test_variants_shapes_and_requests() -> None:
    variants = script("variants")
    row = variants.shape_row("16x4096x8192", "mn", "f16")
    assert (row.M, row.N, row.K, row.batch, row.major_a, row.major_b, row.dtype_a) == (
        16,
        4096,
        8192,
        1,
        "m",
        "n",
        "f16",
    )
    assert variants.shape_row("3x16x64x128", "kk", "bf16").batch == 3
    with_c = variants.shape_row("16x64x128", "kk", "f16", "bias+residual")
    assert (with_c.dtype_c, with_c.beta, with_c.epilogue) == ("f16", 1.0, "bias+residual")
    with pytest.raises(SystemExit, match="MxNxK"):
        variants.shape_row("16x4096", "kk", "bf16")
    assert variants.requests("no kernel has this name", [1], True, SimpleNamespace(capability=90)) == {}


def test_library_kernels_are_read_from_a_trace() -> None:
    kernel = {"cat": "kernel", "name": "nvjet", "ts": 2.5, "args": {"grid": [4, 2, 1], "block": [384, 1, 1]}}
    first = {
        "cat": "kernel",
        "name": "fill",
        "ts": 1,
        "args": {"grid": [1, 1, 1], "block": [32, 1, 1], "shared memory": 2048},
    }
    trace = {"traceEvents": [{"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0}, kernel, first]}
    assert script("library_kernels").launches(trace) == [
        ("fill", "1x1x1", "32x1x1", "2.0"),
        ("nvjet", "4x2x1", "384x1x1", "-"),
    ]


class NamedPlan(str):
    """A plan that is only a name."""

    kernel = ""


def test_tune_measures_the_first_kernels_and_some_further_plans_of_theirs() -> None:
    tune, device = script("tune"), profile("h200")
    problem = check_shape(16, 4096, 14336).problem
    best = [c.plan for c in decide(problem, device).candidates]
    every = [c.plan for c in every_plan(problem, device)]
    assert all(plan in every for plan in best) and len(every) > len(best)
    plans = tune.candidate_plans(problem, device, 6)
    assert plans[:6] == best[:6]
    assert sum(not tune.is_own(plan) for plan in plans) == 1  # the library's, wherever the model ranks it
    assert len(plans) == len({str(plan) for plan in plans})  # none twice
    assert len(plans) - 3 == 6 + (plans[6] in best and not tune.is_own(plans[6]))  # and half of six further ones


def test_tune_takes_the_rows_that_match() -> None:
    tune = script("tune")
    found = tune.rows_of("decode,mid", r"llama3-8b-o-m(1|64)$", "deterministic")
    assert [(suite, row.M) for suite, rows in found.items() for row in rows] == [("decode", 1), ("mid", 64)]
    with pytest.raises(SystemExit, match=r"^--rows: got 'no-such-row'"):
        tune.rows_of("decode,mid", "no-such-row", "deterministic")


def test_tune_times_every_candidate_in_groups_that_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    tune = script("tune")
    times = {"slow": 9.0, "second": 3.0, "library": 2.99, "best": 2.0, "third": 4.0, "broken": 1.0, "last": 8.0}
    groups: list[list[str]] = []

    def time_in_a_group(arms: dict[str, Any], **_: Any) -> dict[str, timer.Timing]:
        groups.append([name for name in arms if not name.endswith(tune.BEHIND)])
        return {
            name: timer.Timing(times[plan], times[plan], times[plan], error="lost" if plan == "broken" else None)
            for name in arms
            for plan in [name.removesuffix(tune.BEHIND)]
        }

    outputs = 1000
    case = SimpleNamespace(
        sets=10, bytes=100 + outputs, read_bytes=100, problem=lambda: None, arm=lambda call: call,
        gemmx_call=lambda **request: lambda s, out: None,
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * 8 * case.sets * outputs, 0))  # half is eight arms
    monkeypatch.setattr(tune, "candidate_plans", lambda problem, device, count: [NamedPlan(name) for name in times])
    monkeypatch.setattr(tune, "request_for", lambda plan: {})
    monkeypatch.setattr(tune, "check_call", lambda case, call, kernel: 0.0)
    monkeypatch.setattr(tune, "is_own", lambda plan: plan != "library")
    monkeypatch.setattr(tune, "row_dict", lambda problem, plan, us: {"plan": plan, "us": us})
    monkeypatch.setattr(tune, "time_arms", time_in_a_group)
    regret, rows = tune.measure(case, None, 16, 1.0)
    assert groups == [["slow", "second", "library", "best"], ["third", "broken", "last"], ["best", "second", "library"]]
    assert [row["plan"] for row in rows] == ["best", "second", "library"]  # 3.00 of our own before 2.99: noise
    assert regret == 4.5


@pytest.mark.parametrize("m", [16, 2048])
@pytest.mark.parametrize("us, first", [(14.0, "starts"), (12.4, "overlaps")])  # 5 % behind itself, for 17 and for 3
def test_tune_ranks_by_the_worse_of_two_places(monkeypatch: pytest.MonkeyPatch, m: int, us: float, first: str) -> None:
    tune = script("tune")
    alone = {"overlaps": 10.0, "starts": 10.5}
    behind = {"overlaps": us, "starts": 12.0}
    inputs = [SimpleNamespace(a=torch.ones(2), b=torch.ones(2)) for _ in range(2)]
    case = SimpleNamespace(
        sets=2, bytes=2, read_bytes=1, inputs=inputs, row=SimpleNamespace(M=m), problem=lambda: None,
        gemmx_call=lambda **request: lambda s, out: None, arm=lambda call: lambda i: None,
    )  # fmt: skip
    ran: list[str] = []

    def time_each(arms: dict[str, Any], **_: Any) -> dict[str, timer.Timing]:
        result = {}
        for name, arm in arms.items():
            arm(0)
            ran.append(name)
            us = alone[name] if name in alone else behind[name.removesuffix(tune.BEHIND)]
            result[name] = timer.Timing(us, us, us)
        return result

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 0))
    monkeypatch.setattr(tune, "candidate_plans", lambda problem, device, count: [NamedPlan(name) for name in alone])
    monkeypatch.setattr(tune, "request_for", lambda plan: {})
    monkeypatch.setattr(tune, "check_call", lambda case, call, kernel: 0.0)
    monkeypatch.setattr(tune, "is_own", lambda plan: True)
    monkeypatch.setattr(tune, "row_dict", lambda problem, plan, us: {"plan": plan, "us": us})
    monkeypatch.setattr(tune, "time_arms", time_each)
    regret, rows = tune.measure(case, None, 16, 1.0)
    assert [row["plan"] for row in rows] == sorted(alone, key=lambda name: name != first)
    assert all(row["us"] == alone[row["plan"]] for row in rows) and regret == 1.0
    assert sum(name.endswith(tune.BEHIND) for name in ran) == len(ran) / 2
    assert inputs[0].a._version > 0  # written by the kernel before
    assert inputs[0].b._version == 0  # and the weights that it reads are cold
    assert (inputs[1].b._version > 0) == (m > SMALL_M)
