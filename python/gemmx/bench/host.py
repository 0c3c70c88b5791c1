"""Host time of one call: how long the CPU is busy with torch.ops.gemmx.gemm and with torch.mm.

A batch is 500 calls with eight weights in turn, timed with the host clock; the GPU is waited for between
batches, outside the timed part. 500 calls stay under the 1024 launches that a stream queues before a launch
blocks, so the GPU's own time does not enter. Batches of the two functions alternate.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemmx import _C
from gemmx.bench.stats import paired_ratio
from gemmx.bench.suite import Result, request_for, timing_fields
from gemmx.bench.timer import Timing
from gemmx.ops import describe, op_arguments

CALLS = 500
BATCHES = 40
WARMUP_BATCHES = 4
WEIGHTS = 8
SHAPES = ((16, 64, 64), (64, 4096, 4096))
# The first of these that the selector splits along K is the third problem; few tiles and a long K invite it.
SPLIT_K_SHAPES = ((16, 4096, 14336), (16, 1024, 8192), (64, 512, 16384), (128, 128, 16384))
MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,  # no operand requires a gradient
}

Function = Callable[[Tensor, Tensor], Tensor]


def measure_host(device: Any) -> list[Result]:
    """One row per problem and mode."""
    problems: list[tuple[tuple[int, int, int], dict[str, Any]]] = [(shape, {}) for shape in SHAPES]
    problems.append(split_k_problem(device))
    return [_measure(shape, request, mode, device) for shape, request in problems for mode in MODES]


def split_k_problem(device: Any) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """A shape whose plan is split-K by itself.

    Else the first shape with the request for 4 splits, which costs the call a string argument more.
    """
    for shape in SPLIT_K_SHAPES:
        a, weights = _operands(shape, weights=1)
        plan = _C.select(_C.check_gemm(describe(a), describe(weights[0])).problem, device)
        if plan.schedule == "split_k":
            return shape, {}
    return SPLIT_K_SHAPES[0], {"schedule": "split_k", "splits": 4}


def _operands(shape: tuple[int, int, int], weights: int = WEIGHTS) -> tuple[Tensor, list[Tensor]]:
    m, n, k = shape
    a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
    return a, [torch.randn(n, k, dtype=torch.bfloat16, device="cuda").t() for _ in range(weights)]


def _measure(shape: tuple[int, int, int], request: dict[str, Any], mode: str, device: Any) -> Result:
    a, weights = _operands(shape)
    op, arguments = torch.ops.gemmx.gemm, op_arguments(request)
    functions: dict[str, Function] = {
        # No wrapper where there is no request: it would be timed too.
        "gemmx": (lambda x, y: op(x, y, **arguments)) if request else op,
        "torch": torch.mm,
    }
    with MODES[mode]():
        samples = interleave(functions, a, weights, synchronize=torch.cuda.synchronize)
    plan = _C.select(_C.check_gemm(describe(a), describe(weights[0]), **request).problem, device)
    m, n, k = shape
    result: Result = {"name": f"{m}x{n}x{k}-{mode}", "mode": mode, "M": m, "N": n, "K": k}
    result |= {"kernel": plan.kernel, "plan": str(plan), "request": request_for(plan) if request else {}}
    for name, values in samples.items():
        result |= timing_fields(name, Timing.from_samples(values, CALLS))
    ratio = paired_ratio(samples["torch"], samples["gemmx"])
    return result | {"torch_over_gemmx": round(ratio.median, 4)}


def interleave(
    functions: dict[str, Function],
    a: Tensor,
    weights: list[Tensor],
    *,
    synchronize: Callable[[], None],
    batches: int = BATCHES,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Microseconds per call of each function, one entry per batch, batches alternating."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for batch in range(WARMUP_BATCHES + batches):
        for name, function in functions.items():
            synchronize()
            start = clock()
            for i in range(CALLS):
                function(a, weights[i % WEIGHTS])
            elapsed = clock() - start
            if batch >= WARMUP_BATCHES:
                samples[name].append(1e6 * elapsed / CALLS)
    synchronize()
    return samples
