"""Every kernel of this GPU on small problems, for compute-sanitizer: sanitize.py runs it once under each tool.

Operands and results are made and judged on the CPU, so that under the tools little but gemmx's own kernels runs. With
PYTORCH_NO_CUDA_MEMORY_CACHING=1 every tensor and workspace is an allocation with bounds of its own.
A line for every kernel tells how far it came. The last line is JSON: how often each kernel ran, and what was wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import torch  # noqa: E402

from forms import FORMS, OPS, Call, Form, GateCall  # noqa: E402
from gemmx import _C  # noqa: E402
from gemmx.ops import check, op_arguments  # noqa: E402
from problems import ALIGNED, Case, Instance, Layout, Placed, instance  # noqa: E402

# Tails in M, N and K, unaligned and aligned; every part of the epilogue; each schedule, with small M for the workspace.
CASES = (
    Case(17, 40, 72, bias="a", c="full", activation="relu"),
    Case(65, 71, 101, a=Layout(ld_pad=1), b=Layout(ld_pad=3), out=Layout(ld_pad=5), bias="f32", activation="gelu"),
    Case(65, 72, 264, a=ALIGNED, b=ALIGNED, out=ALIGNED, c="out", alpha=0.5, beta=0.25),
    Case(136, 264, 128, a=ALIGNED, b=ALIGNED, out=ALIGNED, batch=2),
    Case(1, 648, 1032, a=ALIGNED, b=ALIGNED, out=ALIGNED, splits=3),
    Case(33, 264, 1040, a=ALIGNED, b=ALIGNED, splits=4, bias="a", activation="silu"),
    Case(136, 264, 1024, a=ALIGNED, b=ALIGNED, schedule="stream_k"),
    Case(24, 16, 0, c="row", bias="a"),
)


def majors_of(spec: _C.KernelSpec, index: int) -> tuple[str, str]:
    """The kernel's majors; where it takes any, another pair for each case."""
    any_a, any_b = ("k", "m")[index % 2], ("k", "n")[index // 2 % 2]
    return any_a if spec.major_a == "none" else spec.major_a, any_b if spec.major_b == "none" else spec.major_b


def instances(spec: _C.KernelSpec) -> Iterator[Instance]:
    for index, case in enumerate(CASES):
        for precision in (None, "tf32") if spec.dtype_a == "f32" else (None,):
            moved = replace(case.with_majors(*majors_of(spec, index)), precision=precision)
            yield instance(moved, spec.dtype_a, "cpu")


def on_gpu(placed: Placed) -> torch.Tensor:
    """The same view of a copy of the buffer."""
    view = placed.view
    return placed.buffer.cuda().as_strided(view.shape, view.stride(), view.storage_offset())


def run(inst: Instance, spec: _C.KernelSpec, device: _C.Device) -> list[str] | None:
    """The faults; None where the kernel does not take the case."""
    placed = iter(inst.operands)
    a, b = on_gpu(next(placed)), on_gpu(next(placed))
    c = None if inst.c is None else on_gpu(next(placed))
    bias = None if inst.bias is None else on_gpu(next(placed))[0]
    kwargs = inst.kwargs | {"bias": bias, "kernel": spec.name} | ({} if c is None else {"c": c})
    out = inst.new_out()
    out_view = None if out is None else on_gpu(out)
    if inst.case.c == "out":
        kwargs["c"] = out_view
    problem = check(a, b, **kwargs, **({"out_dtype": inst.d_dtype} if out is None else {"out": out_view})).problem
    if _C.supports(spec.name, problem, device):
        return None
    if out is None or out_view is None:
        return inst.faults(torch.ops.gemmx.gemm(a, b, **op_arguments(kwargs), out_dtype=inst.d_dtype).cpu())
    torch.ops.gemmx.gemm_out(a, b, **op_arguments(kwargs), out=out_view)
    out.buffer.copy_(out_view.as_strided(out.buffer.shape, (1,), 0).cpu())
    return inst.faults(out.view, out)


FORM_CASES = (
    Case(17, 40, 72, a=ALIGNED, b=ALIGNED, bias="a"),
    Case(65, 71, 101, a=Layout(ld_pad=1), b=Layout(ld_pad=3), bias="f32", activation="gelu"),
    Case(1, 328, 1032, a=ALIGNED, b=ALIGNED),
    Case(136, 136, 128, a=ALIGNED, b=ALIGNED, out_dtype="f32"),
)


def run_form(form: Form, case: Case, spec: _C.KernelSpec, device: _C.Device) -> list[str] | None:
    """As run, of a form; a kernel without one takes two steps."""
    call = Call(form, case, spec.dtype_a, "cpu")
    a, b, *bias = (on_gpu(placed) for placed in call.inst.operands)
    terms = call.terms | {"bias": bias[0][0] if bias else None}
    options = call.options | {"kernel": spec.name, "out_dtype": call.inst.d_dtype}
    problem = check(a, b, **terms, **options, gated=form.gated, aux=form.aux).problem
    plain = problem if (spec.gated or spec.aux) else _C.plain_problem(problem)
    if _C.supports(spec.name, plain, device):
        return None
    result = form.op(a, b, **op_arguments(terms | options))
    d, *z = result if form.aux else (result,)
    return call.faults(d.cpu(), z[0].cpu() if z else None)


def run_forms(spec: _C.KernelSpec, device: _C.Device) -> Iterator[list[str]]:
    for form in FORMS:
        if spec.has_form and (spec.gated, spec.aux) != (form.gated, form.aux):
            continue
        for index, case in enumerate(FORM_CASES):
            faults = run_form(form, case.with_majors(*majors_of(spec, index)), spec, device)
            torch.cuda.synchronize()
            if faults is not None:
                yield faults


GATE_CASES = (
    Case(17, 40, 72, a=ALIGNED),
    Case(65, 72, 101, a=Layout(ld_pad=1), b=Layout(ld_pad=3), out=Layout(ld_multiple=8, ld_pad=8), activation="gelu"),
    Case(136, 264, 128, a=ALIGNED, alpha=0.5, activation="clamp", activation_args=(-0.5, 2.0)),
    Case(33, 71, 64, activation="relu"),  # halves of Z that TMA does not take: two steps
)


def run_gates(spec: _C.KernelSpec, device: _C.Device) -> Iterator[list[str]]:
    """A gate's gradient by its own kernels; a plain one takes two steps."""
    for index, case in enumerate(GATE_CASES):
        call = GateCall(case.with_majors(*majors_of(spec, index)), spec.dtype_a, "cpu")
        a, b, z = (on_gpu(placed) for placed in call.operands)
        options = call.options | {"kernel": spec.name}
        problem = check(a, b, z, gate_gradient=True, **options).problem
        if _C.supports(spec.name, problem if spec.gate_gradient else _C.plain_problem(problem), device):
            continue
        dz = OPS._gated_dgrad(a, b, z, **op_arguments(options))
        torch.cuda.synchronize()
        yield call.faults(dz.cpu(), two_steps=not spec.gate_gradient)


def run_backward_ops() -> None:
    """Vectors and single elements, with and without the sums. test_forms.py judges their values."""
    for rows, n in ((70, 264), (33, 75), (3, 1)):
        for dtype in (torch.bfloat16, torch.float32):
            grad, z = torch.ones(rows, n, dtype=dtype).cuda(), torch.ones(rows, 2 * n, dtype=dtype).cuda()
            for sums in (False, True):
                OPS.gated_backward(grad, z, activation="silu", bias_grad=sums)
                OPS.activation_backward(grad, grad, activation="gelu", bias_grad=sums)
            torch.cuda.synchronize()


def main() -> None:
    device = _C.cuda_device(0)
    ran: dict[str, int] = {}
    wrong: list[str] = []
    for spec in _C.kernels():
        if not (
            _C.built_for(spec.name, device.capability)
            and spec.min_capability <= device.capability <= spec.max_capability
        ):
            continue
        ran[spec.name] = 0
        for inst in () if spec.has_form else instances(spec):
            faults = run(inst, spec, device)
            torch.cuda.synchronize()
            if faults is not None:
                ran[spec.name] += 1
                wrong += [f"{spec.name}: {inst.case}: {fault}" for fault in faults]
        # Of the kernels that take two steps one family stands for all: its second step is theirs too.
        for runs, wanted in ((run_forms, spec.gated or spec.aux), (run_gates, spec.gate_gradient)):
            for faults in runs(spec, device) if wanted or spec.family == "simt" else ():
                ran[spec.name] += 1
                wrong += [f"{spec.name}: {fault}" for fault in faults]
        print(f"{spec.name}: {ran[spec.name]} problems", flush=True)
    run_backward_ops()
    print(json.dumps({"ran": ran, "wrong": wrong}))


if __name__ == "__main__":
    main()
