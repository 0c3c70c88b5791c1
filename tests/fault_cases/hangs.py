"""Calls that could hang: run by test_runtime.py in a process with a time limit, since a hung GPU call can't be ended.

    python tests/fault_cases/hangs.py B44 B46 B47

Each case prints its id and the number of results that were right.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]

from every_way import OP, oracle, results, ways  # noqa: E402
from gemmx import reference  # noqa: E402
from problems import bits  # noqa: E402

F16, BF16 = torch.float16, torch.bfloat16


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
    return a, torch.randn(n, k, device="cuda", generator=generator).to(dtype).t()


def b44_few_tiles() -> int:
    """Stream-K and split-K with less tiles than SMs; twice in a row, so that counters must have come back to 0."""
    count = 0
    for m, n, k, dtype in (
        (3584, 1, 4736, BF16), (3088, 1, 4736, BF16), (3072, 1, 4736, BF16), (16, 2560, 8192, F16),
        (16, 2560, 8192, BF16), (512, 1024, 4096, BF16), (8, 8192, 8192, BF16), (1, 8, 4736, BF16),
        (8, 8, 16_384, BF16), (128, 256, 65_536, BF16),
    ):  # fmt: skip
        a, b = operands(m, n, k, dtype)
        exact, bound = oracle(a, b)
        for way in ways(a, b, splits=(2, 8)):
            for _ in range(2):
                for what, d in results(a, b, way=way, outs=(None,)):
                    assert not reference.outside_bound(d, exact, bound).any(), f"{what}: {m}x{n}x{k}"
                    count += 1
    return count


def b46_beta_with_clusters() -> int:
    """One tile, and more tiles than SMs, under every tile, cluster and schedule."""
    count = 0
    for m, n, k in ((64, 64, 256), (128, 128, 128), (2048, 3072, 256), (2064, 3080, 264)):
        a, b = operands(m, n, k, BF16)
        c = torch.randn(m, n, device="cuda").to(BF16)
        for beta in (0.0, 1.0, 0.5):
            exact, bound = oracle(a, b, c=c, beta=beta)
            for way in ways(a, b, c=c, beta=beta):
                for what, d in results(a, b, way=way, outs=(None,), c=c, beta=beta):
                    assert not reference.outside_bound(d, exact, bound).any(), f"{what}: {m}x{n}x{k}, beta {beta}"
                    count += 1
    return count


def b47_two_calls_in_a_graph() -> int:
    """Back to back on one stream, with one workspace after the other: 100 replays of equal bits."""
    count = 0
    for m, n, k in ((64, 512, 4096), (300, 1024, 2048)):
        a, b = operands(m, n, k, BF16)
        for way in ways(a, b, splits=(3,)):
            request = {"kernel_name": way.kernel, "schedule": way.schedule, "splits": way.splits}
            request = request if way.kernel else {}
            first, second = OP(a, b, **request), OP(a, b, alpha=0.5, **request)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                d, e = OP(a, b, **request), OP(a, b, alpha=0.5, **request)
            for replay in range(1, 101):
                if replay in (1, 2, 3, 100):
                    d.fill_(torch.nan)
                    e.fill_(torch.nan)
                graph.replay()
                if replay in (1, 2, 3, 100):
                    assert torch.equal(bits(d), bits(first)), f"{way}: replay {replay}"
                    assert torch.equal(bits(e), bits(second)), f"{way}: replay {replay}"
                    count += 2
    return count


CASES = {"B44": b44_few_tiles, "B46": b46_beta_with_clusters, "B47": b47_two_calls_in_a_graph}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        right = CASES[name]()
        torch.cuda.synchronize()
        print(name, right, flush=True)
