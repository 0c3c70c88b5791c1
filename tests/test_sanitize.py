"""What `make sanitize` makes of the tools' logs, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import problems
import sanitize
import sanitized
from forms import FORMS, GateCall
from gemmx import _C
from sanitize import Outcome, Report, judge, load_explained, parse_log
from sanitized import CASES, instances

KERNEL = max((spec.name for spec in _C.kernels()), key=len)
FAMILY = next(spec.family for spec in _C.kernels() if spec.name == KERNEL)
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
FAULT = f"""========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at gemm_kernel<{KERNEL}_config>(Params)+0x80
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Uninitialized access somewhere
=========     in a library
=========
========= ERROR SUMMARY: 2 errors
"""
RAN = {spec.name: 1 for spec in _C.kernels()}


def outcome_of(
    log: str, ran: dict[str, int], explained: list[dict[str, str]] | None = None, wrong: tuple[str, ...] = ()
) -> Outcome:
    outcome = Outcome("memcheck")
    judge(outcome, log, "noise\n" + json.dumps({"ran": ran, "wrong": list(wrong)}), 0, explained or [])
    return outcome


def test_a_clean_log_has_no_reports() -> None:
    outcome = outcome_of(CLEAN, RAN)
    assert (outcome.reports, outcome.problems) == ([], [])


def test_reports_carry_their_kernel_and_family() -> None:
    first, second = parse_log("memcheck", FAULT)
    assert (first.kernel, first.family) == (KERNEL, FAMILY)
    assert first.text.startswith(" Invalid __global__ read")
    assert (second.kernel, second.family) == ("", "other")


def test_only_explained_reports_pass() -> None:
    row = {"tool": "memcheck", "family": FAMILY, "text": "Invalid __global__ read", "reason": "a test"}
    outcome = outcome_of(FAULT, RAN, [row])
    assert (outcome.explained, [report.family for report in outcome.reports]) == (1, ["other"])
    for other in ({"tool": "racecheck"}, {"family": "other"}, {"text": "Invalid __shared__"}):
        assert not sanitize.is_explained(Report("memcheck", KERNEL, FAMILY, FAULT), [{**row, **other}])


def test_what_else_fails_a_run() -> None:
    assert outcome_of(CLEAN, {KERNEL: 0}).problems == [f"{KERNEL} did not run"]
    assert outcome_of(CLEAN, RAN, wrong=("x: wrong",)).problems == ["x: wrong"]
    assert "5 errors, of which 0 are in the log" in outcome_of("========= ERROR SUMMARY: 5 errors\n", RAN).problems[0]
    outcome = Outcome("memcheck")
    judge(outcome, CLEAN, "Traceback", 1, [])
    assert "before its last line" in outcome.problems[0]


def test_explained_reports_have_reasons(tmp_path: Path) -> None:
    load_explained(sanitize.EXPLAINED)
    (tmp_path / "bad.json").write_text('[{"tool": "memcheck", "family": "simt", "text": "x", "reason": ""}]')
    with pytest.raises(ValueError, match="none empty"):
        load_explained(tmp_path / "bad.json")


def test_the_matrix_has_a_case_for_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every architecture: one that none of the cases reached would fail `make sanitize` there."""
    shape_only = SimpleNamespace(
        gemm=lambda a, b, *_, **__: torch.empty(*a.shape[:-1], b.shape[-1]), error_bound=lambda *_, **__: torch.empty(0)
    )
    monkeypatch.setattr(problems, "reference", shape_only)
    monkeypatch.setattr(sanitized, "instance", lru_cache(maxsize=None)(problems.instance.__wrapped__))
    from gemmx.ops import check
    from gemmx.select.profiles import profile

    models = {90: "h200", 100: "b200", 80: "a100", 120: "h200"}
    for spec in _C.kernels():
        device = profile(models[spec.min_capability])
        taken = 0
        for form in FORMS if (spec.gated or spec.aux) else ():
            for index, case in enumerate(sanitized.FORM_CASES):
                placed = case.with_majors(*sanitized.majors_of(spec, index))
                columns = 2 * placed.n if form.gated else placed.n
                inst = sanitized.instance(replace(placed, n=columns, activation=None), spec.dtype_a, "cpu")
                options = {"bias": inst.bias, "activation": placed.activation, "out_dtype": inst.d_dtype}
                problem = check(inst.a, inst.b, **options, gated=form.gated, aux=form.aux).problem
                taken += not _C.supports(spec.name, problem, device)
        for index, case in enumerate(sanitized.GATE_CASES if spec.gate_gradient else ()):
            call = GateCall(case.with_majors(*sanitized.majors_of(spec, index)), spec.dtype_a, "cpu")
            taken += not _C.supports(spec.name, call.problem(), device)
        for inst in instances(spec):
            kwargs = inst.kwargs
            out = inst.new_out()
            if inst.case.c == "out" and out is not None:
                kwargs["c"] = out.view
            kwargs |= {"out_dtype": inst.d_dtype} if out is None else {"out": out.view}
            try:
                problem = check(inst.a, inst.b, **kwargs).problem
            except RuntimeError:  # the CPU refuses requests that only a kernel can honour
                kwargs |= {"schedule": None, "splits": 0}
                problem = check(inst.a, inst.b, **kwargs).problem
                problem.schedule, problem.splits = inst.case.schedule or "split_k", inst.case.splits
            taken += not _C.supports(spec.name, problem, device)
        assert taken, spec.name
    assert len(CASES) == len(set(CASES))
