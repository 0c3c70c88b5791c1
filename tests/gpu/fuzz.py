"""Random problems on the GPU against float64, for a number of problems or of seconds: `make fuzz`.

    python tests/gpu/fuzz.py --problems 20000 --seconds 90 [--seed N]

A sixth of the problems are of gemm_gated, gemm_aux, gemm_gated_aux or a gate's gradient. A quarter run the selector's
plan, the others that kernel of those that take it which has run least.
Operands and out lie in buffers of NaN that must not change, D and workspaces come from memory full of NaN. The float64
result is computed on the GPU. Under batch_invariant rows are computed once more, alone and in another order and number,
and compared bit for bit. Problem i of seed s is drawn by RandomDraw(s * SEED_STRIDE + i). A failure is shrunk,
printed as a Case for tests/problems.py (FOUND), and fails the run. Writes tests/gpu_record/fuzz.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "gpu"), str(TESTS.parent / "cmake")]

import torch  # noqa: E402

import problems  # noqa: E402
from forms import FORMS, Call, Form, GateCall  # noqa: E402
from fuzz_cases import RandomDraw, draw_case, refusal_of_numerics, rows_to_compare, shrink  # noqa: E402
from gemmx import _C  # noqa: E402
from gemmx._files import write_atomically  # noqa: E402
from gemmx.ops import check  # noqa: E402
from problems import Case, Instance, differing_bits  # noqa: E402
from recording import checked_run  # noqa: E402

KERNELS = {spec.name: spec for spec in _C.kernels()}
SEED_STRIDE = 1 << 32  # seeds of runs never overlap


@dataclass
class Tally:
    problems: int = 0
    refused: int = 0
    empty: int = 0
    selected: int = 0
    compared: int = 0  # elements, bit for bit, under batch_invariant
    kernels: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def kernels_for(inst: Instance, device: _C.Device) -> tuple[list[str], bool]:
    """The built kernels that take the case as it asks, and whether D is empty. Raises what the checks raise."""
    out = inst.new_out()
    kwargs: dict[str, Any] = inst.kwargs | ({"out_dtype": inst.d_dtype} if out is None else {"out": out.view})
    if out is not None and inst.case.c == "out":
        kwargs["c"] = out.view
    checked = check(inst.a, inst.b, **kwargs)
    names = [
        name
        for name, spec in KERNELS.items()
        if not checked.empty
        and spec.dtype_a == checked.problem.a.dtype
        and _C.built_for(name, device.capability)
        and not _C.supports(name, checked.problem, device)
    ]
    return names, checked.empty


def run_case(case: Case, dtype: str, kernel: str | None, device: _C.Device, tally: Tally) -> tuple[str, list[str]]:
    """(the kernel, or "" for the selector's; the faults) of one problem.

    kernel: "" the selector's plan; a name that kernel, no fault where it does not take the problem; None one of those
    that take it, which has run least so far.
    """
    inst = problems.instance.__wrapped__(case, dtype)
    if sentence := refusal_of_numerics(case, dtype):
        return "", expect_refusal(inst, sentence, tally)
    names, empty = kernels_for(inst, device)
    tally.empty += empty
    if kernel and kernel not in names:
        return kernel, []
    if kernel is None:
        kernel = min(names, key=lambda name: (tally.kernels[name], name), default="")
    if not kernel and not empty and all(KERNELS[name].teaching for name in names):
        return "", expect_refusal(inst, "no kernel can run", tally)
    if kernel:
        tally.kernels[kernel] += 1
    else:
        tally.selected += 1
    out = inst.new_out()
    d = inst.run(out, kernel=kernel or None)
    return kernel, inst.faults(d, out) + faults_of_rows(inst, d, tally)


def in_a_form(form: Form, case: Case) -> Case:
    """What of the case the ops of the form take: D their own, one matrix, no requests; gated without C."""
    c = "" if form.gated or case.c == "out" else case.c
    return replace(
        case, batch=None, shared="", out=None, c=c, schedule=None, splits=0, numerics=None, special="", scale=1.0
    )


GATE_GRADIENT = "gate gradient"


def as_gate_gradient(case: Case) -> Case:
    """What of the case _gated_dgrad takes; its out is Z's layout. Two steps would round a large dH to infinity."""
    return replace(
        in_a_form(FORMS[0], case), out=case.out, c="", bias="", beta=1.0, out_dtype=None, alpha=min(case.alpha, 2.0)
    )


def run_gate(case: Case, dtype: str, kernel: str | None, device: _C.Device, tally: Tally) -> tuple[str, list[str]]:
    """As run_form, of a gate's gradient."""
    call = GateCall(case, dtype)
    problem = call.problem()
    names = [
        name
        for name, spec in KERNELS.items()
        if spec.gate_gradient
        and min(problem.m, problem.n) > 0
        and _C.built_for(name, device.capability)
        and not _C.supports(name, problem, device)
    ]
    if kernel and kernel not in names:
        return kernel, []
    if kernel is None:
        kernel = min(names, key=lambda name: (tally.kernels[name], name), default="")
    if kernel:
        tally.kernels[kernel] += 1
    else:
        tally.selected += 1
    tally.forms[GATE_GRADIENT] += 1
    return kernel, call.faults(*call.run(kernel or None), two_steps=not names)


def run_form(  # noqa: PLR0917, as run_case
    form: Form, case: Case, dtype: str, kernel: str | None, device: _C.Device, tally: Tally
) -> tuple[str, list[str]]:
    """As run_case, in a form: by its kernels or, where none takes the problem, in two steps."""
    call = Call(form, case, dtype)
    checked = call.problem()

    def runs(name: str) -> bool:
        """By name, as some of mma.sync's are only."""
        named = checked.copy()
        named.kernel = name
        return not _C.supports(name, named, device)

    names = [
        name
        for name, spec in KERNELS.items()
        if (spec.gated, spec.aux) == (form.gated, form.aux)
        and min(checked.m, checked.n) > 0
        and _C.built_for(name, device.capability)
        and runs(name)
    ]
    if kernel and kernel not in names:
        return kernel, []
    if kernel is None:
        kernel = min(names, key=lambda name: (tally.kernels[name], name), default="")
    if kernel:
        tally.kernels[kernel] += 1
    else:
        tally.selected += 1
    tally.forms[str(form)] += 1
    return kernel, call.faults(*call.run(kernel or None))


def faults_of_rows(inst: Instance, d: torch.Tensor, tally: Tally) -> list[str]:
    """Under batch_invariant: rows whose bits are others where the selector computes them alone."""
    faults = []
    for rows in rows_to_compare(inst.case):
        alone = inst.of_rows(rows)
        tally.compared += alone.numel()
        if differing := differing_bits(alone, d[..., rows, :]):
            faults.append(f"{differing} of {alone.numel()} elements have other bits as rows {rows} of another M")
    return faults


def expect_refusal(inst: Instance, sentence: str, tally: Tally) -> list[str]:
    try:
        inst.run(inst.new_out())
    except (RuntimeError, ValueError) as error:
        tally.refused += 1
        return [] if sentence in str(error) else [f"refused with {str(error)!r}, expected {sentence!r}"]
    return [f"was not refused with {sentence!r}"]


def attempt(  # noqa: PLR0917, as run_case
    form: Form | str | None, case: Case, dtype: str, kernel: str | None, device: _C.Device, tally: Tally
) -> tuple[str, list[str]]:
    try:
        if isinstance(form, str):
            return run_gate(case, dtype, kernel, device, tally)
        if form is not None:
            return run_form(form, case, dtype, kernel, device, tally)
        return run_case(case, dtype, kernel, device, tally)
    except (ValueError, RuntimeError) as error:
        return kernel or "", [f"raised {type(error).__name__}: {error}"]


def fuzz(arguments: argparse.Namespace, device: _C.Device) -> tuple[Tally, float]:
    tally = Tally()
    start = time.perf_counter()
    while tally.problems < arguments.problems and time.perf_counter() - start < arguments.seconds:
        draw = RandomDraw(arguments.seed * SEED_STRIDE + tally.problems)
        case, dtype = draw_case(draw)
        wanted = "" if draw.integer(0, 3) == 0 else None
        form = (*FORMS, GATE_GRADIENT)[draw.integer(0, len(FORMS))] if draw.integer(0, 5) == 0 else None
        if form is not None:
            case = as_gate_gradient(case) if isinstance(form, str) else in_a_form(form, case)
        if tally.problems % 256 == 0:
            problems.instance.cache_clear()  # of the calls in a form
        if tally.problems % 16 == 0:
            torch.full((1 << 22,), torch.nan, device="cuda")  # what the allocator cuts workspaces from
        tally.problems += 1
        tally.dtypes[dtype] += 1
        kernel, faults = attempt(form, case, dtype, wanted, device, tally)
        if faults:
            simplest = shrink(
                case, lambda x, f=form, t=dtype, k=kernel: bool(attempt(f, x, t, k, device, Tally())[1]), 60
            )
            faults = attempt(form, simplest, dtype, kernel, device, Tally())[1] or faults
            tally.failures.append(
                f"seed {arguments.seed}, problem {tally.problems - 1}, {kernel or 'the selector'}, {form or 'gemm'}, "
                f"{dtype}, {simplest!r}: {faults[0]}"
            )
            print(tally.failures[-1], flush=True)
            if len(tally.failures) >= arguments.max_failures:
                break
    return tally, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=90.0, help="stop after this time, whatever is left")
    parser.add_argument("--seed", type=int, default=int(time.time()) % (1 << 31))
    parser.add_argument("--max-failures", type=int, default=10)
    parser.add_argument("--record", type=Path, default=TESTS / "gpu_record" / "fuzz.json")
    arguments = parser.parse_args()
    header = checked_run()
    device = _C.cuda_device(0)
    tally, seconds = fuzz(arguments, device)
    torch.cuda.synchronize()
    possible = [
        name
        for name, spec in KERNELS.items()
        if _C.built_for(name, device.capability) and spec.min_capability <= device.capability <= spec.max_capability
    ]
    record = {
        "header": header,
        "fuzz": {
            "seed": arguments.seed,
            "problems": tally.problems,
            "seconds": round(seconds, 1),
            "refused": tally.refused,
            "empty": tally.empty,
            "by the selector": tally.selected,
            "batch_invariant elements compared": tally.compared,
            "dtypes": dict(sorted(tally.dtypes.items())),
            "in a form": dict(sorted(tally.forms.items())),
            "kernels": {name: tally.kernels[name] for name in sorted(possible)},
            "failures": tally.failures,
        },
    }
    write_atomically(arguments.record, json.dumps(record, indent=2) + "\n")
    idle = [name for name in possible if not tally.kernels[name]]
    print(
        f"{tally.problems} problems, seed {arguments.seed}, {seconds:.1f} s: {len(tally.failures)} failures; "
        f"{tally.selected} by the selector, {tally.refused} refused, {len(possible) - len(idle)} of {len(possible)} "
        f"kernels{', never ran: ' + ', '.join(idle) if idle else ''}"
    )
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
