"""One call, computed in every way that there is: by the op as it stands and, on CUDA, by every kernel and schedule.

D comes from the allocator's next block, which holds NaN, or goes into the middle of a buffer of NaN: what is left
unwritten and what is written beside D both show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmx import _C, reference
from gemmx._dtypes import dtype_name
from gemmx.ops import check, op_arguments
from problems import PACKED, Layout, Placed

OP, OP_OUT = torch.ops.gemmx.gemm, torch.ops.gemmx.gemm_out
SPECS = {spec.name: spec for spec in _C.kernels()}
# A test of semantics runs where the reference does and where the kernels do.
on_every_device = pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SPLITS = (2, 3)


@dataclass(frozen=True)
class Way:
    """None and 0: the selector's choice, on the CPU the reference."""

    kernel: str | None = None
    schedule: str | None = None
    splits: int = 0

    @property
    def request(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "schedule": self.schedule, "splits": self.splits} if self.kernel else {}

    def __str__(self) -> str:
        return f"{self.kernel} {self.schedule} {self.splits or ''}".strip() if self.kernel else "the op"


SELECTED = Way()


def requests(spec: _C.KernelSpec, splits: Iterable[int] = SPLITS) -> Iterator[Way]:
    for schedule in spec.schedules:
        if schedule == "split_k":
            yield from (Way(spec.name, schedule, s) for s in splits)
        else:
            yield Way(spec.name, schedule)


def ways(a: Tensor, b: Tensor, *, splits: Iterable[int] = SPLITS, **options: Any) -> list[Way]:
    """The op as it stands, then every built kernel and schedule that takes the call."""
    found = [SELECTED]
    if a.is_cuda:
        device = _C.cuda_device(a.device.index or 0)
        for name, spec in SPECS.items():
            if spec.dtype_a == dtype_name(a.dtype) and _C.built_for(name, device.capability):
                for way in requests(spec, splits):
                    problem = check(a, b, **options, **way.request).problem
                    if not _C.supports(name, problem, device):
                        found.append(way)
    return found


def d_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    return (*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1])


def new_out(a: Tensor, b: Tensor, layout: Layout = PACKED, dtype: torch.dtype | None = None) -> Placed:
    shape = d_shape(a, b)
    batch = shape[0] if len(shape) == 3 else None
    return Placed(layout, (batch, shape[-2], shape[-1]), dtype or a.dtype, str(a.device))


def results(
    a: Tensor, b: Tensor, *, outs: Iterable[Layout | None] = (None, PACKED), way: Way = SELECTED, **options: Any
) -> Iterator[tuple[str, Tensor]]:
    """D by one way: as the op's own tensor (None) and in outs of these layouts."""
    dtype = options.get("out_dtype") or a.dtype
    for layout in outs:
        if layout is None:
            if a.is_cuda:
                torch.full(d_shape(a, b), torch.nan, dtype=dtype, device=a.device)  # the allocator's next block
            yield f"{way}", OP(a, b, **op_arguments(options | way.request))
        else:
            out = new_out(a, b, layout, dtype)
            rest = {name: value for name, value in options.items() if name != "out_dtype"}
            OP_OUT(a, b, **op_arguments(rest | way.request), out=out.view)
            assert not out.damaged_outside(), f"{way} wrote beside an out of {layout}"
            yield f"{way} into an out of {layout}", out.view


def every_way(
    a: Tensor,
    b: Tensor,
    *,
    outs: Iterable[Layout | None] = (None, PACKED),
    splits: Iterable[int] = SPLITS,
    **options: Any,
) -> Iterator[tuple[str, Tensor]]:
    """(what computed it, D) for every way and out; outs that are not packed are the op's alone."""
    outs = tuple(outs)
    for way in ways(a, b, splits=splits, **options):
        # A packed out is to a kernel what the op's own D is; another may be one that it declines.
        taken = outs if way == SELECTED else [x for x in outs if x in (None, PACKED)]
        yield from results(a, b, outs=taken, way=way, **options)


def oracle(a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """D in float64 and the bound of the numerics contract."""
    dtype = options.pop("out_dtype", None) or a.dtype
    precision = options.pop("precision", None)
    exact = reference.gemm(a, b, **options, out_dtype=torch.float64)
    return exact, reference.error_bound(a, b, **options, out_dtype=dtype, precision=precision)


def assert_every_way_is_right(a: Tensor, b: Tensor, **options: Any) -> int:
    """Every way keeps the bound against float64; the number of results."""
    terms = {name: value for name, value in options.items() if name not in ("outs", "splits")}
    exact, bound = oracle(a, b, **terms)
    count = 0
    for what, d in every_way(a, b, **options):
        wrong = reference.outside_bound(d, exact, bound)
        assert not wrong.any(), f"{what}: {int(wrong.sum())} of {d.numel()} elements outside the bound"
        count += 1
    return count


def normal(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def assert_no_op(name: str) -> None:
    """An op of the design that this version does not have: torch itself says so, by name, before anything runs."""
    with pytest.raises(AttributeError, match=f"'_OpNamespace' 'gemmx' object has no attribute '{name}'"):
        getattr(torch.ops.gemmx, name)
