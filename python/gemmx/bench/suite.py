"""Measuring one manifest row: plans, correctness, then all arms side by side."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from gemmx import _C
from gemmx.bench import epilogue
from gemmx.bench.accuracy import error_over_bound
from gemmx.bench.cases import Call, Case
from gemmx.bench.manifest import Row
from gemmx.bench.stats import paired_ratio
from gemmx.bench.timer import Arm, Timing, time_arms
from gemmx.select.selector import choose

LT_HEURISTICS = 16
# A short look that only ranks candidates; the winner is then measured with the other arms.
RANKING = {"target_us": 300.0, "warmup_us": 5_000.0, "budget_us": 60_000.0, "min_rounds": 3, "max_rounds": 20}

Result = dict[str, Any]


def outcome(row: Row, status: str, reason: str = "") -> Result:
    return {**asdict(row), "status": status, **({"reason": reason} if reason else {})}


@contextlib.contextmanager
def torch_precision(compute: str) -> Iterator[None]:
    """Sets torch's fp32 arithmetic for the row: TF32 only where the row asks for it; 3xtf32 competes with IEEE."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if compute == "tf32" else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def four_digits(x: float) -> float:
    return float(f"{x:.4g}")


def kernel_family(name: str) -> str:
    return str(next(spec.family for spec in _C.kernels() if spec.name == name))


def request_for(plan: Any) -> dict[str, Any]:
    """The op's arguments that ask for this plan's kernel, schedule and splits."""
    request = {"kernel": plan.kernel, "schedule": plan.schedule}
    return {**request, "splits": plan.splits} if plan.schedule == "split_k" else request


def launched(problem: Any, device: Any) -> Any:
    """What the call's kernel computes: the Problem, or the plain product of a gated one that takes two steps."""
    if not getattr(problem, "gated", False) or _C.form_supported(problem, device):
        return problem
    return _C.plain_problem(problem)


def measure_row(row: Row, device: Any) -> Result:
    """All numbers of a row. Raises where gemmx or torch could not be measured; skips what the op does not take."""
    reason = row.unsupported()
    if reason:
        return outcome(row, "skipped", reason)
    with torch_precision(row.compute):
        case = Case(row, l2_bytes=device.l2_bytes)
        try:
            plan = _C.select(launched(case.problem(), device), device)
        except RuntimeError as error:
            if row.compute == "f32":  # what this version promises to run
                raise
            return outcome(row, "skipped", str(error))
        return _measure(case, plan, device)


def _measure(case: Case, plan: Any, device: Any) -> Result:
    row, problem = case.row, case.problem()
    result = outcome(row, "measured")
    result |= {"kernel": plan.kernel, "kernel_family": kernel_family(plan.kernel), "plan": str(plan)}
    if launched(problem, device) is not problem:
        result["two_steps"] = True
    arms: dict[str, Arm] = {**_torch_arms(case, result), "gemmx": case.arm(case.gemmx_call())}
    result["error"] = check_call(case, case.gemmx_call(), plan.kernel)

    own, own_reason = _own_request(case, plan, device)
    if own is not None:
        own_plan = _C.select(launched(case.problem(**own), device), device)  # what the request resolves to
        result |= {"own_kernel": own_plan.kernel, "own_plan": str(own_plan)}
        if own_plan != plan:
            arms["own"] = case.arm(case.gemmx_call(**own))
            result["own_error"] = check_call(case, case.gemmx_call(**own), own_plan.kernel)
    lt, lt_reason = _best_lt(case, problem)
    if lt is not None:
        result["cublaslt_best_index"], arms["cublaslt_best"] = lt
    floor_reason = row.without_floor()
    if not floor_reason:
        floor, floor_reason = _best_stream_read_of(case, device.sm_count)
        if floor is not None:
            result["floor_variant"], arms["floor"] = floor

    aligned = aligned_row(row)
    if aligned is not None:
        neighbour = Case(aligned, sets=case.sets)
        arms["aligned"] = neighbour.arm(neighbour.gemmx_call())

    timings = time_arms(arms, sets=case.sets)
    if own is not None and "own" not in timings:
        timings["own"] = timings["gemmx"]  # the selector chose one of our kernels: the same plan, the same arm
    if row.suite == epilogue.SUITE:
        _add_epilogue(result, timings)
    _add_timings(result, timings, {"own": own_reason, "cublaslt_best": lt_reason, "floor": floor_reason})
    if aligned is not None:
        _add_aligned(result, timings)
    result |= {"sets": case.sets, "launches": timings["gemmx"].launches, "rounds": len(timings["gemmx"].samples)}
    result["gbps"] = four_digits(case.bytes / result["gemmx_us"] / 1e3)
    result["tflops"] = four_digits(row.flops / result["gemmx_us"] / 1e6)
    return result


def _torch_arms(case: Case, result: Result) -> dict[str, Arm]:
    """One arm; of suite epilogue eager and compile, compiled here, and the library's fused call where it has one."""
    row = case.row
    if row.suite != epilogue.SUITE:
        return {"torch": case.arm(case.torch_call())}
    calls = epilogue.torch_calls(row)
    result["compile_mode"] = epilogue.COMPILE_MODES[row.compile] or "default"
    result["compile_seconds"] = epilogue.warm(case, calls["compile"])
    addmm = epilogue.addmm_activation_call(row)
    if addmm is not None:
        calls[epilogue.ADDMM_ARM] = addmm
    return {name: case.arm(call) for name, call in calls.items()}


def _add_epilogue(result: Result, timings: dict[str, Timing]) -> None:
    """Times of suite epilogue's torch arms, what gemmx takes of them, and as "torch" the better of eager and compile.

    A torch arm that fails fails the row: without it torch's time would be a weaker one.
    """
    arms = [arm for arm in (*epilogue.TORCH_ARMS, epilogue.ADDMM_ARM) if arm in timings]
    for arm in arms:
        if timings[arm].error is not None:
            raise RuntimeError(f"{arm}: {timings[arm].error}")
        result |= timing_fields(arm, timings[arm])
        if timings["gemmx"].error is None:
            result |= ratio_fields(timings, arm, "gemmx")
    result["torch_arm"] = min(epilogue.TORCH_ARMS, key=lambda arm: timings[arm].median_us)
    timings["torch"] = timings[result["torch_arm"]]


def aligned_row(row: Row) -> Row | None:
    """The neighbour of a row of suite unaligned: M, N, K rounded up to multiples of 8, packed, 16-byte pointers."""
    if row.suite != "unaligned":
        return None
    m, n, k = (-(-extent // 8) * 8 for extent in (row.M, row.N, row.K))
    return replace(row, M=m, N=n, K=k, lda=0, ldb=0, ldc=0, ldd=0, align_bytes=16)


def _add_aligned(result: Result, timings: dict[str, Timing]) -> None:
    """`aligned_us` and what gemmx takes of it: gemmx_over_aligned."""
    timing = timings["aligned"]
    if timing.error is not None:
        raise RuntimeError(f"aligned: {timing.error}")
    result |= timing_fields("aligned", timing)
    result["gemmx_over_aligned"] = round(paired_ratio(timings["gemmx"].samples, timing.samples).median, 4)


def check_call(case: Case, call: Call, kernel: str) -> float:
    """Runs the call once and returns its error over the bound; RuntimeError when another kernel ran.

    D's memory holds NaN before: without `out`, the caching allocator hands the block freed here to the call, so
    that an element never written does not pass as the right result of an earlier call.
    """
    out: Tensor | None = case.make_out().fill_(math.nan)
    if not case.needs_out:
        out = None
    _C.reset_launch_counts()
    d = call(case.inputs[0], out)
    torch.cuda.synchronize()
    ran = sorted(name for name, count in _C.launch_counts().items() if count)
    if ran != [kernel]:
        raise RuntimeError(f"the plan names {kernel}, but the op launched {', '.join(ran) or 'nothing'}")
    return error_over_bound(case, d)


def _own_request(case: Case, plan: Any, device: Any) -> tuple[dict[str, Any] | None, str]:
    """The request for the best plan without cuBLASLt, or why there is none."""
    try:
        return request_for(choose(launched(case.problem(), device), device, exclude_families=("cublaslt",))), ""
    except (RuntimeError, ValueError) as error:
        return None, f"no plan without cuBLASLt: {error}"


def rank(arms: dict[str, Arm], sets: int) -> tuple[str | None, str]:
    """The fastest arm by a short measurement, or None and the first error when none ran."""
    timings = time_arms(arms, sets=sets, **RANKING)  # type: ignore[arg-type]
    working = {name: t for name, t in timings.items() if t.error is None}
    if not working:
        return None, next((t.error for t in timings.values() if t.error), "there are no candidates")
    return min(working, key=lambda name: working[name].median_us), ""


def _best_lt(case: Case, problem: Any) -> tuple[tuple[int, Arm] | None, str]:
    """The best of 16 heuristics of cuBLASLt as an arm with its index, or why there is none."""
    if not case.row.plain:
        return None, "cuBLASLt's heuristics are measured for plain products only"
    workspace = torch.empty(case.row.workspace_mb << 20, dtype=torch.uint8, device=case.device)
    outs = case.make_outs()
    arms = {str(i): case.arm(case.lt_call(i, problem, workspace), outs) for i in range(LT_HEURISTICS)}
    best, reason = rank(arms, case.sets)
    return ((int(best), arms[best]), "") if best is not None else (None, reason)


def best_stream_read(buffers: list[Tensor], sm_count: int) -> tuple[tuple[int, Arm] | None, str]:
    """The fastest variant of the project's read kernel, one launch a buffer, as an arm; buffer i is input set i."""
    sink = torch.empty(4, dtype=torch.uint8, device=buffers[0].device)
    arms = {str(v): _read_arm(buffers, sink, sm_count, v) for v in range(_C.stream_read_variants())}
    best, reason = rank(arms, len(buffers))
    return ((int(best), arms[best]), "") if best is not None else (None, reason)


def _best_stream_read_of(case: Case, sm_count: int) -> tuple[tuple[int, Arm] | None, str]:
    """The fastest read of as many bytes as the inputs have."""
    make = functools.partial(torch.empty, dtype=torch.uint8, device=case.device)
    return best_stream_read([make(case.read_bytes).random_() for _ in range(case.sets)], sm_count)


def _read_arm(buffers: list[Tensor], sink: Tensor, sm_count: int, variant: int) -> Arm:
    def run(i: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        _C.stream_read(buffers[i].data_ptr(), buffers[i].nbytes, sink.data_ptr(), sm_count, variant, stream)

    return run


def _add_timings(result: Result, timings: dict[str, Timing], reasons: dict[str, str]) -> None:
    """`<arm>_us`, `_p10`, `_p90` of every arm and the paired ratios; raises for gemmx, own and torch errors."""
    for arm in ("gemmx", "torch", "own"):
        if arm in timings and timings[arm].error is not None:
            raise RuntimeError(f"{arm}: {timings[arm].error}")
    for arm in ("gemmx", "own", "torch", "cublaslt_best", "floor"):
        timing = timings.get(arm)
        if timing is None or timing.error is not None:
            result[f"{arm}_us"] = None
            result[f"{arm}_reason"] = timing.error if timing is not None else reasons[arm]
            continue
        result |= timing_fields(arm, timing)
    for over, under in (("torch", "gemmx"), ("torch", "own"), ("cublaslt_best", "gemmx"), ("floor", "gemmx")):
        if result[f"{over}_us"] is None or result[f"{under}_us"] is None:
            continue
        result |= ratio_fields(timings, over, under)


def ratio_fields(timings: dict[str, Timing], over: str, under: str) -> Result:
    ratio = paired_ratio(timings[over].samples, timings[under].samples)
    key = f"{over}_over_{under}"
    return {key: round(ratio.median, 4), f"{key}_p10": round(ratio.p10, 4), f"{key}_p90": round(ratio.p90, 4)}


def timing_fields(arm: str, timing: Timing) -> Result:
    values = (timing.median_us, timing.p10_us, timing.p90_us)
    assert all(math.isfinite(v) for v in values)
    return {f"{arm}_us{suffix}": round(v, 3) for suffix, v in zip(("", "_p10", "_p90"), values, strict=True)}
