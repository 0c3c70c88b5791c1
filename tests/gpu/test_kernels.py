"""Every registered kernel of this GPU's architecture, called by name, against float64.

A kernel runs each case of a group that its `supports()` takes; one that takes no shape at all fails.
"""

from __future__ import annotations

import pytest
import torch

from gemmx import _C
from kernel_cases import SPECS, instances
from problems import ALIGNED, GROUPS, Case, Instance, bits

pytestmark = pytest.mark.gpu


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
