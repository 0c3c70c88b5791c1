"""Chains of small GEMMs as a decoder runs them: blocks of four layers in one CUDA graph.

Every layer reads what the layer before it wrote, so that a kernel cannot start on its activations early, and
what lies between two kernels (a launch, the first bytes, the last store) is in the time. The three arms are those
of a suite: torch, gemmx, and one streaming read of a block's weights, by gemmx.bench.time_arms; input set i of the
timer is block i. Nothing has to empty L2: the weights of all blocks together are many times its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmx import _C, reference
from gemmx.bench.suite import Result, best_stream_read, four_digits, ratio_fields, timing_fields
from gemmx.bench.timer import Arm, time_arms
from gemmx.ops import describe

METHOD = (
    "one CUDA graph of all blocks per arm, with its own memory pool, weights of its own for every layer of every "
    "block (no flush: together more than 3x L2); every layer reads the output of the one before it; arms interleaved "
    "in one process, order changed every round; random normal data; per-block median, p10 and p90 over rounds; "
    "ratios are medians of per-round ratios; >= 100 ms of warm-up rounds per row, rows without pause (steady state)"
)
M_VALUES = (1, 4, 8, 16, 32, 64)
DTYPE = torch.bfloat16
ARMS = ("torch", "gemmx", "floor")
RATIOS = (("torch", "gemmx"), ("floor", "gemmx"), ("floor", "torch"))
# One graph is one pass over the blocks: a block takes longer than this.
TIMING: dict[str, Any] = {"target_us": 1.0, "budget_us": 400_000.0, "max_rounds": 150}

Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """A linear layer: weight (N, K)."""

    name: str
    N: int
    K: int


@dataclass(frozen=True)
class Chain:
    """Blocks of layers. A layer reads the first K columns of what the layer before it wrote, the first of the last."""

    name: str
    blocks: int
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        for before, layer in zip((self.layers[-1], *self.layers), self.layers, strict=False):
            if layer.K > before.N:
                raise ValueError(f"{self.name}: {layer.name} reads {layer.K} columns, {before.name} writes {before.N}")
            if layer.N * layer.K % 8:
                raise ValueError(f"{self.name}: {layer.name} has {layer.N}x{layer.K} weights; it takes a multiple of 8")

    @property
    def weight_bytes(self) -> int:
        """Of one block."""
        return sum(layer.N * layer.K for layer in self.layers) * DTYPE.itemsize

    def flops(self, m: int) -> int:
        """Of one block."""
        return sum(2 * m * layer.N * layer.K for layer in self.layers)

    def flushes_itself(self, l2_bytes: int) -> bool:
        """Whether a weight is read again only after other weights of three times L2."""
        return (self.blocks - 1) * self.weight_bytes >= 3 * l2_bytes


LLAMA = Chain("llama3-8b", 8, (
    Layer("qkv", 6144, 4096), Layer("o", 4096, 4096), Layer("gateup", 28672, 4096), Layer("down", 4096, 14336),
))  # fmt: skip


class Weights:
    """Random normal weights, scaled by K^-1/2 so that every layer keeps the variance of its input.

    A block lies in one buffer, which the floor reads in one launch.
    """

    def __init__(self, chain: Chain, device: str = "cuda") -> None:
        self.chain = chain
        elements = chain.weight_bytes // DTYPE.itemsize
        self.buffers = [torch.empty(elements, dtype=DTYPE, device=device).normal_() for _ in range(chain.blocks)]
        self.blocks = [self._layers(buffer) for buffer in self.buffers]

    def _layers(self, buffer: Tensor) -> list[Tensor]:
        """One (K, N) operand a layer: the transpose of a weight stored (N, K)."""
        parts = torch.split(buffer, [layer.N * layer.K for layer in self.chain.layers])
        return [
            part.view(layer.N, layer.K).mul_(layer.K**-0.5).t()
            for part, layer in zip(parts, self.chain.layers, strict=True)
        ]


class Pass:
    """An arm of time_arms: run(i) computes block i from what block i - 1 wrote, block 0 from x.

    `outputs[i]` has what the layers of block i wrote last, (M, N) each; a graph captured from it writes there again.
    All are kept, so that they can be compared; they are small beside the weights.
    """

    def __init__(self, weights: Weights, x: Tensor, product: Product) -> None:
        self.weights = weights
        self.x = x
        self.product = product
        self.outputs: list[list[Tensor]] = [[] for _ in weights.blocks]

    def __call__(self, block: int) -> None:
        self.outputs[block] = written = []
        hidden = self.x if block == 0 else self.outputs[block - 1][-1]
        for b in self.weights.blocks[block]:
            hidden = self.product(columns(hidden, b), b)
            written.append(hidden)

    def run(self) -> list[Tensor]:
        """All blocks, once; every layer's output in order."""
        for block in range(self.weights.chain.blocks):
            self(block)
        return self.written()

    def written(self) -> list[Tensor]:
        return [output for block in self.outputs for output in block]

    def inputs(self, block: int) -> list[Tensor]:
        """What the layers of a block read, as the product gets it."""
        first = self.x if block == 0 else self.outputs[block - 1][-1]
        hidden = [first, *self.outputs[block][:-1]]
        return [columns(h, b) for h, b in zip(hidden, self.weights.blocks[block], strict=True)]


def columns(hidden: Tensor, b: Tensor) -> Tensor:
    """The first K columns, a view: its row stride is the width of the layer that wrote it."""
    return hidden[:, : b.shape[0]]


# ---- checks --------------------------------------------------------------------------------------------------


def tolerance(layers: int) -> float:
    """How far two chains may be apart after so many layers, in the 2-norm of a row over that row's norm.

    Rounding to bfloat16 moves a row of normal values by 2^-9.2 of its norm, and such steps add up in quadrature:
    2^-8.7 sqrt(layers) for two chains. torch may round partial sums too.
    """
    return math.sqrt(layers) * 2.0**-7


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest distance between two chains' rows, over its tolerance; inf where a value is NaN or infinite."""
    worst = 0.0
    for layer, (x, y) in enumerate(zip(ours, theirs, strict=True), start=1):
        distance = (x.double() - y.double()).norm(dim=1) / y.double().norm(dim=1)
        worst = max(worst, float(distance.nan_to_num(nan=torch.inf).max()) / tolerance(layer))
    return worst


def error_over_bound(arm: Pass, block: int) -> float:
    """The greatest |D - D64| over the bound of the numerics contract in a block's layers, each on its own input."""
    worst = 0.0
    layers = zip(arm.inputs(block), arm.weights.blocks[block], arm.outputs[block], strict=True)
    for a, b, d in layers:
        exact = reference.gemm(a, b, out_dtype=torch.float64)
        ratio = (d.double() - exact).abs() / reference.error_bound(a, b, out_dtype=d.dtype)
        worst = max(worst, float(ratio.nan_to_num(nan=torch.inf).max()))
    return worst


def layer_plans(arm: Pass, device: Any) -> list[Result]:
    """Name, extents and plan of each layer; those of the first block, whose problems are those of every block."""
    found = []
    for layer, a, b in zip(arm.weights.chain.layers, arm.inputs(0), arm.weights.blocks[0], strict=True):
        plan = _C.select(_C.check_gemm(describe(a), describe(b)).problem, device)
        facts = {"name": layer.name, "N": layer.N, "K": layer.K, "row_stride": a.stride(0)}
        found.append({**facts, "kernel": plan.kernel, "plan": str(plan)})
    return found


def check_gemmx(arm: Pass, device: Any) -> Result:
    """Runs gemmx's chain eagerly; its plans and the first block's error. RuntimeError where another kernel ran.

    The memory that the outputs will get holds NaN before, so that an element never written shows.
    """
    layers, m = arm.weights.chain.layers * arm.weights.chain.blocks, arm.x.shape[0]
    blanks = [torch.full((m, layer.N), math.nan, dtype=DTYPE, device=arm.x.device) for layer in layers]
    del blanks
    _C.reset_launch_counts()
    arm.run()
    torch.cuda.synchronize()
    ran = sorted(name for name, count in _C.launch_counts().items() if count)
    plans = layer_plans(arm, device)
    named = sorted({plan["kernel"] for plan in plans})
    if ran != named:
        raise RuntimeError(f"the plans name {', '.join(named)}, but the chain launched {', '.join(ran) or 'nothing'}")
    return {"layers": plans, "error": round(error_over_bound(arm, 0), 4)}


# ---- measurement ---------------------------------------------------------------------------------------------


def row_name(chain: Chain, m: int) -> str:
    return f"{chain.name}-m{m}"


def measure_chain(chain: Chain, m_values: Sequence[int], device: Any, tensors_on: str = "cuda") -> list[Result]:
    """One row an M; all rows on the same weights. A row that raises is recorded as failed, and the next one runs."""
    weights = Weights(chain, tensors_on)
    best, reason = best_stream_read(weights.buffers, device.sm_count)
    if best is None:
        raise RuntimeError(f"the floor cannot be measured: {reason}")
    rows = []
    for m in m_values:
        row: Result = {"suite": "chain", "name": row_name(chain, m), "M": m, "blocks": chain.blocks,
                       "weight_bytes": chain.weight_bytes, "l2_bytes": device.l2_bytes}  # fmt: skip
        try:
            rows.append({**row, "status": "measured", **_measure(weights, m, device, best)})
        except Exception as error:
            rows.append({**row, "status": "failed", "reason": f"{type(error).__name__}: {error}"})
    return rows


def _measure(weights: Weights, m: int, device: Any, floor: tuple[int, Arm]) -> Result:
    chain = weights.chain
    # As wide as the last layer's output: the first block has the same row strides as the others.
    x = torch.randn(m, chain.layers[-1].N, dtype=DTYPE, device=weights.buffers[0].device)
    ours, theirs = Pass(weights, x, torch.ops.gemmx.gemm), Pass(weights, x, torch.mm)
    result = check_gemmx(ours, device)
    eager = ours.written()
    _refuse_difference("eager", difference(eager, theirs.run()))

    timings = time_arms({"torch": theirs, "gemmx": ours, "floor": floor[1]}, sets=chain.blocks, **TIMING)
    for arm in ARMS:
        if timings[arm].error is not None:
            raise RuntimeError(f"{arm}: {timings[arm].error}")
        result |= timing_fields(arm, timings[arm])
    for over, under in RATIOS:
        result |= ratio_fields(timings, over, under)

    # What the graphs wrote in their last replay.
    if not all(torch.equal(x, y) for x, y in zip(ours.written(), eager, strict=True)):
        raise RuntimeError("gemmx: the graph's outputs differ from those of the eager calls")
    result["difference"] = round(difference(ours.written(), theirs.written()), 4)
    _refuse_difference("graph", result["difference"])

    result |= {"floor_variant": floor[0], "launches": timings["gemmx"].launches}
    result["rounds"] = len(timings["gemmx"].samples)
    result |= {f"{arm}_weight_gbps": four_digits(chain.weight_bytes / result[f"{arm}_us"] / 1e3) for arm in ARMS}
    result["tflops"] = four_digits(chain.flops(m) / result["gemmx_us"] / 1e6)
    return result


def _refuse_difference(mode: str, over_tolerance: float) -> None:
    if not over_tolerance <= 1:
        raise RuntimeError(f"{mode}: the chains of gemmx and torch are {over_tolerance:.3g} of their tolerance apart")
