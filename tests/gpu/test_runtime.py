"""How the op behaves in a process: plans, streams, threads, graphs, devices."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmx
from gemmx import _C
from gemmx.ops import check
from problems import ALIGNED, PACKED, Case, Instance, Layout, bits, instance

pytestmark = pytest.mark.gpu

# A linear layer, a decode layer, an unaligned one, float32, a split of K with a workspace.
CALLS = (
    (Case(512, 1024, 512, bias="a", activation="gelu").with_majors("k", "k"), "bf16"),
    (Case(1, 4096, 4096).with_majors("k", "k"), "bf16"),
    (Case(65, 131, 77, b=Layout(ld_pad=1)).with_majors("k", "n"), "f16"),
    (Case(100, 200, 300, c="full", beta=0.5).with_majors("m", "n"), "f32"),
    (Case(16, 256, 4096, a=ALIGNED, b=ALIGNED, splits=4).with_majors("k", "k"), "bf16"),
)


def launched(before: dict[str, int]) -> dict[str, int]:
    after = _C.launch_counts()
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


@pytest.mark.parametrize(("case", "dtype"), CALLS, ids=str)
def test_op_runs_the_plan_that_explain_prints(case: Case, dtype: str, device: _C.Device) -> None:
    inst = instance(case, dtype)
    explanation = gemmx.explain(inst.a, inst.b, **inst.kwargs)
    plan = _C.select(check(inst.a, inst.b, **inst.kwargs).problem, device)
    assert plan.to_dict() == _C.Plan.from_dict(explanation.plan).to_dict()
    before = _C.launch_counts()
    assert inst.faults(inst.run()) == []
    assert launched(before) == {explanation.kernel: 1}
    assert explanation.kernel in str(explanation)


def test_plan_is_decided_once() -> None:
    inst = instance(*CALLS[0])
    _C.clear_plan_cache()
    start = _C.plan_cache_info()
    for _ in range(5):
        inst.run()
    end = _C.plan_cache_info()
    assert (end["misses"] - start["misses"], end["hits"] - start["hits"], end["size"]) == (1, 4, 1)
    # Another alignment is another Problem; another value of alpha beyond 0 and 1 is not.
    x = torch.ones(513, 512, dtype=torch.bfloat16, device="cuda").flatten()[1 : 1 + 512 * 512].view(512, 512)
    torch.ops.gemmx.gemm(x, inst.b, bias=inst.bias, activation="gelu")
    for alpha in (0.5, 0.25):
        torch.ops.gemmx.gemm(inst.a, inst.b, bias=inst.bias, activation="gelu", alpha=alpha)
    assert _C.plan_cache_info()["size"] == 3


def test_empty_calls_launch_nothing() -> None:
    before = _C.launch_counts()
    for shape_a, shape_b, shape_d in (
        ((0, 8), (8, 4), (0, 4)),
        ((3, 8), (8, 0), (3, 0)),
        ((0, 3, 8), (0, 8, 4), (0, 3, 4)),
        ((2, 0, 8), (8, 4), (2, 0, 4)),
    ):
        a, b = torch.ones(shape_a, device="cuda"), torch.ones(shape_b, device="cuda")
        d = torch.ops.gemmx.gemm(a, b)
        assert d.shape == shape_d
        assert d.stride() == torch.empty(shape_d, device="meta").stride()
        torch.ops.gemmx.gemm_out(a, b, out=d)
    assert launched(before) == {}


@pytest.mark.parametrize(("case", "dtype"), CALLS, ids=str)
def test_runs_on_the_current_stream(case: Case, dtype: str) -> None:
    """The default stream is kept busy: what a call put there would come too late for this stream's reader."""
    inst = instance(case, dtype)
    expected = bits(inst.run()).clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # This stream's memory is in torch's cache from here on: no cudaMalloc, which may synchronise.
        torch.full((1 << 22,), torch.nan, device="cuda")
        inst.run()
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)  # about 0.2 s
    with torch.cuda.stream(stream):
        torch.full((1 << 22,), torch.nan, device="cuda")  # this stream's next workspace
        d = inst.run()
        same = (bits(d) == expected).all().cpu()
    busy = not torch.cuda.default_stream().query()
    assert same
    assert busy, "the default stream was waited for"


def test_threads_share_a_cold_cache() -> None:
    """16 threads with a stream each make the first calls of every problem at once, then go on in mixed order."""
    instances = [instance(case, dtype) for case, dtype in CALLS]
    expected = [bits(inst.run()).clone() for inst in instances]
    torch.cuda.synchronize()
    _C.clear_plan_cache()
    barrier = threading.Barrier(16)
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            barrier.wait()
            with torch.cuda.stream(stream):
                flags = []
                for i in range(200):
                    which = (seed + i * (1 + seed % 3)) % len(instances)
                    inst = instances[which]
                    d: Tensor = torch.ops.gemmx.gemm(inst.a, inst.b, **inst.kwargs)
                    flags.append((bits(d) != expected[which]).any())
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


@pytest.mark.parametrize(("case", "dtype"), CALLS, ids=str)
def test_graph_replay_equals_eager(case: Case, dtype: str) -> None:
    """Replayed after larger eager calls, an emptied cache and a gigabyte of NaN: the graph owns its workspace."""
    inst = instance(case, dtype)
    expected = bits(inst.run()).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = torch.ops.gemmx.gemm(inst.a, inst.b, **inst.kwargs)
        twice = torch.ops.gemmx.gemm(inst.a, inst.b, **inst.kwargs)
    larger = instance(Case(64, 2048, 8192, splits=8, a=ALIGNED, b=ALIGNED).with_majors("k", "k"), "bf16")
    for _ in range(3):
        larger.run()
        torch.full((1 << 28,), torch.nan, device="cuda")
        torch.cuda.empty_cache()
        d.fill_(torch.nan)
        twice.fill_(torch.nan)
        graph.replay()
        assert torch.equal(bits(d), expected)
        assert torch.equal(bits(twice), expected)


def test_first_call_may_be_captured() -> None:
    """Selection and preparation happen inside the capture: neither synchronises nor touches another stream."""
    inst = instance(*CALLS[0])
    expected = bits(inst.run()).clone()
    _C.clear_plan_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = torch.ops.gemmx.gemm(inst.a, inst.b, **inst.kwargs)
    graph.replay()
    assert torch.equal(bits(d), expected)


@pytest.mark.parametrize("schedule", [None, "split_k", "stream_k"])
@pytest.mark.parametrize("k", [64, 1024])
def test_a_product_of_what_the_one_before_wrote(k: int, schedule: str | None) -> None:
    """Kernels start while the one before still runs: one that reads its D, or packs it first, must have waited for it.

    With K = 64 every tile of a stream-K product has one worker, and its reduction nothing to do. The first N is odd, so
    that the second product packs; the third reads rows as they lie. The same calls with a wait after each, and without.
    """
    torch.manual_seed(k)
    make = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    inputs = [make(2048, k) for _ in range(4)]
    weights = (make(4097, k).t(), make(256, 4097).t(), make(4096, 256).t())

    def chain(wait: bool) -> list[Tensor]:
        results = []
        for i in range(12):
            x = inputs[i % len(inputs)]
            for weight in weights:
                x = gemmx.gemm(x, weight, schedule=schedule)
                if wait:
                    torch.cuda.synchronize()
            results.append(x)
        return results

    def same(results: list[Tensor]) -> bool:
        return all(torch.equal(bits(d), bits(e)) for d, e in zip(results, expected, strict=True))

    expected = chain(wait=True)
    assert all(same(chain(wait=False)) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(wait=False)
    graph.replay()
    assert same(captured)


@pytest.mark.parametrize(("case", "dtype"), CALLS, ids=str)
def test_tensors_of_another_device(case: Case, dtype: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    inst = instance(case, dtype, "cuda:1")
    assert torch.cuda.current_device() == 0
    d = inst.run()
    assert d.device == torch.device("cuda:1")
    assert inst.faults(d) == []
    assert torch.cuda.current_device() == 0
    # One thread, alternating.
    here = instance(case, dtype)
    for _ in range(3):
        assert torch.equal(bits(here.run()).to("cuda:1"), bits(inst.run()))
    with pytest.raises(ValueError, match="b: is on cuda:1 but a is on cuda:0"):
        torch.ops.gemmx.gemm(here.a, inst.b)


def peak_bytes(call: Any) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - start


def test_shared_operand_is_not_materialised() -> None:
    a, b = torch.ones(2048, 2048, device="cuda"), torch.ones(64, 2048, 1, device="cuda")
    d_bytes = 64 * 2048 * 4
    assert peak_bytes(lambda: torch.ops.gemmx.gemm(a, b)) <= 2 * d_bytes + (4 << 20)
    expanded = a.expand(64, 2048, 2048)
    assert peak_bytes(lambda: torch.ops.gemmx.gemm(expanded, b)) <= 2 * d_bytes + (4 << 20)


def test_out_variant_allocates_nothing_but_workspace(device: _C.Device) -> None:
    for case, dtype in CALLS:
        inst: Instance = instance(case, dtype)
        out = inst.run()
        problem = check(inst.a, inst.b, **inst.kwargs, out=out).problem
        plan = _C.select(problem, device)
        workspace = _C.workspace_size(plan.kernel, problem, plan, device)
        used = peak_bytes(lambda inst=inst, out=out: torch.ops.gemmx.gemm_out(inst.a, inst.b, **inst.kwargs, out=out))
        assert used <= -(-workspace // 512) * 512 + 512, str(case)


def test_inference_mode_and_no_grad() -> None:
    inst = instance(Case(33, 40, 72, a=PACKED).with_majors("k", "k"), "bf16")
    expected = bits(inst.run())
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert torch.equal(bits(inst.run()), expected)


def test_out_is_refused_where_a_gradient_would_be_recorded() -> None:
    a, b = (torch.ones(*shape, device="cuda", requires_grad=True) for shape in ((4, 8), (8, 4)))
    out = torch.empty(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match="has no gradient and an argument requires grad"):
        torch.ops.gemmx.gemm_out(a, b, out=out)
    with torch.no_grad():
        torch.ops.gemmx.gemm_out(a, b, out=out)
        assert not torch.ops.gemmx.gemm(a, b).requires_grad
    assert (out == 8.0).all()
