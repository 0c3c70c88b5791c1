"""B37-B47: graphs, streams, threads, devices, hangs. Load over minutes is in tests/gpu/test_load.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from every_way import OP, every_way, normal, oracle, results, ways
from gemmx import _C, reference
from problems import bits

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def test_b37_a_graph_outlives_larger_calls_and_other_graphs() -> None:
    """Eager calls that need more workspace, a gigabyte of NaN, a second graph destroyed, the cache emptied."""
    a, b = normal(16, 8192, dtype=BF16, device="cuda"), normal(1024, 8192, dtype=BF16, device="cuda").t()
    larger = normal(256, 16_384, dtype=BF16, device="cuda"), normal(4096, 16_384, dtype=BF16, device="cuda").t()
    for way in ways(a, b, splits=(4,)):
        request = {"kernel_name": way.kernel, "schedule": way.schedule, "splits": way.splits} if way.kernel else {}
        expected = bits(OP(a, b, **request)).clone()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        outputs = []
        for graph in graphs:
            with torch.cuda.graph(graph):
                outputs.append(OP(a, b, **request))
        more = replace(way, splits=8) if way.splits else way
        if more in ways(*larger, splits=(8,)):
            OP(*larger, **({**request, "splits": more.splits} if way.kernel else {}))
        torch.full((1 << 28,), torch.nan, device="cuda")
        d, other = outputs
        del other, outputs
        graphs.pop().reset()
        torch.cuda.empty_cache()
        torch.full((1 << 28,), torch.nan, device="cuda")
        for _ in range(3):
            d.fill_(torch.nan)
            graphs[0].replay()
            assert torch.equal(bits(d), expected), way
        assert torch.equal(bits(OP(a, b, **request)), expected), way


def test_b39_nothing_of_a_call_goes_to_the_default_stream() -> None:
    """The default stream is busy: a clear of a workspace put there would come late. 1,000 calls, workspaces of 0xFF."""
    a, b = normal(16, 8192, dtype=BF16, device="cuda"), normal(512, 8192, dtype=BF16, device="cuda").t()
    stream = torch.cuda.Stream()
    every = ways(a, b, splits=(2, 8))
    for way in every:
        request = {"kernel_name": way.kernel, "schedule": way.schedule, "splits": way.splits} if way.kernel else {}
        expected = bits(OP(a, b, **request)).clone()
        torch.cuda.synchronize()
        torch.cuda._sleep(40_000_000)
        with torch.cuda.stream(stream):
            differs = []
            for _ in range(-(-1000 // len(every))):
                torch.full((1 << 22,), 255, dtype=torch.uint8, device="cuda")  # the next workspace
                differs.append((bits(OP(a, b, **request)) != expected).any())
            assert not torch.stack(differs).any(), way
        torch.cuda.synchronize()


def test_b40_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    operands = {}
    for device in ("cuda:0", "cuda:1"):
        a, b = normal(64, 4096, dtype=BF16).to(device), normal(512, 4096, dtype=BF16).to(device).t()
        operands[device] = (a, b)
    expected = bits(OP(*operands["cuda:0"])).clone()
    for _ in range(20):
        for device, (a, b) in operands.items():
            d = OP(a, b)
            assert (d.device, torch.cuda.current_device()) == (torch.device(device), 0)
            assert torch.equal(bits(d).to("cuda:0"), expected)
            for what, each in every_way(a, b, outs=(None,)):
                assert each.device == d.device
                assert not reference.outside_bound(each, *oracle(a, b)).any(), what
    with pytest.raises(ValueError, match=r"^b: is on cuda:1 but a is on cuda:0: all tensors of a call"):
        OP(operands["cuda:0"][0], operands["cuda:1"][1])


def test_b40_the_current_device_is_not_changed() -> None:
    current = torch.cuda.current_device()
    OP(normal(8, 8, device="cuda"), normal(8, 8, device="cuda"))
    with pytest.raises(ValueError, match="is on cpu but a is on cuda"):
        OP(normal(8, 8, device="cuda"), normal(8, 8))
    assert torch.cuda.current_device() == current


def test_b41_threads_share_no_state_of_a_call() -> None:
    """16 threads with a stream each run the same kernels at once with operands of their own."""
    every = ways(normal(48, 512, dtype=BF16, device="cuda"), normal(256, 512, dtype=BF16, device="cuda").t())
    barrier, wrong = threading.Barrier(16), []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                a = normal(48, 512, dtype=BF16, device="cuda", seed=seed)
                b = normal(256, 512, dtype=BF16, device="cuda", seed=seed).t()
                exact, bound = oracle(a, b)
                barrier.wait()
                flags = []
                for i in range(len(every)):
                    way = every[(i + seed) % len(every)]
                    flags += [reference.outside_bound(d, exact, bound).any() for _, d in results(a, b, way=way)]
                if torch.stack(flags).any():
                    wrong.append(f"thread {seed}")
        except Exception as error:
            wrong.append(f"thread {seed}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_b43_descriptors_belong_to_their_call() -> None:
    """Shapes alternate on one stream without a pause, 200 times.

    A descriptor edited in place would serve the wrong call. Bits are compared, since an error in one tile hides in an
    aggregate norm.
    """
    sizes = [128, 128, 256, 256, 128, 256, 256, 256]
    a, b = normal(768, 256, dtype=BF16, device="cuda"), normal(2048, 256, dtype=BF16, device="cuda")
    calls = [(a[:, :k], b[:, :k].t()) for k in sizes]
    for way in ways(*calls[0], splits=()):
        if not all(way in ways(*call, splits=()) for call in calls):
            continue
        request = {"kernel_name": way.kernel, "schedule": way.schedule} if way.kernel else {}
        expected = [bits(OP(*call, **request)).clone() for call in calls]
        torch.cuda.synchronize()
        differs = [(bits(OP(*calls[i % 8], **request)) != expected[i % 8]).any() for i in range(200)]
        assert not torch.stack(differs).any(), way
        for call, want in zip(calls, expected, strict=True):
            assert not reference.outside_bound(want.view(BF16), *oracle(*call)).any(), way


@pytest.fixture(scope="module")
def outcome_of_hangs(device: _C.Device) -> dict[str, int]:
    """B44, B46 and B47 in a process of their own, for they would hang."""
    program = [sys.executable, str(Path(__file__).with_name("hangs.py")), "B44", "B46", "B47"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        result = subprocess.run(program, capture_output=True, text=True, timeout=120, env=env, check=False)
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"").decode()
        pytest.fail(f"hung after: {said or 'nothing'}")
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("B4")]
    print(result.stderr[-4000:])
    return {name: int(count) for name, count in lines}


def test_b44_stream_k_with_few_tiles(outcome_of_hangs: dict[str, int]) -> None:
    assert outcome_of_hangs.get("B44", 0) > 20


def test_b46_beta_with_clusters(outcome_of_hangs: dict[str, int]) -> None:
    assert outcome_of_hangs.get("B46", 0) > 12


def test_b47_two_calls_in_a_graph(outcome_of_hangs: dict[str, int]) -> None:
    assert outcome_of_hangs.get("B47", 0) > 8
