"""The selector: choose(problem, device) -> Plan.

1. Kernels that supports() accepts and that are built for the device.
2. The caller's kernel, schedule and splits, honoured or refused with the reason.
3. A measured table of this GPU model (tables.py).
4. The analytic model (model.py) for the rest.

With numerics batch_invariant supports() accepts the kernels of one class only, and every plan has the cuts of K that
_C.splits_for prescribes, whatever M is.

Deterministic: equal times are decided by the registry's priority, then by name. Nothing is timed. The C++ plan
cache calls it once per Problem.
"""

from __future__ import annotations

import atexit
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gemmx import _C
from gemmx.select.model import (
    ELEMENT_BYTES,
    Estimate,
    KernelInfo,
    Machine,
    Shape,
    kernel_estimate,
    kernel_infos,
    library_estimate,
    machine_of,
    predict,
    shape_of,
    tile_grid,
    tile_order,
)
from gemmx.select.tables import TableRow, epilogue_kind, tables

# Scratch that a plan may take without being asked for by name: packed copies of unaligned operands, split-K's partials.
WORKSPACE_LIMIT = 512 << 20
# Splits that are tried; further ones cost a partial each and were never better in the model.
SPLITS = (2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that can run, and what the model says of it."""

    kernel: KernelInfo
    plan: _C.Plan
    estimate: Estimate

    @property
    def rank(self) -> tuple[float, int, str]:
        """Least first: time to a nanosecond, then the registry's priority, then the name."""
        return (round(self.estimate.us, 3), -self.kernel.priority, self.kernel.name)


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a selection: the plan, where it comes from, and everything that was considered."""

    problem: _C.Problem
    device: _C.Device
    chosen: Candidate
    reason: str  # "model", "request", or the table row
    table_row: TableRow | None
    candidates: tuple[Candidate, ...]  # the fastest by the model first
    rejected: dict[str, str]  # kernel -> why it can't run


def _prescribed_splits(problem: _C.Problem) -> int:
    """The cuts of K that batch_invariant prescribes; 0 where they are the caller's or the selector's choice."""
    if problem.numerics != "batch_invariant" or problem.k == 0:
        return 0
    return _C.splits_for(problem.b_columns, problem.k, ELEMENT_BYTES[problem.a.dtype])


def _split_counts(problem: _C.Problem, kernel: KernelInfo, shape: Shape, machine: Machine) -> tuple[int, ...]:
    """The splits asked for, or those worth an estimate: up to the cuts that K has and two waves of CTAs."""
    if problem.splits:
        return (problem.splits,)
    limit = _C.max_splits(shape.k, shape.bytes_a)
    _, _, tiles_m, tiles_n = tile_grid(kernel, shape)
    if problem.schedule != "split_k":
        limit = min(limit, 2 * machine.sms // (tiles_m * tiles_n * shape.batch))
    counts = tuple(s for s in SPLITS if s <= limit)
    return counts or ((1,) if problem.schedule == "split_k" else ())


def _stream_k_may_pay(kernel: KernelInfo, shape: Shape, machine: Machine) -> bool:
    """Whether whole tiles would leave a fifth of the SMs idle in the last of several waves. One wave is split-K's."""
    if "data_parallel" not in kernel.schedules:
        return True
    _, _, tiles_m, tiles_n = tile_grid(kernel, shape)
    tiles = tiles_m * tiles_n * shape.batch
    return tiles > machine.sms and 0 < tiles % machine.sms <= 0.8 * machine.sms


def _plans(problem: _C.Problem, kernel: KernelInfo, shape: Shape, machine: Machine) -> list[tuple[str, int]]:
    """(schedule, splits) of the plans of a kernel that answer the caller's request."""
    asked = problem.schedule
    if prescribed := _prescribed_splits(problem):
        able = set(kernel.schedules) - {"stream_k"}
        if prescribed > 1 and not kernel.adds_cuts_itself:
            able -= {"data_parallel"}
        if prescribed == 1 and asked == "auto":
            able -= {"split_k"}
        return [(schedule, prescribed) for schedule in sorted(able) if asked in ("auto", schedule)]
    plans: list[tuple[str, int]] = []
    for schedule in kernel.schedules:
        if asked not in ("auto", schedule) or (problem.splits > 1 and schedule != "split_k"):
            continue
        if schedule == "stream_k" and asked == "auto" and not _stream_k_may_pay(kernel, shape, machine):
            continue
        if schedule != "split_k":
            plans.append((schedule, 1))
        elif asked == "split_k" or problem.splits != 1:
            plans.extend((schedule, s) for s in _split_counts(problem, kernel, shape, machine))
    return plans


def _plans_of_kernel(
    problem: _C.Problem, device: _C.Device, kernel: KernelInfo, shape: Shape, machine: Machine
) -> Iterator[Candidate]:
    """The kernel's plans that answer the request and fit the workspace, the fastest by the model first."""
    plans = _plans(problem, kernel, shape, machine)
    if kernel.is_library:
        if plans:
            yield Candidate(kernel, _C.Plan(kernel.name, *plans[0]), library_estimate(shape, machine))
        return
    order = tile_order(kernel, shape, machine)
    ranked = sorted(
        ((kernel_estimate(kernel, shape, machine, schedule=s, splits=n, order=order), s, n) for s, n in plans),
        key=lambda item: (item[0].us, item[1], item[2]),
    )
    for estimate, schedule, splits in ranked:
        plan = _C.Plan(kernel.name, schedule, splits, order.raster, order.swizzle)
        # Only one class serves batch_invariant: a limit would refuse large M, where no other kernel may step in.
        asked = problem.schedule == schedule or problem.kernel == kernel.name or problem.numerics == "batch_invariant"
        if asked or _C.workspace_size(kernel.name, problem, plan, device) <= WORKSPACE_LIMIT:
            yield Candidate(kernel, plan, estimate)


def _refusals(
    problem: _C.Problem, device: _C.Device, exclude_families: Collection[str], only_built: bool
) -> dict[str, str]:
    """Kernel -> why it can't be chosen; "" when it can. Reasons follow the kernel's name in a sentence."""
    capability = device.capability
    if only_built and not any(_C.built_for(k.name, capability) for k in kernel_infos()):
        only_built = False  # a profile in a build without its architecture: nothing could be chosen, nor run
    reasons: dict[str, str] = {}
    for kernel in kernel_infos():
        if problem.kernel and kernel.name != problem.kernel:
            reasons[kernel.name] = f"is not {problem.kernel}, which was asked for"
        elif kernel.teaching and not problem.kernel:
            reasons[kernel.name] = "is a teaching kernel, run only when asked for by name"
        elif kernel.family in exclude_families:
            reasons[kernel.name] = f"belongs to {kernel.family}, which the caller excludes"
        else:
            reasons[kernel.name] = _C.supports(kernel.name, problem, device)
            if not reasons[kernel.name] and only_built and not _C.built_for(kernel.name, capability):
                archs = ";".join(_C.build_archs()) or "none"
                reasons[kernel.name] = f"is not built here for {capability / 10:.1f} (GEMMX_CUDA_ARCHS={archs})"
    return reasons


def form_of(problem: _C.Problem) -> str:
    """The op that computes such problems."""
    if problem.gate_gradient:
        return "_gated_dgrad"
    return "gemm" + "_gated" * problem.gated + "_aux" * problem.aux


def two_steps_reason(problem: _C.Problem, device: _C.Device, *, only_built: bool = True) -> str:
    """Why no kernel computes the form of the problem, so that it takes two launches; "" where one does.

    As _C.form_supported, which decides it for a call, and of profiles, too.
    """
    own = (problem.gated, problem.aux, problem.gate_gradient)
    if not any(own):
        return ""
    infos, form = {k.name: k for k in kernel_infos()}, form_of(problem)
    named = infos.get(problem.kernel)
    if named is not None:
        plain = not any(named.form)
        return f"{named.name} was asked for, which does not compute {form}" if plain else ""
    of_form = [k for k in infos.values() if k.form == own and not k.teaching]
    reasons = _refusals(problem, device, (), only_built)
    if any(not reasons[k.name] for k in of_form):
        return ""
    nearest = _nearest(problem, device, of_form)
    if nearest is None:
        return f"no kernel for {device.name} computes {form} of {problem}"
    return f"no kernel computes {form} of {problem}; the nearest, {nearest.name}, {reasons[nearest.name]}"


def _nearest(problem: _C.Problem, device: _C.Device, kernels: Iterable[KernelInfo]) -> KernelInfo | None:
    """The kernel of highest priority for the device and the dtype."""
    near = [
        k
        for k in kernels
        if not k.teaching and k.dtype_a == problem.a.dtype and k.min_capability <= device.capability <= k.max_capability
    ]
    return max(near, key=lambda k: (k.priority, k.name), default=None)


def _no_kernel(problem: _C.Problem, device: _C.Device, reasons: dict[str, str]) -> RuntimeError:
    """One sentence on why nothing runs the problem: the reason of the requested kernel, or of the nearest one."""
    if problem.kernel:
        return RuntimeError(
            f"kernel: {problem.kernel} can't run {problem} on {device.name}: it {reasons[problem.kernel]}."
        )
    nearest = _nearest(problem, device, (k for k in kernel_infos() if reasons[k.name]))
    detail = f"; the nearest, {nearest.name}, {reasons[nearest.name]}" if nearest else ""
    return RuntimeError(f"no kernel can run {problem} on {device.name}{detail}.")


def _from_table(
    problem: _C.Problem, device: _C.Device, shape: Shape, machine: Machine, reasons: dict[str, str]
) -> tuple[Candidate, TableRow] | None:
    """The best table row whose kernel can run the problem.

    A request for a kernel, schedule or splits is not in a row's key, so it is not answered from a table. A row of the
    default numerics serves batch_invariant where check_plan lets its class, schedule and splits pass; one of whole
    tiles with the prescribed cuts, too, where a CTA adds them up itself, which changes its time by little.
    """
    if problem.kernel or problem.schedule != "auto" or problem.splits:
        return None
    infos, prescribed = {k.name: k for k in kernel_infos()}, _prescribed_splits(problem)
    for row in tables().find(problem, device):
        kernel, plan = infos[row.plan.kernel], row.plan
        if prescribed > 1 and kernel.adds_cuts_itself and (plan.schedule, plan.splits) == ("data_parallel", 1):
            plan = _C.Plan(plan.kernel, plan.schedule, prescribed, plan.raster, plan.swizzle)
        if reasons[kernel.name] or _C.check_plan(plan, problem, device):
            continue
        unlimited = problem.numerics == "batch_invariant"
        if unlimited or _C.workspace_size(kernel.name, problem, plan, device) <= WORKSPACE_LIMIT:
            return Candidate(kernel, plan, predict(kernel, shape, machine, plan)), row
    return None


def decide(
    problem: _C.Problem,
    device: _C.Device,
    *,
    exclude_families: Collection[str] = (),
    only_built: bool = True,
) -> Decision:
    """Chooses the plan and keeps the account of it; see choose()."""
    shape, machine = shape_of(problem), machine_of(device)
    reasons = _refusals(problem, device, exclude_families, only_built)
    measured = _from_table(problem, device, shape, machine, reasons)
    candidates = _candidates(problem, device, shape, machine, reasons)
    chosen, reason, row = candidates[0], "request" if problem.kernel else "model", None
    if measured is not None:
        chosen, row = measured
        of = "" if row.epilogue == epilogue_kind(problem) else f", epilogue {row.epilogue}"
        of += "" if row.numerics == problem.numerics else f", numerics {row.numerics}"
        of += "" if chosen.plan == row.plan else " and K uncut"
        reason = f"{row.source}: M={row.m}{of} measured at {row.us:.1f} us"
    rejected = {name: reason for name, reason in reasons.items() if reason}
    return Decision(problem, device, chosen, reason, row, candidates, rejected)


def _candidates(
    problem: _C.Problem, device: _C.Device, shape: Shape, machine: Machine, reasons: dict[str, str]
) -> tuple[Candidate, ...]:
    """The best plan of every kernel that is not refused, the fastest by the model first; reasons gain the others."""
    found: list[Candidate] = []
    for kernel in kernel_infos():
        if reasons[kernel.name]:
            continue
        best = next(_plans_of_kernel(problem, device, kernel, shape, machine), None)
        if best is None:
            reasons[kernel.name] = _unanswered(problem)
        else:
            found.append(best)
    if not found:
        raise _no_kernel(problem, device, reasons)
    return tuple(sorted(found, key=lambda c: c.rank))


def _unanswered(problem: _C.Problem) -> str:
    asked = f"schedule {problem.schedule}" + (f" with {problem.splits} splits" if problem.splits else "")
    return f"has no plan for {asked} within {WORKSPACE_LIMIT >> 20} MiB of workspace"


def every_plan(problem: _C.Problem, device: _C.Device) -> list[Candidate]:
    """All plans that decide() chooses among, the fastest by the model first: what benchmarks/tune.py measures."""
    shape, machine = shape_of(problem), machine_of(device)
    reasons = _refusals(problem, device, (), only_built=True)
    usable = [kernel for kernel in kernel_infos() if not reasons[kernel.name]]
    plans = [c for kernel in usable for c in _plans_of_kernel(problem, device, kernel, shape, machine)]
    return sorted(plans, key=lambda c: (*c.rank, c.plan.schedule, c.plan.splits))


def choose(
    problem: _C.Problem,
    device: _C.Device,
    *,
    exclude_families: Collection[str] = (),
    only_built: bool = True,
) -> _C.Plan:
    """The Plan that runs the problem on the device. The same arguments and tables always give the same Plan.

    exclude_families: families that may not be chosen, e.g. ("cublaslt",) for what gemmx's own kernels do.
    only_built: leave out kernels that this library has no code for on the device; False for a profile.

    Raises RuntimeError, one sentence, when nothing can run the problem or the caller's request.
    """
    shape, machine = shape_of(problem), machine_of(device)
    reasons = _refusals(problem, device, exclude_families, only_built)
    # decide()'s choice, without the estimates of what was not chosen where the table answers.
    if (measured := _from_table(problem, device, shape, machine, reasons)) is not None:
        return measured[0].plan
    return _candidates(problem, device, shape, machine, reasons)[0].plan


def slow_path_reason(problem: _C.Problem, device: _C.Device, plan: _C.Plan) -> str:
    """Why the plan is slower than the problem's size allows, and what would make it fast; "" on the fast path.

    The fast path of 16-bit operands is a tensor-core kernel with 16-byte loads and stores.
    """
    shape = shape_of(problem)
    if problem.a.dtype not in ("bf16", "f16") or not (shape.m and shape.n and shape.k and shape.batch):
        return ""
    kernel = next(k for k in kernel_infos() if k.name == plan.kernel)
    for name, matrix in (("a", problem.a), ("b", problem.b), ("out", problem.d)):
        if matrix.major == "none":
            how = "it is copied before it is read by" if kernel.family == "sm90" else "it is read element by element by"
            return (
                f"{name} has strides ({matrix.row_stride}, {matrix.col_stride}), so that no dimension is contiguous "
                f"and {how} {kernel.name}; make {name} contiguous."
            )
        if matrix.vector_bytes < 16:
            if kernel.family == "sm90" and name != "out":
                how = f"it is copied to aligned rows before {kernel.name} runs"
            else:
                how = f"{kernel.name} runs without 16-byte accesses"
            return (
                f"{name}'s rows start at multiples of {matrix.vector_bytes} bytes, so that {how}; pad {name}'s leading "
                f"dimension to a multiple of {16 // shape.bytes_a} elements."
            )
    if kernel.numerics == "simt":
        return f"{kernel.name} does not use the tensor cores, and no other kernel takes {problem}."
    return ""


def install() -> None:
    """Makes choose() the selector of the op. Cleared at exit: C++ must not hold a Python function longer."""
    _C.set_selector(choose)
    atexit.register(_C.set_selector, None)
