#!/usr/bin/env python3
"""Measures the candidate plans of manifest rows and writes the table that the selector reads for this GPU model.

    python benchmarks/tune.py --suite decode,dense --out python/gemmx/select/tables/nvidia-h200.json

For each row the plans that the model ranks first, one a kernel and half as many further ones, are timed interleaved
with a cold L2 (the one timer of the benchmarks), in groups where the device does not hold the outputs of all; the best
three always among themselves. They are written fastest first; a plan of gemmx's own kernels stands before one of
cuBLASLt that is less than 1 % faster, which is within what two runs differ by.

A plan is timed twice: behind itself, as in the suites, and behind elementwise kernels, as in a model between two
layers. The ranks differ. A kernel that starts while the one before it still runs hides its start behind itself, and
can't behind a kernel that does not let it in; a large product behind itself is limited by the card's power, and between
kernels that wait for memory by what its tile reads of shared memory. A plan's rank is the worse of what it loses to the
best plan in either place, so that no place pays much for the other.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from gemmx import _C
from gemmx._files import write_atomically
from gemmx.bench import manifest, results
from gemmx.bench.cases import BEHIND, Call, Case, behind_elementwise
from gemmx.bench.suite import check_call, four_digits, kernel_family, request_for, torch_precision
from gemmx.bench.timer import time_arms
from gemmx.select.selector import decide, every_plan
from gemmx.select.tables import DEFAULT_NUMERICS, FORMAT, NUMERICS, row_dict

KEPT = 3  # plans written per row, beside the best of the own kernels
NOISE = 0.01
MANIFESTS = Path(__file__).parent / "manifests"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="comma-separated suites of benchmarks/manifests")
    parser.add_argument("--rows", default="", help="measure rows whose name matches this regular expression")
    parser.add_argument("--out", type=Path, required=True, help="the table; rows of other problems in it are kept")
    parser.add_argument("--numerics", choices=NUMERICS, default=NUMERICS[0], help="of the problems that rows are for")
    parser.add_argument("--candidates", type=int, default=9, help="kernels measured per row, cuBLASLt's besides")
    parser.add_argument("--budget-us", type=float, default=300_000.0, help="measured time per row")
    return parser.parse_args()


def candidate_plans(problem: Any, device: Any, count: int) -> list[Any]:
    """The best plan of each of the model's first kernels, always the library's, and half as many further plans."""
    ranked = decide(problem, device).candidates
    first = [c.plan for c in ranked[:count]] + [c.plan for c in ranked[count:] if c.kernel.is_library]
    further = [c.plan for c in every_plan(problem, device) if c.plan not in first]
    return first + further[: count // 2]


def is_own(plan: Any) -> bool:
    return kernel_family(plan.kernel) != "cublaslt"


def ranked(plans: Mapping[str, Any], *places: Mapping[str, float]) -> list[Any]:
    """The plans, best first, by the worst of their times over the best plan's in the same place.

    places: us of every plan in each. An own kernel gets the benefit of the noise.
    """
    best = [min(place.values(), default=1.0) for place in places]

    def loss(name: str) -> float:
        worst = max(place[name] / us for place, us in zip(places, best, strict=True))
        return worst * (1 - NOISE if is_own(plans[name]) else 1)

    return [plans[name] for name in sorted(places[0], key=loss)]


def time_plans(case: Case, calls: Mapping[str, Call], **times: Any) -> tuple[dict[str, float], dict[str, float]]:
    """(us behind itself, us behind elementwise kernels) of each call that ran."""
    arms = {name: case.arm(call) for name, call in calls.items()}
    arms |= {name + BEHIND: behind_elementwise(case, call) for name, call in calls.items()}
    timings = {name: timing for name, timing in time_arms(arms, sets=case.sets, **times).items() if not timing.error}
    ran = [name for name in calls if name in timings and name + BEHIND in timings]
    return {name: timings[name].median_us for name in ran}, {name: timings[name + BEHIND].median_us for name in ran}


def calls_at_once(case: Case) -> int:
    """Calls whose outputs the device holds: each arm keeps as many as there are input sets."""
    free, _ = torch.cuda.mem_get_info()
    outputs = max(1, 2 * case.sets * (case.bytes - case.read_bytes))
    return max(KEPT, free // 2 // outputs)


def measure(
    case: Case, device: Any, count: int, budget_us: float, **numerics: str
) -> tuple[float, list[dict[str, Any]]]:
    """(regret, table rows of one problem in order of preference).

    The regret is the time of the model's own choice over that of the best candidate: what a problem without a row
    loses. numerics: of the problem, in the op's words; nothing for the default.
    """
    problem = case.problem(**numerics)
    plans = {str(plan): plan for plan in candidate_plans(problem, device, count)}
    calls: dict[str, Call] = {}
    for name, plan in plans.items():
        calls[name] = case.gemmx_call(**request_for(plan), **numerics)
        check_call(case, calls[name], plan.kernel)  # right before fast
    alone: dict[str, float] = {}
    behind: dict[str, float] = {}
    names, size = list(plans), calls_at_once(case)
    for first in range(0, len(names), size):
        some = {name: calls[name] for name in names[first : first + size]}
        found = time_plans(case, some, warmup_us=20_000.0, budget_us=20_000.0 * len(some), min_rounds=5)
        alone |= found[0]
        behind |= found[1]
    order = ranked(plans, alone, behind)
    best = order[:KEPT]
    if not any(is_own(plan) for plan in best):
        best += [plan for plan in order[KEPT:] if is_own(plan)][:1]
    # Again among themselves: a large GEMM is limited by power, and slow arms beside it give it a cooler card.
    finals = time_plans(case, {str(plan): calls[str(plan)] for plan in best}, budget_us=budget_us)
    regret = alone[next(iter(plans))] / min(alone.values())  # of the model's first
    return regret, [row_dict(problem, plan, four_digits(finals[0][str(plan)])) for plan in ranked(plans, *finals)]


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    columns = tuple(row[c] for c in ("m", "n", "k", "batch", "dtypes", "majors", "epilogue", "align"))
    return (*columns, row.get("numerics", DEFAULT_NUMERICS))


def write_table(arguments: argparse.Namespace, device: Any, rows: list[dict[str, Any]]) -> int:
    """Writes the rows and what the table had of other problems; the number of rows."""
    new = {identity(row) for row in rows}
    kept = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    rows = rows + [row for row in kept if identity(row) not in new]
    text = ",\n".join(json.dumps(row) for row in rows)
    command = f"python benchmarks/tune.py --suite {arguments.suite}"
    if arguments.rows:
        command += f" --rows '{arguments.rows}'"
    if arguments.numerics != DEFAULT_NUMERICS:
        command += f" --numerics {arguments.numerics}"
    table = {
        "format": FORMAT,
        "gpu": device.name,
        "measured": results.make_header("tune", torch.cuda.current_device(), _C.source_hash(), command),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, f'{json.dumps(table)[:-1]}, "rows": [\n{text}\n]}}\n')
    return len(rows)


def rows_of(suites: str, pattern: str, numerics: str) -> dict[str, list[manifest.Row]]:
    """The rows to measure, of each suite; SystemExit where there are none."""
    found = {
        suite: [
            row
            for row in manifest.load(MANIFESTS / f"{suite}.csv")
            if not row.unsupported()
            and re.search(pattern, row.name)
            and (numerics == DEFAULT_NUMERICS or row.dtype_a != "f32")  # refused by name
        ]
        for suite in suites.split(",")
    }
    if not any(found.values()):
        raise SystemExit(f"--rows: got {pattern!r}; it takes a pattern that some row of {suites} has in its name")
    return found


def main() -> int:
    arguments = parse_arguments()
    suites = rows_of(arguments.suite, arguments.rows, arguments.numerics)
    device = _C.cuda_device(torch.cuda.current_device())
    rows: list[dict[str, Any]] = []
    regrets: list[float] = []
    count = 0
    numerics = {} if arguments.numerics == DEFAULT_NUMERICS else {"numerics": arguments.numerics}
    for suite, chosen in suites.items():
        for row in chosen:
            start = time.perf_counter()
            with torch_precision(row.compute):
                case = Case(row, l2_bytes=device.l2_bytes)
                regret, found = measure(case, device, arguments.candidates, arguments.budget_us, **numerics)
            rows += found
            regrets.append(regret)
            best = "  ".join(f"{r['us']:.1f} {r['plan']['kernel']} {r['plan']['splits']}" for r in found)
            seconds = time.perf_counter() - start
            print(f"{suite}/{row.name} {seconds:.1f} s, regret {regret:.3f}: {best}", file=sys.stderr)
        count = write_table(arguments, device, rows)  # after each suite: a run that is cut short has what it measured
    print(f"{count} rows for {device.name} in {arguments.out}")
    print(f"the model's choice over the best candidate: {geometric_mean(regrets):.3f}, at most {max(regrets):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
