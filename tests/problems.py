"""GEMM problems for tests: shapes, layouts and epilogues as plain data, and tensors made from them.

Every operand and every `out` lies inside a larger buffer of NaN: what is read outside an operand shows in D, what is
written outside `out` shows in the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gemmx import reference
from gemmx.ops import op_arguments

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
MARGIN = 512  # elements of NaN before and after an operand; keeps the first element 512-byte aligned


@dataclass(frozen=True)
class Layout:
    """Where the elements of a (rows, cols) operand lie."""

    along: str = "rows"  # "rows": row-major, "cols": column-major
    ld_multiple: int = 1  # the leading dimension is rounded up to a multiple of it ...
    ld_pad: int = 0  # ... after this many elements
    offset: int = 0  # of the first element from an aligned address, in elements
    step: int = 1  # distance of neighbours in the major dimension
    expand: str = ""  # "major", "minor" or "both": stride 0 along it

    def strides(self, rows: int, cols: int) -> tuple[int, int]:
        extent = (cols if self.along == "rows" else rows) * self.step + self.ld_pad
        ld = -(-max(extent, 1) // self.ld_multiple) * self.ld_multiple
        major = 0 if self.expand in ("major", "both") else self.step
        minor = 0 if self.expand in ("minor", "both") else ld
        return (minor, major) if self.along == "rows" else (major, minor)


PACKED = Layout()
ALIGNED = Layout(ld_multiple=8)


@dataclass(frozen=True)
class Case:
    """One call. Majors, dtype and kernel come from the kernel under test."""

    m: int
    n: int
    k: int
    batch: int | None = None
    shared: str = ""  # "a" or "b": that operand is 2-D beside a batch
    a: Layout = PACKED
    b: Layout = PACKED
    out: Layout | None = None  # None: gemm allocates D
    out_dtype: str | None = None
    # Shape, rows or dtype of C: full (of odd length), aligned (of whole vectors), shared (aligned, one matrix for a
    # batch), row, column, scalar, f32; out: C is out.
    c: str = ""
    bias: str = ""  # a, f32, strided, offset
    alpha: float = 1.0
    beta: float = 1.0
    activation: str | None = None
    activation_args: tuple[float, ...] = ()
    schedule: str | None = None
    splits: int = 0
    precision: str | None = None
    numerics: str | None = None
    scale: float = 1.0  # of the values of a and b
    special: str = ""  # "nan" or "inf": one element of a and one of b is that

    def with_majors(self, major_a: str, major_b: str) -> Case:
        return replace(
            self,
            a=replace(self.a, along="rows" if major_a == "k" else "cols"),
            b=replace(self.b, along="cols" if major_b == "k" else "rows"),
        )

    def __str__(self) -> str:
        default = Case(0, 0, 0)
        fields = (f"{name}={value}" for name, value in vars(self).items() if value != getattr(default, name))
        return ", ".join(fields)


def bits(x: Tensor) -> Tensor:
    """The elements' bits as integers, which compare equal for equal NaNs."""
    return x.view({2: torch.int16, 4: torch.int32}[x.element_size()])


def differing_bits(x: Tensor, y: Tensor) -> int:
    """Elements whose bits differ; a NaN equals every NaN."""
    return int(((bits(x) != bits(y)) & ~(x.isnan() & y.isnan())).sum())


class Placed:
    """A strided view in the middle of a buffer of NaN."""

    def __init__(self, layout: Layout, shape: tuple[int | None, int, int], dtype: torch.dtype, device: str) -> None:
        """shape: (batch, rows, cols); batch None makes a 2-D view."""
        batch, *matrix_sizes = shape
        sizes: tuple[int, ...] = tuple(matrix_sizes)
        strides: tuple[int, ...] = layout.strides(*matrix_sizes)
        if batch is not None:
            matrix = max(1, *(size * stride for size, stride in zip(sizes, strides, strict=True)))
            unit = max(8, layout.ld_multiple) if layout.ld_multiple > 1 else 1
            sizes, strides = (batch, *sizes), (-(-matrix // unit) * unit, *strides)
        extent = 1 + sum(max(size - 1, 0) * stride for size, stride in zip(sizes, strides, strict=True))
        self.buffer = torch.full((2 * MARGIN + layout.offset + extent,), torch.nan, dtype=dtype, device=device)
        self.view = self.buffer.as_strided(sizes, strides, MARGIN + layout.offset)
        self.before = self.buffer  # an out is not compared

    def fill(self, generator: torch.Generator) -> Placed:
        """Normal values at the view's addresses; where a stride is 0 the last one written stays."""
        origin = self.buffer.as_strided(
            [1 if stride == 0 else size for size, stride in zip(self.view.shape, self.view.stride(), strict=True)],
            self.view.stride(),
            self.view.storage_offset(),
        )
        origin.copy_(torch.randn(origin.shape, generator=generator, device=self.buffer.device))
        self.before = self.buffer.clone()
        return self

    def spoil(self, scale: float, special: str) -> Placed:
        """Other values than normal ones of size 1: all of them scaled, the last element NaN or infinite."""
        if scale != 1.0:
            self.buffer.mul_(scale)  # the NaN around the view stays NaN
        if special and self.view.numel():
            self.view[(-1,) * self.view.dim()] = float(special)
        self.before = self.buffer.clone()
        return self

    def damaged(self) -> Tensor:
        """Whether a read-only operand, or the NaN around it, has changed: a 0-d boolean tensor."""
        return (bits(self.buffer) != bits(self.before)).any()

    def damaged_outside(self) -> Tensor:
        """Whether an element that is not the view's is no longer NaN."""
        rest = self.buffer.clone()
        rest.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(torch.nan)
        return ~rest.isnan().all()


@dataclass
class Instance:
    """The tensors of a case with the float64 result and the bound that the numerics contract allows."""

    case: Case
    operands: list[Placed]
    a: Tensor
    b: Tensor
    c: Tensor | None
    bias: Tensor | None
    exact: Tensor
    bound: Tensor
    d_dtype: torch.dtype
    device: str

    @property
    def kwargs(self) -> dict[str, Any]:
        """Of gemm, out_dtype and out left to run()."""
        case = self.case
        kwargs: dict[str, Any] = {"bias": self.bias, "alpha": case.alpha, "activation": case.activation}
        if self.c is not None or case.c == "out":
            kwargs |= {"c": self.c, "beta": case.beta}
        if case.activation_args:
            kwargs["activation_args"] = list(case.activation_args)
        return (
            kwargs
            | {"schedule": case.schedule, "splits": case.splits}
            | {
                "precision": case.precision,
                "numerics": case.numerics,
            }
        )

    def new_out(self) -> Placed | None:
        """A poisoned out, holding C where out is C."""
        if self.case.out is None:
            return None
        batch = self.exact.shape[0] if self.exact.dim() == 3 else None
        placed = Placed(self.case.out, (batch, self.case.m, self.case.n), self.d_dtype, self.device)
        if self.case.c == "out" and self.c is not None:
            placed.view.copy_(self.c)
        return placed

    def run(self, out: Placed | None = None, **request: Any) -> Tensor:
        """D of one call; `request` may name the kernel."""
        kwargs = op_arguments(self.kwargs | request)
        if out is not None:
            if self.case.c == "out":
                kwargs["c"] = out.view
            torch.ops.gemmx.gemm_out(self.a, self.b, **kwargs, out=out.view)
            return out.view
        # The allocator's next block of this size is full of NaN, so that what is left unwritten shows.
        torch.full(self.exact.shape, torch.nan, dtype=self.d_dtype, device=self.device)
        d: Tensor = torch.ops.gemmx.gemm(self.a, self.b, **kwargs, out_dtype=self.d_dtype)
        return d

    def of_rows(self, rows: slice | list[int], **request: Any) -> Tensor:
        """D of a call on these rows of a and c alone; the case's own requests for schedule and splits are left out."""
        kwargs = self.kwargs | {"schedule": None, "splits": 0} | request
        if self.c is not None and self.c.shape[-2] > 1:
            kwargs["c"] = self.c[..., rows, :]
        a, kwargs = self.a[..., rows, :], op_arguments(kwargs)
        d: Tensor = torch.ops.gemmx.gemm(a, self.b, **kwargs, out_dtype=self.d_dtype)
        return d

    def faults(self, d: Tensor, out: Placed | None = None) -> list[str]:
        """What is wrong with D or with the memory around it, in words; [] when nothing is. Synchronises once."""
        wrong = reference.outside_bound(d, self.exact, self.bound)
        flags = [wrong.any(), torch.stack([x.damaged() for x in self.operands]).any()]
        if out is not None:
            flags.append(out.damaged_outside())
        is_wrong, operands_damaged, *out_damaged = torch.stack(flags).tolist()
        faults = []
        if is_wrong:
            error = (d.double() - self.exact).abs()
            worst = int(torch.where(wrong, (error / self.bound).nan_to_num(torch.inf), -1.0).argmax())
            got, want, bound = (x.flatten()[worst].item() for x in (d, self.exact, self.bound))
            faults.append(
                f"{int(wrong.sum())} of {d.numel()} elements outside the bound; the worst, at {worst}, is {got} "
                f"for {want}, bound {bound:.3g}"
            )
        if operands_damaged:
            faults.append("an operand or the memory around it was written")
        if any(out_damaged):
            faults.append("the memory around out was written")
        return faults


def _c_tensor(case: Case, d_dtype: torch.dtype, device: str, generator: torch.Generator) -> Placed | None:
    if not case.c:
        return None
    rows, cols = {"row": (1, case.n), "column": (case.m, 1), "scalar": (1, 1)}.get(case.c, (case.m, case.n))
    dtype = torch.float32 if case.c == "f32" else d_dtype
    padded = {"full": Layout(ld_pad=3), "aligned": Layout(ld_multiple=8, ld_pad=8), "shared": ALIGNED}
    layout = padded.get(case.c, PACKED)
    batch = case.batch if case.c in ("full", "aligned", "f32", "out") else None
    return Placed(layout, (batch, rows, cols), dtype, device).fill(generator)


def _bias_tensor(case: Case, dtype: torch.dtype, device: str, generator: torch.Generator) -> Placed | None:
    if not case.bias:
        return None
    layout = {"strided": Layout(step=3), "offset": Layout(offset=1)}.get(case.bias, PACKED)
    placed = Placed(layout, (None, 1, case.n), torch.float32 if case.bias == "f32" else dtype, device)
    return placed.fill(generator)


# Kernels of one dtype and one pair of majors run the same cases: the float64 product is computed once for them.
@lru_cache(maxsize=1024)
def instance(case: Case, dtype: str, device: str = "cuda") -> Instance:
    """Deterministic: the same case has the same values."""
    torch_dtype = DTYPES[dtype]
    d_dtype = DTYPES[case.out_dtype or dtype]
    generator = torch.Generator(device=device).manual_seed(case.m * 1_000_003 + case.n * 1009 + case.k)
    batch_a, batch_b = (None if case.shared == x else case.batch for x in "ab")
    a = Placed(case.a, (batch_a, case.m, case.k), torch_dtype, device).fill(generator)
    b = Placed(case.b, (batch_b, case.k, case.n), torch_dtype, device).fill(generator)
    if case.scale != 1.0 or case.special:
        a.spoil(case.scale, case.special)
        b.spoil(case.scale, case.special)
    c = _c_tensor(case, d_dtype, device, generator)
    bias = _bias_tensor(case, torch_dtype, device, generator)
    terms: dict[str, Any] = {
        "c": None if c is None else c.view,
        "bias": None if bias is None else bias.view[0],
        "alpha": case.alpha,
        "beta": case.beta,
        "activation": case.activation,
        "activation_args": case.activation_args or None,
    }
    exact = reference.gemm(a.view, b.view, **terms, out_dtype=torch.float64)
    bound = reference.error_bound(a.view, b.view, **terms, out_dtype=d_dtype, precision=case.precision)
    operands = [x for x in (a, b, c, bias) if x is not None]
    return Instance(case, operands, a.view, b.view, terms["c"], terms["bias"], exact, bound, d_dtype, device)


# ---- groups of cases ------------------------------------------------------------------------------------------------

# Tails on both sides of every tile edge in use (16, 64, 128, 256) and of a vector (8 elements): each value of M, N
# and K at least once, not their product.
SHAPES = (
    (1, 1, 1), (1, 1, 4096), (1, 8, 7), (2, 16, 8), (7, 17, 16), (16, 63, 31), (17, 64, 32), (63, 65, 64),
    (64, 127, 100), (65, 128, 256), (127, 129, 257), (128, 130, 1000), (129, 257, 4096), (130, 2, 31), (257, 7, 64),
    (1, 257, 1000), (257, 1, 256), (16, 128, 4096), (8, 8, 8), (64, 64, 64), (128, 256, 32), (256, 256, 1024),
    (72, 136, 1000), (24, 40, 4096), (1, 64, 257), (2, 127, 1), (300, 520, 136), (1, 4096, 256), (16, 16, 100),
    (128, 8, 0), (7, 3, 0), (640, 384, 64), (130, 1, 1),
)  # fmt: skip


def shape_cases() -> Iterator[Case]:
    """Packed, and with leading dimensions of whole vectors, which aligned kernels need for odd shapes."""
    for m, n, k in SHAPES:
        yield Case(m, n, k)
        yield Case(m, n, k, a=ALIGNED, b=ALIGNED, out=ALIGNED)


def layout_cases() -> Iterator[Case]:
    """Padded and odd leading dimensions, unaligned pointers, stride 0, strided and column-major out."""
    for m, n, k in ((65, 72, 104), (128, 256, 64), (1, 130, 257), (136, 264, 1024)):
        for a in (ALIGNED, Layout(ld_multiple=8, ld_pad=24), Layout(ld_pad=5)):
            yield Case(m, n, k, a=a, b=ALIGNED, out=ALIGNED)
            yield Case(m, n, k, a=ALIGNED, b=a, out=a)
        for offset in (1, 2, 4, 8):
            moved = Layout(ld_multiple=8, offset=offset)
            yield Case(m, n, k, a=moved, b=ALIGNED, out=ALIGNED)
            yield Case(m, n, k, a=ALIGNED, b=moved, out=ALIGNED)
            yield Case(m, n, k, a=ALIGNED, b=ALIGNED, out=moved, bias="offset")
        for expand in ("major", "minor", "both"):
            yield Case(m, n, k, a=Layout(ld_multiple=8, expand=expand), b=ALIGNED)
            yield Case(m, n, k, a=ALIGNED, b=Layout(ld_multiple=8, expand=expand))
        yield Case(m, n, k, a=Layout(step=2), b=Layout(step=3))
        yield Case(m, n, k, a=ALIGNED, b=ALIGNED, out=Layout(along="cols"), bias="a", activation="relu")
        yield Case(m, n, k, a=ALIGNED, b=ALIGNED, out=Layout(step=2), bias="a", activation="gelu")


ACTIVATIONS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("relu", ()), ("gelu", ()), ("gelu_tanh", ()), ("silu", ()), ("sigmoid", ()), ("tanh", ()), ("hardswish", ()),
    ("leaky_relu", ()), ("leaky_relu", (-1.5,)), ("clamp", (-0.5, 2.0)),
)  # fmt: skip


def epilogue_cases() -> Iterator[Case]:
    """Every C, bias, scalar and activation, on tiles with tails; D of the inputs' type and of float32."""
    for out_dtype in (None, "f32"):
        for m, n, k in ((65, 136, 64), (16, 256, 64), (136, 264, 1024)):
            base = Case(m, n, k, a=ALIGNED, b=ALIGNED, out_dtype=out_dtype)
            for c in ("full", "aligned", "row", "column", "scalar", "f32"):
                yield replace(base, c=c, beta=0.5)
            yield replace(base, bias="a", c="aligned", beta=0.5, activation="gelu")
            for beta in (0.0, 1.0, 0.5):
                yield replace(base, c="out", out=ALIGNED, beta=beta, alpha=0.25)
            for alpha in (0.0, -0.75):
                yield replace(base, c="full", alpha=alpha, beta=2.0)
            for bias in ("a", "f32", "strided", "offset"):
                yield replace(base, bias=bias)
            for activation, args in ACTIVATIONS:
                yield replace(base, activation=activation, activation_args=args, alpha=0.125)
            yield replace(base, bias="f32", c="full", alpha=0.5, beta=-1.0, activation="silu", out=Layout(ld_pad=1))
        yield Case(72, 64, 0, out_dtype=out_dtype, bias="a", activation="gelu")
        yield Case(72, 64, 0, out_dtype=out_dtype, c="full", beta=0.5, alpha=float("nan"))
        yield Case(33, 1, 64, out_dtype=out_dtype, c="column", bias="a")
    # More tiles than two for every SM, or than one where tiles are the largest: what a CTA keeps from one to the next.
    many = Case(1100, 6400, 64, a=ALIGNED, b=ALIGNED, beta=0.5, bias="a")
    yield replace(many, c="aligned", activation="silu")
    yield replace(many, c="out", out=ALIGNED)


def batch_cases() -> Iterator[Case]:
    """Batches, shared operands, and more batches than a grid has in y or z."""
    for shared in ("", "a", "b"):
        yield Case(17, 40, 64, batch=3, shared=shared, a=ALIGNED, b=ALIGNED)
        yield Case(
            130, 136, 96, batch=3, shared=shared, a=ALIGNED, b=ALIGNED, bias="a", c="full", beta=0.5, activation="relu"
        )
        yield Case(1, 64, 264, batch=5, shared=shared)
        yield Case(136, 264, 1024, batch=3, shared=shared, bias="a", activation="silu")
    yield Case(72, 128, 64, batch=3, a=ALIGNED, b=ALIGNED, c="shared", beta=0.5)
    yield Case(136, 264, 64, batch=40, a=ALIGNED, b=ALIGNED, c="aligned", beta=0.5)
    yield Case(64, 64, 64, batch=1)
    yield Case(40, 72, 64, batch=3, out=Layout(ld_multiple=8, ld_pad=8), c="out")
    yield Case(24, 16, 0, batch=3, c="row", bias="f32")
    yield Case(8, 8, 8, batch=70_000)
    yield Case(8, 8, 8, batch=70_000, out=ALIGNED, out_dtype="f32")


def schedule_cases() -> Iterator[Case]:
    """Splits that divide K and that do not, more cuts than tiles, and stream-K with one tile and with many."""
    for m, n, k in ((16, 256, 4096), (129, 136, 4104), (65, 64, 2048), (257, 520, 2048)):
        aligned = Case(m, n, k, a=ALIGNED, b=ALIGNED)
        for splits in (2, 3, 8):
            yield replace(aligned, splits=splits)
        yield replace(aligned, splits=4, bias="a", c="out", out=ALIGNED, beta=0.5, activation="gelu")
        yield replace(aligned, schedule="split_k")
        yield replace(aligned, schedule="stream_k")
        yield replace(aligned, schedule="stream_k", bias="a", c="full", beta=0.5, activation="silu")
        yield replace(aligned, schedule="data_parallel")
    yield Case(17, 64, 1024, batch=3, a=ALIGNED, b=ALIGNED, splits=2)
    yield Case(1024, 3200, 512, a=ALIGNED, b=ALIGNED, schedule="stream_k")


# What the fuzzer found (tests/gpu/fuzz.py), shrunk: every kernel runs these for good.
FOUND: tuple[Case, ...] = ()


def found_cases() -> Iterator[Case]:
    yield from FOUND


GROUPS = {
    "shapes": shape_cases,
    "layouts": layout_cases,
    "epilogues": epilogue_cases,
    "batches": batch_cases,
    "schedules": schedule_cases,
} | ({"found": found_cases} if FOUND else {})
