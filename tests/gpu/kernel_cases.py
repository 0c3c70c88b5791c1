"""The cases that a registered kernel takes, as tensors on the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from gemmx import _C
from gemmx.ops import check
from problems import Case, Instance, instance

SPECS = {spec.name: spec for spec in _C.kernels()}


def majors_of(spec: _C.KernelSpec, index: int, *, every: bool) -> Iterator[tuple[str, str]]:
    """The pairs of majors that the kernel takes; one of them, in turn, unless every is asked for."""
    pairs = [
        (a, b) for a in ("k", "m") for b in ("k", "n") if spec.major_a in ("none", a) and spec.major_b in ("none", b)
    ]
    return iter(pairs if every else [pairs[index % len(pairs)]])


def instances(kernel: str, cases: Iterable[Case], device: _C.Device, *, every_major: bool) -> Iterator[Instance]:
    """The cases that the kernel supports. A kernel for tf32 products gets them asked for."""
    spec = SPECS[kernel]
    for index, case in enumerate(cases):
        for majors in majors_of(spec, index, every=every_major):
            precisions = (None, "tf32") if spec.dtype_a == "f32" else (None,)
            for precision in precisions:
                inst = instance(replace(case.with_majors(*majors), precision=precision), spec.dtype_a)
                if not unsupported(inst, kernel, device):
                    yield inst
                    break


def unsupported(inst: Instance, kernel: str, device: _C.Device) -> str:
    out = inst.new_out()
    kwargs = inst.kwargs | {"kernel": kernel}
    if out is None:
        problem = check(inst.a, inst.b, **kwargs, out_dtype=inst.d_dtype).problem
    else:
        c = {"c": out.view} if inst.case.c == "out" else {}
        problem = check(inst.a, inst.b, **kwargs | c, out=out.view).problem
    return _C.supports(kernel, problem, device)
