"""Every registered kernel of this GPU's architecture, called by name, against float64.

A kernel runs each case of a group that its `supports()` takes; one that takes no shape at all fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch

from gemmx import _C
from gemmx.ops import check
from problems import ALIGNED, GROUPS, Case, Instance, bits, instance

pytestmark = pytest.mark.gpu

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


def run(inst: Instance, kernel: str) -> list[str]:
    out = inst.new_out()
    d = inst.run(out, kernel=kernel)
    if out is None and d.stride() != torch.empty(d.shape, device="meta").stride():
        return [f"D has strides {d.stride()}"]
    return inst.faults(d, out)


@pytest.mark.parametrize("group", GROUPS)
def test_kernel(kernel: str, group: str, device: _C.Device) -> None:
    before = _C.launch_counts()[kernel]
    faults = []
    ran = 0
    for inst in instances(kernel, GROUPS[group](), device, every_major=group == "shapes"):
        ran += 1
        faults += [f"{inst.case}: {fault}" for fault in run(inst, kernel)]
    assert not faults, f"{len(faults)} faults in {ran} cases:\n" + "\n".join(faults[:20])
    if ran == 0:
        assert group != "shapes", "supports() declines every shape"
        pytest.skip(f"supports() declines every case of {group}")
    assert _C.launch_counts()[kernel] == before + ran


REPEATED = (
    Case(130, 264, 2056, a=ALIGNED, b=ALIGNED, out=ALIGNED, bias="a", activation="silu"),
    Case(130, 264, 2056, a=ALIGNED, b=ALIGNED, out=ALIGNED, splits=3),
    Case(130, 264, 2056, a=ALIGNED, b=ALIGNED, out=ALIGNED, splits=8, out_dtype="f32"),
    Case(1024, 2112, 1024, a=ALIGNED, b=ALIGNED, out=ALIGNED, schedule="stream_k"),
)


def test_repeats_bits(kernel: str, device: _C.Device) -> None:
    """20 runs give the same bits, whatever lies in the workspace."""
    ran = 0
    for inst in instances(kernel, REPEATED, device, every_major=False):
        ran += 1
        first = bits(inst.run(inst.new_out(), kernel=kernel)).clone()
        differs = []
        for _ in range(20):
            torch.full((1 << 22,), torch.nan, device="cuda")  # the allocator's next workspace
            differs.append((bits(inst.run(inst.new_out(), kernel=kernel)) != first).any())
        assert not torch.stack(differs).any(), str(inst.case)
    if ran == 0:
        pytest.skip("supports() declines every case")


def test_what_surrounds_operands_does_not_matter(kernel: str, device: _C.Device) -> None:
    """NaN, infinity and zeros around the operands: not one bit of D changes, so masked lanes are not multiplied."""
    cases = (Case(65, 72, 104), Case(65, 72, 101, a=ALIGNED, b=ALIGNED), Case(16, 64, 257, a=ALIGNED, b=ALIGNED))
    ran = 0
    for inst in instances(kernel, cases, device, every_major=False):
        ran += 1
        results = []
        for filling in (float("nan"), float("inf"), 0.0):
            for operand in inst.operands:
                values = operand.view.clone()
                operand.buffer.fill_(filling)
                operand.view.copy_(values)
            results.append(bits(inst.run(inst.new_out(), kernel=kernel)).clone())
        for operand in inst.operands:
            operand.buffer.copy_(operand.before)
        assert torch.equal(results[0], results[1]), str(inst.case)
        assert torch.equal(results[0], results[2]), str(inst.case)
    if ran == 0:
        pytest.skip("supports() declines every case")


SANITIZED = (
    Case(17, 40, 72, bias="a", c="full", activation="relu"),
    Case(65, 72, 264, a=ALIGNED, b=ALIGNED, out=ALIGNED, c="out"),
    Case(3, 136, 1032, a=ALIGNED, b=ALIGNED, splits=3),
)


@pytest.mark.sanitize
def test_reduced_matrix(kernel: str, device: _C.Device) -> None:
    """For compute-sanitizer with PYTORCH_NO_CUDA_MEMORY_CACHING=1: three small problems, each with tails."""
    for inst in instances(kernel, SANITIZED, device, every_major=False):
        d = inst.run(inst.new_out(), kernel=kernel)
        assert not (d.double() - inst.exact).abs().gt(inst.bound).any(), str(inst.case)


def test_every_kernel_of_this_architecture_was_launched(device: _C.Device, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("keyword") or request.config.getoption("markexpr") not in ("", "gpu"):
        pytest.skip("only a part of the kernel tests was asked for")
    counts = _C.launch_counts()
    idle = [
        name
        for name, spec in SPECS.items()
        if spec.min_capability <= device.capability <= spec.max_capability
        and _C.built_for(name, device.capability)
        and counts[name] == 0
    ]
    assert not idle
