"""From a manifest row to tensors and to the calls that are timed: the op, torch's own, and cuBLASLt's best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmx import _C
from gemmx._dtypes import DTYPES
from gemmx.bench.manifest import PRECISIONS, Row
from gemmx.bench.timer import Arm, sets_for
from gemmx.ops import describe, op_arguments

# The activation that torch users write after the product.
TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
}


@dataclass(frozen=True)
class Inputs:
    """One input set. Shapes as the op takes them: 2-D, or 3-D with a leading batch; bias (N,). N as in the manifest."""

    a: Tensor
    b: Tensor
    c: Tensor | None
    bias: Tensor | None


GATED_ACTIVATION = "silu"  # what swiglu applies to the gate

# One computation on one input set; the second argument is D to write, None where the call allocates its own.
Call = Callable[[Inputs, Tensor | None], Tensor]


def matrix(
    rows: int, cols: int, *, batch: int, contiguous_cols: bool, ld: int, dtype: torch.dtype, align: int, device: str
) -> Tensor:
    """Random normal (rows, cols), or (batch, rows, cols) for batch > 1, in memory of its own.

    contiguous_cols: the column index has stride 1, else the row index. ld: distance in elements between
    neighbours of the other index, 0 = packed. align: largest power of two (at most 16) that divides the address.
    """
    inner, outer = (cols, rows) if contiguous_cols else (rows, cols)
    pitch = ld or inner
    if pitch < inner:
        raise ValueError(f"leading dimension is {pitch}; a row of {inner} elements needs at least that many")
    if align < 16 and align % dtype.itemsize:
        raise ValueError(f"align_bytes is {align}; {dtype} needs a multiple of {dtype.itemsize}")
    lead = 0 if align >= 16 else align // dtype.itemsize
    storage = torch.empty(lead + batch * outer * pitch, dtype=dtype, device=device).normal_()
    strides = (outer * pitch, pitch, 1) if contiguous_cols else (outer * pitch, 1, pitch)
    view = storage.as_strided((batch, rows, cols), strides, lead)
    return view if batch > 1 else view[0]


class Case:
    """A row with its input sets on one device, and the calls on them.

    Every call returns a new D, as users call it; a row that prescribes D's leading dimension or alignment is
    written into D given beforehand, by every arm. The last D of each set is kept, so that the outputs of an
    arm rotate through as many buffers as its inputs do.
    """

    def __init__(self, row: Row, device: str = "cuda", sets: int | None = None, l2_bytes: int = 0) -> None:
        self.row = row
        self.device = device
        self.sets = sets if sets is not None else sets_for(self.read_bytes, l2_bytes)
        self.inputs = [self._make_inputs() for _ in range(self.sets)]
        self.needs_out = bool(row.ldd) or row.align_bytes < 16

    # -- sizes ---------------------------------------------------------------------------------------------

    @property
    def read_bytes(self) -> int:
        """Bytes of A, B, C and bias, each once."""
        r = self.row
        total = r.batch * (r.M * r.K * DTYPES[r.dtype_a].itemsize + r.K * r.N * DTYPES[r.dtype_b].itemsize)
        if r.dtype_c:
            total += r.batch * r.M * r.N * DTYPES[r.dtype_c].itemsize
        return total + (r.N * DTYPES[r.dtype_d].itemsize if r.has_bias else 0)

    @property
    def bytes(self) -> int:
        """The fewest bytes that must move: every input read once, D written once."""
        return self.read_bytes + self.row.batch * self.row.M * self.row.d_columns * DTYPES[self.row.dtype_d].itemsize

    # -- tensors -------------------------------------------------------------------------------------------

    def _make_inputs(self) -> Inputs:
        r = self.row

        a = self._matrix(r.M, r.K, r.major_a == "k", r.lda, r.dtype_a)
        # B scaled so that A @ B has unit variance and activations are exercised around 0.
        b = self._matrix(r.K, r.N, r.major_b == "n", r.ldb, r.dtype_b).mul_(max(1, r.K) ** -0.5)
        c = self._matrix(r.M, r.N, True, r.ldc, r.dtype_c) if r.dtype_c else None
        bias = torch.randn(r.N, dtype=DTYPES[r.dtype_d], device=self.device) if r.has_bias else None
        return Inputs(a, b, c, bias)

    def _matrix(self, rows: int, cols: int, contiguous_cols: bool, ld: int, dtype: str) -> Tensor:
        return matrix(rows, cols, batch=self.row.batch, contiguous_cols=contiguous_cols, ld=ld, dtype=DTYPES[dtype],
                      align=self.row.align_bytes, device=self.device)  # fmt: skip

    def make_out(self) -> Tensor:
        r = self.row
        return self._matrix(r.M, r.d_columns, True, r.ldd, r.dtype_d)

    # -- gemmx ---------------------------------------------------------------------------------------------

    def _arguments(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments of the op, without out_dtype; None and defaults are left out, as users do."""
        r = self.row
        arguments: dict[str, Any] = dict(request)
        if r.alpha != 1:
            arguments["alpha"] = r.alpha
        if r.dtype_c and r.beta != 1:
            arguments["beta"] = r.beta
        if r.gated:
            arguments["activation"] = GATED_ACTIVATION
        elif r.activation:
            arguments["activation"] = r.activation
        if PRECISIONS.get(r.compute):
            arguments["precision"] = PRECISIONS[r.compute]
        return arguments

    def problem(self, **request: Any) -> Any:
        """The Problem of the call, with the request (kernel, schedule, splits) in it. Raises as the op does."""
        s = self.inputs[0]
        c, bias = (None if t is None else describe(t) for t in (s.c, s.bias))
        arguments = self._arguments(request)
        if self.needs_out:
            arguments["out"] = describe(self.make_out())
        elif self.row.dtype_d != self.row.dtype_a:
            arguments["out_dtype"] = self.row.dtype_d
        return _C.check_gemm(describe(s.a), describe(s.b), c, bias, gated=self.row.gated, **arguments).problem

    def gemmx_call(self, **request: Any) -> Call:
        """The op on one input set, with the caller's request for a kernel, schedule or splits."""
        arguments = op_arguments(self._arguments(request))
        if self.needs_out:
            op_out = torch.ops.gemmx.gemm_out

            def call_out(s: Inputs, out: Tensor | None) -> Tensor:
                assert out is not None
                op_out(s.a, s.b, s.c, s.bias, out=out, **arguments)
                return out

            return call_out
        if self.row.dtype_d != self.row.dtype_a:
            arguments["out_dtype"] = DTYPES[self.row.dtype_d]
        if self.row.gated:
            op_gated = torch.ops.gemmx.gemm_gated

            def call_gated(s: Inputs, out: Tensor | None) -> Tensor:
                result: Tensor = op_gated(s.a, s.b, s.bias, **arguments)
                return result

            return call_gated
        op = torch.ops.gemmx.gemm

        def call(s: Inputs, out: Tensor | None) -> Tensor:
            result: Tensor = op(s.a, s.b, s.c, s.bias, **arguments)
            return result

        return call

    # -- torch ---------------------------------------------------------------------------------------------

    def torch_call(self) -> Call:
        """What a torch user writes for the row: mm, bmm, addmm or baddbmm, then the activation or the gate.

        A residual is addmm's input, which cuBLAS fuses; with a bias too, the bias is fused and the residual
        added in place. torch's defaults throughout.
        """
        r = self.row
        scalars: dict[str, Any] = {"alpha": r.alpha} if r.alpha != 1 else {}
        if r.dtype_c and not r.has_bias and r.beta != 1:
            scalars["beta"] = r.beta
        product, fused = (torch.bmm, torch.baddbmm) if r.batch > 1 else (torch.mm, torch.addmm)
        if r.dtype_d != r.dtype_a:
            scalars["out_dtype"] = DTYPES[r.dtype_d]
        act = TORCH_ACTIVATIONS[r.activation] if r.activation else None
        if act is not None and self.needs_out:
            raise ValueError(f"row {r.name}: torch has no activation that writes a D with a leading dimension")

        def call(s: Inputs, out: Tensor | None) -> Tensor:
            kwargs = scalars if out is None else {**scalars, "out": out}
            addend = s.bias if s.bias is not None else s.c
            if addend is not None:
                d: Tensor = fused(addend, s.a, s.b, **kwargs)
            elif r.alpha != 1:
                d = fused(s.a.new_zeros(()), s.a, s.b, beta=0, **kwargs)
            else:
                d = product(s.a, s.b, **kwargs)
            if s.bias is not None and s.c is not None:
                d.add_(s.c, alpha=r.beta)
            if r.gated:
                gate, up = d.chunk(2, dim=-1)
                return TORCH_ACTIVATIONS[GATED_ACTIVATION](gate) * up
            return act(d) if act is not None else d

        return call

    # -- cuBLASLt ------------------------------------------------------------------------------------------

    def lt_call(self, index: int, problem: Any, workspace: Tensor) -> Call:
        """The index-th heuristic of cuBLASLt, unrestricted. It writes D given beforehand.

        The call keeps the workspace alive, not only its address: graphs captured from it write there when replayed.
        """

        def call(s: Inputs, out: Tensor | None) -> Tensor:
            assert out is not None
            stream = torch.cuda.current_stream().cuda_stream
            scratch = (workspace.data_ptr(), workspace.numel())
            if not _C.lt_baseline(problem, s.a.data_ptr(), s.b.data_ptr(), out.data_ptr(), *scratch, stream, index):
                raise RuntimeError(f"cuBLASLt has no heuristic number {index} for {problem}")
            return out

        return call

    # -- arms ----------------------------------------------------------------------------------------------

    def make_outs(self) -> list[Tensor]:
        return [self.make_out() for _ in range(self.sets)]

    def arm(self, call: Call, outs: list[Tensor] | None = None) -> Arm:
        """An arm for time_arms.

        outs: one D per set for a call that writes D given beforehand; made here where the row prescribes D's layout.
        """
        given: Sequence[Tensor | None] = outs or (self.make_outs() if self.needs_out else [None] * self.sets)
        kept: list[Tensor | None] = list(given)

        def run(i: int) -> None:
            kept[i] = call(self.inputs[i], given[i])

        return run


SMALL_M = 64  # up to which behind_elementwise() writes A alone, so that the weights stay cold
BEHIND = ", behind elementwise kernels"  # of the names of such arms


def behind_elementwise(case: Case, call: Call) -> Arm:
    """The call as a model makes it: behind kernels that write its A and, for a large M, the weights of another set.

    The arm's time is that of the elementwise kernels too. They do not let the call start early.
    """
    run = case.arm(call)

    def arm(i: int) -> None:
        if case.row.M > SMALL_M:
            case.inputs[(i + case.sets // 2) % case.sets].b.mul_(1)
        case.inputs[i].a.mul_(1)
        run(i)

    return arm
