"""What numerics="batch_invariant" costs: a row by default, under batch_invariant, and by torch, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmx import _C
from gemmx.bench.cases import Case
from gemmx.bench.manifest import Row
from gemmx.bench.results import METHOD, Document
from gemmx.bench.stats import paired_ratio, weighted_geomean
from gemmx.bench.suite import Result, check_call, outcome, timing_fields
from gemmx.bench.timer import Arm, time_arms

SUITES = ("dense", "mid", "decode")
ARMS = ("default", "invariant", "torch")
REQUEST = {"numerics": "batch_invariant"}
# Less than a suite's rows have; an arm is measured 10 times or more.
TIMES: dict[str, Any] = {"warmup_us": 30_000.0, "budget_us": 150_000.0}
INVARIANT_METHOD = METHOD.replace(">= 100 ms of warm-up rounds", ">= 30 ms of warm-up rounds")


def measure_invariant_row(row: Row, device: Any) -> Result:
    """The numbers of a row; raises where an arm could not be measured.

    Where batch_invariant runs the default's own plan the two are one arm, and their ratio is 1.
    """
    if reason := row.unsupported():
        return outcome(row, "skipped", reason)
    case = Case(row, l2_bytes=device.l2_bytes)
    default, plan = _C.select(case.problem(), device), _C.select(case.problem(**REQUEST), device)
    result = outcome(row, "measured") | {
        "kernel": plan.kernel,
        "plan": str(plan),
        "default_kernel": default.kernel,
        "default_plan": str(default),
        "same_plan": plan == default,
    }
    result["error"] = check_call(case, case.gemmx_call(**REQUEST), plan.kernel)
    arms: dict[str, Arm] = {"torch": case.arm(case.torch_call()), "invariant": case.arm(case.gemmx_call(**REQUEST))}
    if plan != default:
        arms["default"] = case.arm(case.gemmx_call())
        result["default_error"] = check_call(case, case.gemmx_call(), default.kernel)
    timings = time_arms(arms, sets=case.sets, **TIMES)
    timings.setdefault("default", timings["invariant"])
    for arm in ARMS:
        if timings[arm].error is not None:
            raise RuntimeError(f"{arm}: {timings[arm].error}")
        result |= timing_fields(arm, timings[arm])
    for over, under in (("invariant", "default"), ("torch", "invariant")):
        ratio = paired_ratio(timings[over].samples, timings[under].samples)
        key = f"{over}_over_{under}"
        result |= {key: round(ratio.median, 4), f"{key}_p10": round(ratio.p10, 4), f"{key}_p90": round(ratio.p90, 4)}
    counts = {"launches": timings["invariant"].launches, "rounds": len(timings["invariant"].samples)}
    return result | {"sets": case.sets} | counts


@dataclass(frozen=True)
class Cost:
    """The rows of one suite. Ratios are weighted geometric means; NaN where nothing is measured."""

    suite: str
    rows: int
    failed: int
    same_plan: int
    over_default: float
    worst: float  # the largest
    worst_row: str
    torch_over_invariant: float
    slowest: float  # the least
    slowest_row: str


def costs(document: Document) -> list[Cost]:
    """One Cost a suite, in the order of the rows."""
    found = []
    for suite in dict.fromkeys(row["suite"] for row in document["rows"]):
        of_suite = [row for row in document["rows"] if row["suite"] == suite]
        rows = [row for row in of_suite if row["status"] == "measured"]
        worst = max(((r["invariant_over_default"], r["name"]) for r in rows), default=(float("nan"), ""))
        slowest = min(((r["torch_over_invariant"], r["name"]) for r in rows), default=(float("nan"), ""))
        found.append(
            Cost(
                suite=suite,
                rows=len(rows),
                failed=sum(row["status"] == "failed" for row in of_suite),
                same_plan=sum(row["same_plan"] for row in rows),
                over_default=weighted_geomean((row["invariant_over_default"], row["weight"]) for row in rows),
                worst=worst[0],
                worst_row=worst[1],
                torch_over_invariant=weighted_geomean((row["torch_over_invariant"], row["weight"]) for row in rows),
                slowest=slowest[0],
                slowest_row=slowest[1],
            )
        )
    return found
