"""Programs of test_load.py. Each runs in a process of its own under a time limit and prints its figures as JSON."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemmx import _C, reference
from problems import bits

OP, OP_OUT = torch.ops.gemmx.gemm, torch.ops.gemmx.gemm_out
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
MIB = 1 << 20


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def device_bytes() -> int:
    """Used memory of the GPU as the driver sees it, this process's and others'."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def normal(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def finish(**figures: Any) -> None:
    torch.cuda.synchronize()
    print(json.dumps(figures))


def mixed_calls() -> list[tuple[tuple[Tensor, ...], dict[str, Any]]]:
    """Decode, a layer with its epilogue, unaligned, float32, a split of K with a workspace, a batch, a tall one."""
    odd = normal(65, 78)[:, 1:]
    return [
        ((normal(1, 1024), normal(2048, 1024).t()), {}),
        ((normal(128, 256), normal(512, 256).t(), None, normal(512)), {"activation": "gelu"}),
        ((odd, normal(77, 131)), {}),
        ((normal(100, 300, dtype=F32), normal(300, 96, dtype=F32), normal(100, 96, dtype=F32)), {"beta": 0.5}),
        ((normal(16, 4096), normal(256, 4096).t()), {"splits": 4}),
        ((normal(6, 40, 64, dtype=F16), normal(6, 64, 72, dtype=F16)), {"out_dtype": F32}),
        ((normal(2000, 64), normal(64, 64).t()), {}),
    ]


def wrong(arguments: tuple[Tensor, ...], options: dict[str, Any], d: Tensor) -> bool:
    terms = {name: value for name, value in options.items() if name not in ("splits", "out_dtype")}
    exact = reference.gemm(*arguments, **terms, out_dtype=torch.float64)
    bound = reference.error_bound(*arguments, **terms, out_dtype=d.dtype)
    return bool(reference.outside_bound(d, exact, bound).any())


def cold_threads(threads: int = 16, calls: int = 2000) -> None:
    """Threads with a stream each make the first calls of the process at once, then go on in mixed order."""
    inputs = mixed_calls()
    torch.cuda.synchronize()
    assert _C.plan_cache_info()["misses"] == 0
    barrier = threading.Barrier(threads)
    faults: list[str] = []
    firsts: list[dict[int, Tensor]] = [{} for _ in range(threads)]

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                barrier.wait()
                flags = []
                for i in range(calls):
                    which = (number + i * (1 + number % 5)) % len(inputs)
                    arguments, options = inputs[which]
                    d = OP(*arguments, **options)
                    if which in firsts[number]:
                        flags.append((bits(d) != bits(firsts[number][which])).any())
                    else:
                        firsts[number][which] = d
                if torch.stack(flags).any():
                    faults.append(f"thread {number}: bits differ")
        except Exception as error:
            faults.append(f"thread {number}: {error}")

    start = time.perf_counter()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    for number, first in enumerate(firsts):
        for which, d in first.items():
            if wrong(*inputs[which], d):
                faults.append(f"thread {number}: call {which} outside the bound")
    assert not faults, faults
    finish(threads=threads, calls=threads * calls, seconds=round(seconds, 1))


def one_shape(calls: int = 1_000_000) -> None:
    """Host and device memory after a tenth of the calls and after all."""
    a, b, bias = normal(16, 64), normal(64, 64).t(), normal(64)
    out = torch.empty(16, 64, dtype=BF16, device="cuda")
    tenth = calls // 10
    marks = []
    start = time.perf_counter()
    with torch.inference_mode():
        for part in range(10):
            if part % 2:
                for _ in range(tenth):
                    OP_OUT(a, b, None, bias, out=out)
            else:
                for _ in range(tenth):
                    OP(a, b, None, bias)
            torch.cuda.synchronize()
            marks.append((rss_bytes(), device_bytes()))
    seconds = time.perf_counter() - start
    host, device = (marks[-1][i] - marks[1][i] for i in (0, 1))
    assert not wrong((a, b, None, bias), {}, out)
    assert host <= 2 * MIB, f"the host's memory grew by {host} bytes: {marks}"
    assert device <= 0, f"the device's memory grew by {device} bytes: {marks}"
    finish(calls=calls, seconds=round(seconds, 1), host_growth_bytes=host, device_growth_bytes=device)


def distinct_shapes(shapes: int = 10_000) -> None:
    """More Problems than the plan cache holds. Nearly all the time is the selector's, in Python, once a Problem."""
    a, b = normal(shapes, 64), normal(64, 64).t()
    marks = {}
    start = time.perf_counter()
    for m in range(1, shapes + 1):
        OP(a[:m], b)
        if m in (1000, shapes // 2, shapes):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            marks[m] = rss_bytes(), device_bytes()
    seconds = time.perf_counter() - start
    info = _C.plan_cache_info()
    assert info["size"] <= info["capacity"] < shapes, info
    host, device = (marks[shapes][i] - marks[1000][i] for i in (0, 1))
    assert host <= 24 * MIB, f"the host's memory grew by {host} bytes: {marks}"
    # CUDA loads a kernel's code on its first launch, and larger M take other kernels.
    assert device <= 32 * MIB, f"the device's memory grew by {device} bytes: {marks}"
    finish(shapes=shapes, seconds=round(seconds, 1), host_growth_bytes=host, device_growth_bytes=device)


def captures(graphs: int = 500) -> None:
    """Each graph has a workspace and a D of its own, is replayed once and destroyed.

    The host's memory may grow by what graphs of torch.mm make it grow by, which the driver keeps, and 8 MiB.
    """
    inputs = [mixed_calls()[i] for i in (1, 4)]
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    of_torch, _, _ = capture_growth([lambda: torch.mm(x, x)] * len(inputs), graphs)
    calls = [functools.partial(OP, *arguments, **options) for arguments, options in inputs]
    host, device, seconds = capture_growth(calls, graphs)
    assert host <= max(of_torch, 0) + 8 * MIB, f"the host's memory grew by {host} bytes, by {of_torch} with torch.mm"
    assert device <= 4 * MIB, f"the device's memory grew by {device} bytes"
    finish(
        graphs=graphs,
        seconds=round(seconds, 1),
        host_growth_bytes=host,
        host_growth_bytes_of_torch_mm=of_torch,
        device_growth_bytes=device,
    )


def capture_growth(calls: list[Callable[[], torch.Tensor]], graphs: int) -> tuple[int, int, float]:
    """Growth of the host's and the device's memory from the 100th graph of the calls to the last, and seconds."""
    expected = [bits(call()).clone() for call in calls]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()  # the inputs are the default stream's
    marks = {}
    start = time.perf_counter()
    differs = []
    for i in range(graphs):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            outputs = [call() for call in calls]
            graph.capture_end()
            graph.replay()
            differs += [(bits(d) != e).any() for d, e in zip(outputs, expected, strict=True)]
        del outputs
        stream.synchronize()
        graph.reset()
        del graph
        if i in (99, graphs - 1):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            marks[i] = rss_bytes(), device_bytes()
    seconds = time.perf_counter() - start
    assert not torch.stack(differs).any()
    host, device = (marks[graphs - 1][i] - marks[99][i] for i in (0, 1))
    return host, device, seconds


def neighbours(replays: int = 50) -> None:
    """A graph is replayed while what lay beside its workspace is freed, filled anew and freed again."""
    arguments, options = mixed_calls()[4]
    expected = bits(OP(*arguments, **options)).clone()
    sizes = [1 << i for i in range(9, 25)]
    before = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = OP(*arguments, **options)
    after = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(4)]
    for i in range(replays):
        del before[:: 2 + i % 3], after[:: 2 + i % 3]
        if i % 10 == 5:
            torch.cuda.empty_cache()
        refilled = [torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(4)]
        d.fill_(torch.nan)
        graph.replay()
        assert torch.equal(bits(d), expected), i
        assert all((x == 0xFF).all() for x in refilled[-8:])
        before, after = refilled[::2], refilled[1::2]
    finish(replays=replays)


def out_of_memory() -> None:
    """With a gigabyte: no memory for D, then none for a workspace. Either is torch's error, and all goes on."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((1 << 30) / total)
    one = torch.ones(1, 1, dtype=F16, device="cuda")

    def expect(what: str, call: Any) -> None:
        launched = sum(_C.launch_counts().values())
        try:
            call()
        except torch.OutOfMemoryError as error:
            assert f"for {what} on cuda:0" in str(error), error
            assert "CUDA out of memory" in str(error), error
        else:
            raise AssertionError(f"{what}: there was memory")
        assert sum(_C.launch_counts().values()) == launched
        assert (OP(one.expand(16, 32), one.expand(32, 8)) == 32.0).all()

    expect("D", lambda: OP(one.expand(40_000, 8), one.expand(8, 40_000)))
    expect("D", lambda: torch.compile(OP, backend="aot_eager")(one.expand(40_000, 8), one.expand(8, 40_000)))
    a, b = normal(1024, 8192, dtype=F16), normal(4096, 8192, dtype=F16).t()
    kernel = next(
        spec.name
        for spec in _C.kernels()
        if "split_k" in spec.schedules and (spec.dtype_a, spec.major_a, spec.major_b) == ("f16", "k", "k")
    )
    out = torch.empty(1024, 4096, dtype=F16, device="cuda")
    ballast = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
    split = {"kernel_name": kernel, "schedule": "split_k", "splits": 32}
    expect("the workspace", lambda: OP_OUT(a, b, **split, out=out))
    expect("the workspace", lambda: OP(a, b, **split))
    del ballast
    OP_OUT(a, b, **split, out=out)
    torch.cuda.set_per_process_memory_fraction(1.0)  # the float64 result takes more
    assert not wrong((a, b), {}, out)
    finish(errors=4)


def two_devices(calls: int = 1000) -> None:
    """One thread alternates between two GPUs, with and without a workspace."""
    inputs = []
    for device in ("cuda:0", "cuda:1"):
        inputs.append([(tuple(None if x is None else x.to(device) for x in xs), o) for xs, o in mixed_calls()])
    expected = [[bits(OP(*xs, **o)).clone() for xs, o in each] for each in inputs]
    differs: list[list[Tensor]] = [[], []]
    for i in range(calls):
        xs, options = inputs[i % 2][i // 2 % len(inputs[0])]
        d = OP(*xs, **options)
        assert d.device.index == i % 2
        assert torch.cuda.current_device() == 0
        differs[i % 2].append((bits(d) != expected[i % 2][i // 2 % len(inputs[0])]).any())
    assert not any(torch.stack(each).any() for each in differs)
    for first, second in zip(*expected, strict=True):
        assert torch.equal(first, second.to("cuda:0"))
    finish(calls=calls)
