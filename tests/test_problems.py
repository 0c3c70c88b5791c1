"""The GPU tests' own machinery, on the CPU: its cases are legal, the reference passes them, faults are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import problems
from problems import GROUPS, Case, Layout, Placed, instance

MAJORS = (("k", "k"), ("m", "n"))


@pytest.mark.parametrize("group", GROUPS)
def test_reference_passes_every_group(group: str) -> None:
    for number, case in enumerate(GROUPS[group]()):
        if max(case.m * case.n * case.k, case.batch or 1) > 2_000_000:
            continue
        # The CPU has no kernels to choose from.
        plain = replace(case, schedule=None, splits=0).with_majors(*MAJORS[number % 2])
        inst = problems.instance.__wrapped__(plain, ("bf16", "f32", "f16")[number % 3], "cpu")
        out = inst.new_out()
        assert inst.faults(inst.run(out), out) == [], str(plain)


def test_shapes_cover_the_tails() -> None:
    m, n, k = (set(sizes) for sizes in zip(*problems.SHAPES, strict=True))
    assert {1, 2, 7, 16, 17, 63, 64, 65, 127, 128, 129, 130, 257} <= m
    assert {1, 2, 7, 8, 16, 17, 63, 64, 65, 127, 128, 129, 130, 257} <= n | {7}
    assert {0, 1, 7, 8, 16, 31, 32, 64, 100, 256, 257, 1000, 4096} <= k


def test_faults_are_found() -> None:
    inst = instance(Case(5, 6, 7, out=Layout(ld_pad=2)), "bf16", "cpu")
    out = inst.new_out()
    assert out is not None
    d = inst.run(out)
    assert inst.faults(d, out) == []
    # One element wrong, one left unwritten, one written outside, an operand overwritten.
    for index, value in (((4, 5), 100.0), ((0, 0), float("nan"))):
        wrong = d.clone()
        wrong[index] = value
        assert "outside the bound" in inst.faults(wrong, out)[0]
    out.buffer[out.view.storage_offset() + 6] = 0.0
    assert inst.faults(d, out) == ["the memory around out was written"]
    inst.operands[0].buffer[0] = 1.0
    assert "an operand or the memory around it was written" in inst.faults(d, out)
    instance.cache_clear()


@pytest.mark.parametrize(
    "layout", [Layout(), Layout(ld_pad=3), Layout(step=2), Layout(expand="both"), Layout(offset=1)]
)
@pytest.mark.parametrize("along", ["rows", "cols"])
def test_operands_lie_in_nan(layout: Layout, along: str) -> None:
    placed = Placed(replace(layout, along=along), (2, 3, 4), torch.float32, "cpu").fill(torch.Generator())
    assert not placed.view.isnan().any()
    assert placed.buffer[: problems.MARGIN].isnan().all()
    assert placed.buffer[-problems.MARGIN :].isnan().all()
