"""Equal calls give equal bits: 100 times, while another stream keeps the GPU busy, whatever the workspace held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gemmx import _C
from kernel_cases import SPECS, instances
from problems import ALIGNED, Case, Instance, bits, instance

pytestmark = pytest.mark.gpu

TIMES = 100
ALIGNED_OUT = Case(130, 264, 2056, a=ALIGNED, b=ALIGNED, out=ALIGNED)
REPEATED = (
    replace(ALIGNED_OUT, bias="a", activation="silu"),
    replace(ALIGNED_OUT, splits=3),
    replace(ALIGNED_OUT, splits=8, out_dtype="f32"),
    replace(ALIGNED_OUT, c="out", beta=0.5),
    Case(65, 131, 301, bias="f32", activation="gelu"),
    Case(17, 72, 264, batch=5, a=ALIGNED, b=ALIGNED),
    Case(1024, 2112, 1024, a=ALIGNED, b=ALIGNED, out=ALIGNED, schedule="stream_k"),
)


class Load:
    """Products of torch on a stream of their own: about 10 ms of them at a time."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.d = torch.empty_like(self.x)

    def add(self) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(40):
                torch.mm(self.x, self.x, out=self.d)


@pytest.fixture(scope="module")
def load(device: _C.Device) -> Load:
    return Load()


def repeats(inst: Instance, kernel: str | None, load: Load) -> bool:
    first = bits(inst.run(inst.new_out(), kernel=kernel)).clone()
    torch.cuda.synchronize()
    load.add()
    differs = []
    for _ in range(TIMES):
        torch.full((1 << 21,), torch.nan, device="cuda")  # the allocator's next workspace
        differs.append((bits(inst.run(inst.new_out(), kernel=kernel)) != first).any())
    same = not torch.stack(differs).any()
    torch.cuda.synchronize()
    return same


def test_every_kernel_repeats_its_bits(
    kernel: str, device: _C.Device, load: Load, record_property: Callable[[str, object], None]
) -> None:
    ran = 0
    for inst in instances(kernel, REPEATED, device, every_major=False):
        ran += 1
        assert repeats(inst, kernel, load), str(inst.case)
    if ran == 0:
        pytest.skip("supports() declines every case")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_op_repeats_its_bits(dtype: str, load: Load, record_property: Callable[[str, object], None]) -> None:
    calls = 0
    for case in REPEATED:
        if case.schedule or (case.splits and dtype == "f32"):
            continue  # not every dtype has a kernel for the request
        for majors in (("k", "k"), ("k", "n"), ("m", "k")):
            assert repeats(instance(case.with_majors(*majors), dtype), None, load), str(case)
            calls += TIMES
    record_property("figure", {"calls": calls, "that differed": 0})


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_wgmma_family_agrees_bit_for_bit(
    dtype: str, splits: int, device: _C.Device, record_property: Callable[[str, object], None]
) -> None:
    """float32 D, whatever the tile, the cluster and the place where cuts of K are added: shared memory or workspace."""
    case = Case(200, 520, 4096, a=ALIGNED, b=ALIGNED, out=ALIGNED, out_dtype="f32")
    case = replace(case, schedule="data_parallel") if splits == 1 else replace(case, splits=splits)
    first: dict[tuple[str, str], torch.Tensor] = {}
    compared = 0
    for spec in SPECS.values():
        if spec.family != "sm90" or spec.dtype_a != dtype or not _C.built_for(spec.name, device.capability):
            continue
        for inst in instances(spec.name, [case], device, every_major=True):
            d = bits(inst.run(inst.new_out(), kernel=spec.name))
            reference = first.setdefault((spec.major_a, spec.major_b), d.clone())
            assert torch.equal(d, reference), spec.name
            compared += 1
    if compared == 0:
        pytest.skip("no kernel of the family is built for this GPU")
    record_property("figure", {"kernels": compared, "elements each": 200 * 520, "that differed": 0})


def test_every_schedule_has_a_kernel_here(device: _C.Device) -> None:
    """So that the tests above cover every deterministic path of this GPU."""
    built = [spec for spec in SPECS.values() if _C.built_for(spec.name, device.capability)]
    assert {"data_parallel", "split_k"} <= {schedule for spec in built for schedule in spec.schedules}
