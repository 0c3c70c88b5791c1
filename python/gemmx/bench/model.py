"""A whole model side by side: which arms there are, how much of the time is GEMMs, and how much could be won.

examples/llama.py builds the models and runs them; here is what needs no model: workloads, the floor of a GEMM, the
upper limit of the speed-up, and the rows of llama.json.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gemmx.bench.stats import paired_ratio
from gemmx.bench.suite import Result, best_stream_read, timing_fields
from gemmx.bench.timer import COLD_L2_BYTES, MIN_SETS, CudaBackend, Timing, time_arms

SUITE = "llama"
TORCH_ARMS = ("eager", "compile")
GEMMX_ARMS = ("gemmx", "gemmx_compile")
ARMS = (*TORCH_ARMS, *GEMMX_ARMS)
METHOD = (
    "one CUDA graph of one step per arm, with its own memory pool (training: no graph); arms interleaved in one "
    "process, order changed every round; random weights and tokens; per-step median, p10 and p90 over rounds; ratios "
    "are medians of per-round ratios, of the better torch arm over the better gemmx arm; >= 100 ms of warm-up rounds "
    "per row (steady state)"
)
ERROR_MARGIN = 1.1  # of the error that torch's own bf16 has against float32
PEAK_SIZE = 8192  # the cube whose FLOP/s count as the peak


# ---- workloads -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """A step of a model: `tokens` new tokens in each of `batch` sequences, which are then `context` tokens long."""

    name: str
    kind: str  # prefill, decode or train
    batch: int
    tokens: int
    context: int

    @property
    def step_tokens(self) -> int:
        return self.batch * self.tokens


WORKLOADS = (
    Workload("prefill-2048", "prefill", 1, 2048, 2048),
    Workload("decode-b1", "decode", 1, 1, 1024),
    Workload("decode-b16", "decode", 16, 1, 1024),
    Workload("decode-b64", "decode", 64, 1, 1024),
    Workload("train-1b", "train", 2, 2048, 2048),
)
# What gemmx is to reach of the better torch arm.
GOALS = {"prefill-2048": 1.03, "decode-b1": 1.04, "decode-b16": 1.07, "decode-b64": 1.04, "train-1b": 1.02}


# ---- the GEMMs of a step -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gemm:
    """D (m, n) = A (m, k) @ B (k, n) in a 16-bit type."""

    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def largest_bytes(self) -> int:
        """Of A, B or D, whichever is larger: in inference the weight, or the activations of a long prompt."""
        return 2 * max(self.m * self.k, self.k * self.n, self.m * self.n)


def gemms_of_linear(m: int, n: int, k: int, train: bool) -> list[Gemm]:
    """A linear layer (n, k) on m tokens; with train the gradients of its input and of its weight too."""
    forward = Gemm(m, n, k)
    return [forward, Gemm(m, k, n), Gemm(n, k, m)] if train else [forward]


def linear_gemms(model: torch.nn.Module, run: Callable[[], Any], train: bool) -> list[Gemm]:
    """The GEMMs of every nn.Linear that `run` calls, by hooks, in order."""
    found: list[Gemm] = []

    def hook(module: torch.nn.Linear, inputs: tuple[torch.Tensor, ...], _: Any) -> None:
        x = inputs[0]
        found.extend(gemms_of_linear(x.numel() // x.shape[-1], module.out_features, module.in_features, train))

    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


# ---- floor and upper limit -----------------------------------------------------------------------------------------


def floor_us(gemms: Iterable[Gemm], read_us: Callable[[int], float], peak_tflops: float) -> float:
    """What the GEMMs take where each either streams its largest matrix or computes at the peak, whichever is longer."""
    return sum(max(read_us(gemm.largest_bytes), gemm.flops / peak_tflops / 1e6) for gemm in gemms)


def upper_limit(step_us: float, gemm_us: float, gemm_floor_us: float) -> float:
    """The speed-up of the step were all its GEMMs at their floor and all else as it is."""
    return step_us / (step_us - gemm_us + min(gemm_us, gemm_floor_us))


def knows_limit(row: Mapping[str, Any]) -> bool:
    """Whether the floor of the row's GEMMs is below what they took: otherwise it says nothing of the step."""
    return bool(row["gemm_floor_us"] < row["gemm_us"])


def measure_reads(sizes: Iterable[int], sm_count: int) -> dict[int, float]:
    """Microseconds of the fastest streaming read of so many bytes, L2 cold."""
    found = {}
    for size in sorted(set(sizes)):
        count = max(MIN_SETS, -(-COLD_L2_BYTES // size))
        buffers = [torch.empty(size, dtype=torch.uint8, device="cuda").random_() for _ in range(count)]
        best, reason = best_stream_read(buffers, sm_count)
        if best is None:
            raise RuntimeError(f"the streaming read of {size} bytes cannot be measured: {reason}")
        timing = time_arms({"read": best[1]}, sets=count, warmup_us=10_000.0, budget_us=30_000.0)["read"]
        found[size] = timing.median_us
    return found


def measure_peak_tflops(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
    """TFLOP/s of a large cube in bfloat16, on the hot card, by torch or by `product`, whichever is faster."""

    def weights() -> torch.Tensor:
        return torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=torch.bfloat16, device="cuda")

    pairs = [(weights(), weights().t()) for _ in range(MIN_SETS)]
    arms = {"torch": lambda i: torch.mm(*pairs[i]), "gemmx": lambda i: product(*pairs[i])}
    timings = time_arms(arms, sets=len(pairs))  # type: ignore[arg-type]  # what an arm returns is dropped
    return 2e-6 * PEAK_SIZE**3 / min(t.median_us for t in timings.values() if t.error is None)


# ---- profile -------------------------------------------------------------------------------------------------------

# cuBLAS, cuBLASLt (nvjet), CUTLASS and Triton's matrix templates; not the attention kernels made of the same parts.
_GEMM = re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|triton_tem\w*mm", re.IGNORECASE)
_NO_GEMM = re.compile(r"fmha|flash|attention|softmax|pointwise", re.IGNORECASE)


def is_gemm(kernel: str) -> bool:
    return bool(_GEMM.search(kernel)) and not _NO_GEMM.search(kernel)


def kernel_times(trace: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """Launches and microseconds of each kernel of a profiler's trace."""
    found: dict[str, tuple[int, float]] = {}
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            count, us = found.get(event["name"], (0, 0.0))
            found[event["name"]] = (count + 1, us + float(event["dur"]))
    return found


def profile(run: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """kernel_times of one run, called eagerly: what its kernels take does not depend on how they are launched."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return kernel_times(json.loads(path.read_text()))


def gemm_share(kernels: Mapping[str, tuple[int, float]]) -> Result:
    """Microseconds in GEMM kernels and in all others, and the GEMM kernels by name."""
    gemms = {name: value for name, value in kernels.items() if is_gemm(name)}
    total = sum(us for _, us in kernels.values())
    gemm_us = sum(us for _, us in gemms.values())
    listed = sorted(gemms.items(), key=lambda item: -item[1][1])
    return {
        "gemm_us": round(gemm_us, 2),
        "other_us": round(total - gemm_us, 2),
        "gemm_kernels": [{"name": name, "launches": count, "us": round(us, 2)} for name, (count, us) in listed],
    }


# ---- rows ----------------------------------------------------------------------------------------------------------


class UncapturedCuda(CudaBackend):
    """Launches an arm where time_arms would replay its graph: for steps whose kernels are not short."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            with torch.cuda.stream(self.stream):
                run()

        return replay


class HostClock:
    """A Backend that runs arms on the CPU, at once."""

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return run

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_us(self, start: float, end: float) -> float:
        return 1e6 * (end - start)

    def synchronize(self) -> None: ...


def row_of(workload: Workload, timings: Mapping[str, Timing], facts: Mapping[str, Any]) -> Result:
    """A measured row: times, tokens per second, the better arm of each side and their paired ratio.

    Raises where an arm could not be measured: without it a side's time would be another one.
    """
    row: Result = {"suite": SUITE, **asdict(workload), "status": "measured", **facts}
    for arm in ARMS:
        if timings[arm].error is not None:
            raise RuntimeError(f"{workload.name}, {arm}: {timings[arm].error}")
        row |= timing_fields(arm, timings[arm])
        row[f"{arm}_tokens_per_s"] = round(workload.step_tokens / timings[arm].median_us * 1e6, 1)
    for side, arms in (("torch", TORCH_ARMS), ("best", GEMMX_ARMS)):
        row[f"{side}_arm"] = min(arms, key=lambda arm: timings[arm].median_us)
    best = timings[row["best_arm"]]
    for over in TORCH_ARMS:
        row[f"{over}_over_gemmx"] = round(paired_ratio(timings[over].samples, best.samples).median, 4)
    ratio = paired_ratio(timings[row["torch_arm"]].samples, best.samples)
    row["torch_over_gemmx"] = round(ratio.median, 4)
    row |= {"torch_over_gemmx_p10": round(ratio.p10, 4), "torch_over_gemmx_p90": round(ratio.p90, 4)}
    row["goal"] = GOALS.get(workload.name)
    return row | {"rounds": len(best.samples)}


def relative_error(values: Iterable[torch.Tensor], exact: Iterable[torch.Tensor]) -> float:
    """|x - exact| / |exact| in the 2-norm over all tensors together; inf where a value is NaN or infinite."""
    distance = norm = 0.0
    for x, y in zip(values, exact, strict=True):
        distance += float((x.double() - y.double()).square().sum())
        norm += float(y.double().square().sum())
    error = (distance / norm) ** 0.5
    return error if error < float("inf") else float("inf")
