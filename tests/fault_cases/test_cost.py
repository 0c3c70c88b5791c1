"""B63-B67: what a call costs beside its kernel, and cliffs. Times are of a GPU that runs nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from every_way import OP, OP_OUT, normal, oracle
from gemmx import _C, reference

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def host_us(call: Callable[[], Any], calls: int = 2000) -> float:
    """Median over 5 of the host's time of a call, without waiting for the GPU."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(times)


def test_b63_a_call_costs_the_host_no_more_than_mm_plus_5_us(record_property: Callable[[str, object], None]) -> None:
    """10,000 calls of a kernel of a few microseconds, and not one cudaMalloc among them."""
    a, b = normal(8, 2048, dtype=BF16, device="cuda"), normal(2048, 2048, dtype=BF16, device="cuda").t()
    out = torch.empty(8, 2048, dtype=BF16, device="cuda")
    with torch.inference_mode():
        for _ in range(200):
            OP(a, b), torch.mm(a, b)
            OP_OUT(a, b, out=out)
        segments = torch.cuda.memory_stats()["segment.all.allocated"]
        mm, op = host_us(lambda: torch.mm(a, b)), host_us(lambda: OP(a, b))
        op_out = host_us(lambda: OP_OUT(a, b, out=out))
        assert torch.cuda.memory_stats()["segment.all.allocated"] == segments
    record_property("figure", {"torch.mm us": round(mm, 2), "gemm us": round(op, 2), "gemm_out us": round(op_out, 2)})
    assert op <= mm + 5
    assert op_out <= mm + 5


def test_b64_a_cache_of_plans_is_bounded() -> None:
    """tests/gpu/test_load.py makes the million calls; here a plan's cost: none for calls that were seen."""
    a, b = normal(8, 64, dtype=BF16, device="cuda"), normal(64, 64, dtype=BF16, device="cuda")
    OP(a, b)
    before = _C.plan_cache_info()
    for _ in range(100):
        OP(a.clone(), b.clone())
    after = _C.plan_cache_info()
    assert (after["misses"], after["size"]) == (before["misses"], before["size"])
    assert after["hits"] == before["hits"] + 100


def gpu_us(call: Callable[[], Any], calls: int = 10) -> float:
    """The least of three means: what the kernel takes where nothing disturbs it."""
    for _ in range(3):
        call()
    times = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(200_000)  # the host is ahead when the first call starts
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return min(times)


def assert_no_cliff(times: dict[int, float], allowed: float, what: str) -> None:
    for size, us in times.items():
        if size % 2:
            even = statistics.median(times[x] for x in (size - 1, size + 1) if x in times)
            assert us <= allowed * even, f"{what} {size}: {us:.1f} us beside {even:.1f} us"


def test_b65_no_cliff_at_odd_sizes_of_a_skinny_product(record_property: Callable[[str, object], None]) -> None:
    b = normal(100_000, 100, dtype=BF16, device="cuda")
    times = {}
    for m in range(1, 21):
        a = normal(100_000, m, dtype=BF16, device="cuda").t()
        times[m] = gpu_us(lambda a=a: OP(a, b))
        assert not reference.outside_bound(OP(a, b), *oracle(a, b)).any(), m
    record_property("figure", {f"M={m} us": round(us, 1) for m, us in times.items()})
    assert_no_cliff(times, 1.5, "M")


@pytest.mark.parametrize("along", ["N", "K"])
def test_b65_odd_sizes_are_within_mm(along: str, record_property: Callable[[str, object], None]) -> None:
    """Square products about 2048: an odd size may cost what it costs torch.mm, half as much again at most."""
    ratios = {}
    for size in (2048, 2049, 2050, 2052, 2056, 2057, 2064, 2080):
        n, k = (size, 2048) if along == "N" else (2048, size)
        a, b = normal(2048, k, dtype=BF16, device="cuda"), normal(k, n, dtype=BF16, device="cuda")
        ratios[size] = gpu_us(lambda a=a, b=b: OP(a, b)) / gpu_us(lambda a=a, b=b: torch.mm(a, b))
        assert not reference.outside_bound(OP(a, b), *oracle(a, b)).any(), size
    record_property("figure", {f"{along}={size} of mm": round(ratio, 2) for size, ratio in ratios.items()})
    assert max(ratios.values()) <= 1.5, ratios


def peak_bytes(call: Callable[[], Tensor]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - start


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [((4096, 4096), (192, 4096, 1)), ((256, 1, 100), (256, 100, 100)), ((4096, 100), (256, 100, 100))],
)
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_b67_a_shared_operand_is_not_copied(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], dtype: torch.dtype
) -> None:
    """As a 2-D operand and as a batch of stride 0, on either side; beside D there is a workspace at most."""
    a, b = normal(*shape_a, dtype=dtype, device="cuda"), normal(*shape_b, dtype=dtype, device="cuda")
    workspace = 64 << 20
    calls = [(a, b), (b.mT, a.mT)]
    if a.dim() == 2:
        calls += [(a.expand(b.shape[0], *a.shape), b), (b.mT, a.mT.expand(b.shape[0], *a.mT.shape))]
    for x, y in calls:
        d = OP(x, y)
        needed = d.numel() * d.element_size()
        expanded = max(x.numel(), y.numel()) * x.element_size()
        used = peak_bytes(lambda x=x, y=y: OP(x, y))
        assert used <= needed + workspace + (2 << 20)
        assert used < expanded or expanded <= needed + workspace + (2 << 20)
        sample = slice(0, 2)
        part = (x if x.dim() == 2 else x[sample]), (y if y.dim() == 2 else y[sample])
        assert not reference.outside_bound(d[sample], *oracle(*part)).any()
