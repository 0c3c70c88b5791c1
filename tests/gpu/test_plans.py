"""A plan that a caller's selector returns is checked before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from gemmx import _C
from gemmx.select.selector import choose

pytestmark = pytest.mark.gpu


@pytest.fixture
def selector() -> Iterator[Callable[..., None]]:
    yield _C.set_selector
    _C.set_selector(choose)


def named(device: _C.Device, **want: str) -> list[_C.KernelSpec]:
    specs = [spec for spec in _C.kernels() if _C.built_for(spec.name, device.capability)]
    return [spec for spec in specs if all(getattr(spec, name) == value for name, value in want.items())]


def test_a_harmful_selector_launches_nothing(selector: Callable[..., None], device: _C.Device) -> None:
    a = torch.ones(64, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.ones(512, 64, device="cuda", dtype=torch.bfloat16)
    split = next(s.name for s in named(device, dtype_a="bf16") if "split_k" in s.schedules)
    f32 = named(device, dtype_a="f32")[0].name
    other = next(s.name for s in _C.kernels() if not _C.built_for(s.name, device.capability))
    for kernel, schedule, splits, swizzle in (
        (split, "split_k", 1 << 20, 1),
        (split, "split_k", -1, 1),
        (split, "split_k", 2**31 - 1, 1),
        (split, "data_parallel", 2, 1),
        (split, "stream_k", 1, 1),
        (split, "auto", 1, 1),
        (split, "split_k", 2, 0),
        (f32, "data_parallel", 1, 1),
        (other, "data_parallel", 1, 1),
        ("", "data_parallel", 1, 1),
    ):
        plan = _C.Plan(kernel, schedule, splits, "along_m", swizzle)
        selector(lambda problem, device, plan=plan: plan)
        before = sum(_C.launch_counts().values())
        with pytest.raises(RuntimeError, match=r"^the selected plan .* can't run M=64 N=64 K=512"):
            torch.ops.gemmx.gemm(a, b)
        assert sum(_C.launch_counts().values()) == before
    selector(lambda problem, device: 7)
    with pytest.raises(RuntimeError):
        torch.ops.gemmx.gemm(a, b)
    selector(choose)
    assert (torch.ops.gemmx.gemm(a, b) == 512.0).all()
