"""gemmx.explain: which kernel runs a call, why, what was rejected and why, and how far it is from the roofline.

print(gemmx.explain(a, b, bias=bias))                              the call's own tensors, nothing is launched
print(gemmx.explain.shape(16, 4096, 4096, device="h200"))          no tensors, no GPU
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gemmx import _C
from gemmx._checks import describe
from gemmx._dtypes import dtype_name
from gemmx._fold import fold_leading, fold_rows
from gemmx.ops import _precision_of_torch
from gemmx.roofline import Roofline, roofline
from gemmx.select.model import machine_of, second_step_us, shape_of
from gemmx.select.profiles import profile
from gemmx.select.selector import Candidate, Decision, decide, form_of, slow_path_reason, two_steps_reason
from gemmx.select.tables import TableRow

SHOWN_CANDIDATES = 5
SHOWN_REJECTED = 8
DEFAULT_PROFILE = "h200"


@dataclass(frozen=True, slots=True)
class NumericsCost:
    """What numerics batch_invariant costs a call: what the default would run, and what is rejected for it alone."""

    numerics: str
    numerics_class: str  # whose kernels alone serve; "any" where K is 0 and nothing is summed
    splits: int  # of K, for every M
    default_plan: dict[str, Any]
    over_default: float  # time over that of the default's plan: measured where a table has both, else by the model
    measured: bool
    rejected: dict[str, str]  # kernels that the default could choose

    def lines(self) -> list[str]:
        plan = self.default_plan
        splits = f", {plan['splits']} splits" if plan["splits"] > 1 else ""
        by = "measured" if self.measured else "by the model"
        first, more = next(iter(self.rejected.items()), None), len(self.rejected) - 1
        lines = [
            f"  numerics  {self.numerics}: class {self.numerics_class}, K in {self.splits} for every M; "
            f"{self.over_default:.2f}x the default's time ({by})",
            f"    the default runs {plan['kernel']} ({plan['schedule']}{splits})",
        ]
        if first:
            others = f" and {more} more" if more else ""
            lines.append(f"    rejected for it alone: {first[0]}{others}: {first[1]}")
        return lines


@dataclass(frozen=True, slots=True)
class Explanation:
    """A selection as plain data; str() prints it. Times in microseconds."""

    problem: str
    device: str
    kernel: str  # "" when D is empty and nothing is launched
    plan: dict[str, Any]
    why: str
    built: bool  # this library has code for the kernel on this device
    predicted_us: float
    measured_us: float | None  # of the table row, where one decided
    roofline: Roofline
    fraction_of_roofline: float  # roofline time / predicted time
    bound: str  # the model's largest term
    tiles: int  # output tiles; 0 where the kernel chooses its own (cuBLASLt)
    ctas: int
    waves: float
    tail_waste: float  # share of tile work that is padding or idle SMs, 0 to 1
    slow_path: str  # why this is not the fast path, "" when it is
    form: str = "gemm"  # the op: gemm, gemm_gated, gemm_aux, gemm_gated_aux
    second_step_us: float = 0.0  # of the elementwise launch after `kernel`, where the form takes two; in predicted_us
    numerics: NumericsCost | None = None  # of batch_invariant
    candidates: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The same as nested plain types, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device}"]
        if not self.kernel:
            return "\n".join([*lines, f"  {self.why}"])
        plan = ", ".join(f"{k} {v}" for k, v in self.plan.items() if k in ("schedule", "splits", "raster", "swizzle"))
        lines += [f"  kernel    {self.kernel}" + ("" if self.built else "  (not built here)")]
        lines += [f"  plan      {plan}", f"  why       {self.why}"]
        if self.second_step_us:
            lines.append(
                f"  form      {self.form} in two steps: the product into a workspace, then an elementwise "
                f"launch ({self.second_step_us:.2f} us)"
            )
        elif self.form != "gemm":
            lines.append(f"  form      {self.form} in one launch")
        if self.tiles:
            lines.append(
                f"  tiles     {self.tiles} tiles, {self.ctas} CTAs, {self.waves:.2f} waves, "
                f"{100 * self.tail_waste:.1f} % tail waste"
            )
        roof = self.roofline
        lines += [
            f"  work      {roof.flops / 1e9:.3f} GFLOP, {roof.bytes / 1e6:.3f} MB, {roof.intensity:.1f} FLOP/B "
            f"(ridge {roof.ridge:.0f})",
            f"  traffic   naive {roof.bytes_naive / 1e6:.1f} MB, {roof.intensity_naive:.2f} FLOP/B; in tiles of "
            f"{roof.tile[0]}x{roof.tile[1]} {roof.bytes_tiled / 1e6:.1f} MB, {roof.intensity_tiled:.1f} FLOP/B",
            f"  roofline  {roof.time_us:.2f} us, {roof.bound}-bound "
            f"({roof.peak_tflops:.0f} TFLOP/s, {roof.dram_gbps:.0f} GB/s)",
            f"  predicted {self.predicted_us:.2f} us, {100 * self.fraction_of_roofline:.0f} % of the roofline, "
            f"limited by {self.bound}",
        ]
        if self.slow_path:
            lines.append(f"  slow path {self.slow_path}")
        if self.numerics:
            lines += self.numerics.lines()
        lines.append("  candidates")
        for c in self.candidates[:SHOWN_CANDIDATES]:
            splits = f", {c['splits']} splits" if c["splits"] > 1 else ""
            lines.append(f"    {c['us']:9.2f} us  {c['kernel']} ({c['schedule']}{splits}; {c['bound']})")
        lines += _rejected_lines(self.rejected)
        return "\n".join(lines)


def _rejected_lines(rejected: dict[str, str]) -> list[str]:
    """Kernels grouped by their reason, the rarest reasons first: those are about this problem."""
    groups: dict[str, list[str]] = {}
    for kernel, reason in rejected.items():
        groups.setdefault(reason, []).append(kernel)
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[0]))
    lines = [f"  rejected  {len(rejected)} kernels"] if rejected else []
    for reason, kernels in ordered[:SHOWN_REJECTED]:
        more = f" and {len(kernels) - 1} more" if len(kernels) > 1 else ""
        lines.append(f"    {kernels[0]}{more}: {reason}")
    if len(ordered) > SHOWN_REJECTED:
        lines.append(f"    ... and {len(ordered) - SHOWN_REJECTED} more reasons: to_dict() has all")
    return lines


def _candidate_dict(candidate: Candidate) -> dict[str, Any]:
    return {
        "kernel": candidate.kernel.name,
        "schedule": candidate.plan.schedule,
        "splits": candidate.plan.splits,
        "us": candidate.estimate.us,
        "bound": candidate.estimate.bound,
    }


def _why(decision: Decision) -> str:
    if decision.table_row is not None:
        return f"measured table {decision.reason}"
    if decision.problem.kernel:
        teaching = "; a teaching kernel, the prediction is that of a tuned kernel with its tile"
        return "asked for by name" + (teaching if decision.chosen.kernel.teaching else "")
    others = [c for c in decision.candidates if c is not decision.chosen]
    if not others:
        return "the only kernel that can run it"
    ratio = others[0].estimate.us / decision.chosen.estimate.us
    return f"fastest by the model of {len(decision.candidates)}, {ratio:.2f}x ahead of {others[0].kernel.name}"


def explain_problem(problem: _C.Problem, device: _C.Device, *, only_built: bool = True) -> Explanation:
    """Explains the selection of a non-empty Problem. RuntimeError when nothing can run it."""
    two_steps = two_steps_reason(problem, device, only_built=only_built)
    computed = _C.plain_problem(problem) if two_steps else problem
    decision = decide(computed, device, only_built=only_built)
    chosen, shape = decision.chosen, shape_of(problem)
    second = second_step_us(problem, machine_of(device)) if two_steps else 0.0
    estimate, row = chosen.estimate, _measured_row(decision)
    roof = _roofline_of(problem, device, chosen)
    return Explanation(
        problem=str(problem),
        device=device.name,
        kernel=chosen.kernel.name,
        plan=chosen.plan.to_dict(),
        why=_why(decision),
        built=_C.built_for(chosen.kernel.name, device.capability),
        predicted_us=estimate.us + second,
        measured_us=row.us if row else None,
        roofline=roof,
        fraction_of_roofline=roof.time_us / (second + (row.us if row and row.m == shape.m else estimate.us)),
        bound=estimate.bound,
        tiles=estimate.tiles,
        ctas=estimate.ctas,
        waves=estimate.waves,
        tail_waste=estimate.tail_waste,
        slow_path=f"{two_steps}." if two_steps else slow_path_reason(problem, device, chosen.plan),
        form=form_of(problem),
        second_step_us=second,
        numerics=_numerics_cost(decision, only_built),
        candidates=[_candidate_dict(c) for c in decision.candidates],
        rejected=decision.rejected,
    )


def _measured_row(decision: Decision) -> TableRow | None:
    """The table row whose plan was chosen as it was measured, not with other cuts of K."""
    row = decision.table_row
    return row if row and row.plan == decision.chosen.plan else None


def _numerics_cost(decision: Decision, only_built: bool) -> NumericsCost | None:
    """The decision beside that of the same problem with the default numerics; None where it asks for no other."""
    problem, device = decision.problem, decision.device
    if problem.numerics == "deterministic":
        return None
    default = problem.copy()
    default.numerics = "deterministic"
    free = decide(default, device, only_built=only_built)
    own, other = _measured_row(decision), free.table_row
    if own and other and (own.m, own.epilogue, own.source) == (other.m, other.epilogue, other.source):
        over, measured = own.us / other.us, True
    else:
        over, measured = decision.chosen.estimate.us / free.chosen.estimate.us, False
    return NumericsCost(
        numerics=problem.numerics,
        numerics_class=_C.batch_invariant_class(device.capability) if problem.k else "any",
        splits=decision.chosen.plan.splits,
        default_plan=free.chosen.plan.to_dict(),
        over_default=over,
        measured=measured,
        rejected={name: reason for name, reason in decision.rejected.items() if name not in free.rejected},
    )


def _roofline_of(problem: _C.Problem, device: _C.Device, chosen: Candidate) -> Roofline:
    """The roofline with the bytes this problem really has.

    C and bias read, a shared operand counted once, a gated D of half the product's columns, Z written.
    """
    shape = shape_of(problem)
    packed = (shape.m * shape.k * shape.bytes_a + shape.k * shape.n * shape.bytes_b) * shape.batch
    tile = chosen.kernel.tile[1::-1] if chosen.kernel.swap_ab else chosen.kernel.tile[:2]
    return roofline(
        shape.m,
        shape.n,
        shape.k,
        (shape.dtype, problem.d.dtype),
        device,
        batch=shape.batch,
        tile=(tile[0], tile[1]) if all(tile) else (128, 128),
        precision=shape.precision,
        extra_bytes=shape.read_bytes - packed + shape.write_bytes - shape.m * shape.n * shape.batch * shape.bytes_d,
    )


def _nothing_to_launch(checked: _C.Checked, device: _C.Device) -> Explanation:
    problem = checked.problem
    return Explanation(
        problem=str(problem),
        device=device.name,
        kernel="",
        plan={},
        why=f"D has shape {tuple(checked.d_sizes)}: it is empty and nothing is launched",
        built=True,
        predicted_us=0.0,
        measured_us=None,
        roofline=roofline(problem.m, problem.n, problem.k, (problem.a.dtype, problem.d.dtype), device),
        fraction_of_roofline=1.0,
        bound="overhead",
        tiles=0,
        ctas=0,
        waves=0.0,
        tail_waste=0.0,
        slow_path="",
    )


def _explain(checked: _C.Checked, device: _C.Device, only_built: bool) -> Explanation:
    if checked.empty:
        return _nothing_to_launch(checked, device)
    return explain_problem(checked.problem, device, only_built=only_built)


def check_shape(
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    *,
    batch: int = 1,
    out_dtype: str | None = None,
    major_a: str = "k",
    major_b: str = "k",
    lda: int = 0,
    ldb: int = 0,
    ldc: int = 0,
    ldd: int = 0,
    align_bytes: int = 16,
    c: str | None = None,
    bias: str | None = None,
    gated: bool = False,
    aux: bool = False,
    gate_gradient: bool = False,
    **options: Any,
) -> _C.Checked:
    """The checked call for operands that are described instead of given.

    dtype: of A and B; out_dtype: of D; c and bias: their dtypes where present ("bf16", "f16", "f32").
    major_a: "k" (M, K) row-major, "m" stored (K, M); major_b: "k" stored (N, K), "n" (K, N) row-major.
    gated: gemm_gated, whose b and bias have 2 n columns, gate | up. aux: gemm_aux, which keeps Z. gate_gradient: the
    backward of a gate on a product, whose Z is given by ldc and has 2 n columns.
    lda to ldd: leading dimensions in elements, 0 packed. align_bytes: alignment of every matrix.
    options: alpha, beta, activation, activation_args, precision, numerics, schedule, splits, kernel as in gemm.
    """
    for name, value, takes in (("major_a", major_a, "km"), ("major_b", major_b, "kn")):
        if value not in tuple(takes):
            raise ValueError(f"{name} is {value!r}, it must be {takes[0]!r} or {takes[1]!r}.")
    # Any address of this alignment stands for a pointer; far apart, so that nothing overlaps.
    step = 1 << 46
    addresses = iter(range(step + (align_bytes if align_bytes < 16 else 0), 8 * step, step))

    def matrix(name: str, rows: int, cols: int, row_major: bool, ld: int) -> _C.TensorDesc:
        extent = cols if row_major else rows
        if ld and ld < extent:
            raise ValueError(f"{name} is {ld}, it must be at least {extent}, the length of a row in memory.")
        ld = ld or max(extent, 1)
        sizes, strides = [rows, cols], [ld, 1] if row_major else [1, ld]
        if batch > 1:
            sizes, strides = [batch, *sizes], [ld * (rows if row_major else cols), *strides]
        element = {"lda": dtype, "ldb": dtype, "ldc": c}.get(name) or out_dtype or dtype
        return _C.TensorDesc(element, "cuda", 0, sizes, strides, next(addresses))

    columns = 2 * n if gated else n
    operands: dict[str, Any] = {}
    if gate_gradient:
        c = c or dtype
    if c:
        operands["c"] = matrix("ldc", m, 2 * n if gate_gradient else n, True, ldc)
    if bias:
        operands["bias"] = _C.TensorDesc(bias, "cuda", 0, [columns], [1], next(addresses) & ~15)
    if (ldd or align_bytes < 16) and not (gated or aux or gate_gradient):  # whose D is always their own
        options["out"] = matrix("ldd", m, n, True, ldd)
    a = matrix("lda", m, k, major_a == "k", lda)
    b = matrix("ldb", k, columns, major_b == "n", ldb)
    options |= {"gated": gated, "aux": aux, "gate_gradient": gate_gradient}
    return _C.check_gemm(a, b, **operands, out_dtype=out_dtype, **options)


class _Explain:
    """`gemmx.explain`; a class only so that `explain.shape` exists."""

    def __call__(  # noqa: PLR0917  the op's own order
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale_a: torch.Tensor | None = None,
        scale_b: torch.Tensor | None = None,
        scale_d: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        activation: str | None = None,
        activation_args: Sequence[float] | None = None,
        out_dtype: torch.dtype | None = None,
        precision: str | None = None,
        numerics: str | None = None,
        schedule: str | None = None,
        splits: int = 0,
        kernel: str | None = None,
        gated: bool = False,
        aux: bool = False,
        gate_gradient: bool = False,
        device: str | _C.Device | None = None,
    ) -> Explanation:
        """Explains `gemmx.gemm` of these tensors, which may be real, meta or fake; nothing is computed.

        gated: explains `gemmx.gemm_gated`, which takes no c and no scale_d. aux: `gemmx.gemm_aux`, or with gated what
        `gemmx.gemm_gated` runs where autograd records it. gate_gradient: the launch in the backward of
        `gemmx.nn.GatedMLP` that computes the product a @ b and the gate's backward on it; a is the gradient, b the
        weight of down_proj as it is stored and c the Z that the forward kept.

        device: a profile's name or a Device; by default the tensors' GPU, and the h200 profile where there is
        none. Raises as the op does for a wrong call, RuntimeError when nothing can run it.
        """
        if precision is None:
            precision = _precision_of_torch(a)
        if gated and a.dim() > 2:
            a = fold_rows(a)
        if a.dim() > 3:
            a, c, out, _ = fold_leading(a, b, c, out)
        checked = _C.check_gemm(
            describe(a),
            describe(b),
            *(None if t is None else describe(t) for t in (c, bias, scale_a, scale_b, scale_d)),
            out=None if out is None else describe(out),
            alpha=alpha,
            beta=beta,
            activation=activation,
            activation_args=activation_args,
            out_dtype=None if out_dtype is None else dtype_name(out_dtype),
            precision=precision,
            numerics=numerics,
            schedule=schedule,
            splits=splits,
            kernel=kernel,
            gated=gated,
            aux=aux,
            gate_gradient=gate_gradient,
        )
        target, only_built = _target(device, a.device)
        return _explain(checked, target, only_built)

    def shape(
        self, m: int, n: int, k: int, dtype: str = "bf16", *, device: str | _C.Device = DEFAULT_PROFILE, **options: Any
    ) -> Explanation:
        """Explains a call given by its shape: no tensors and no GPU needed. Options as in check_shape()."""
        target, only_built = _target(device, None)
        return _explain(check_shape(m, n, k, dtype, **options), target, only_built)


def _target(device: str | _C.Device | None, tensor_device: torch.device | None) -> tuple[_C.Device, bool]:
    """(Device, whether only built kernels count). A profile is asked about all kernels, a GPU about those it has."""
    if isinstance(device, str):
        return profile(device), False
    if device is not None:
        return device, True
    if torch.cuda.is_available() and _C.build_archs():
        on_gpu = tensor_device is not None and tensor_device.type == "cuda" and tensor_device.index is not None
        index = tensor_device.index if on_gpu and tensor_device is not None else torch.cuda.current_device()
        return _C.cuda_device(index), True
    return profile(DEFAULT_PROFILE), False


explain = _Explain()
