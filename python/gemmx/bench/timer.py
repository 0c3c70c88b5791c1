"""The one timer of gemmx: several ways of computing the same thing, timed side by side on one GPU.

What it does, and what each part prevents (docs/benchmarks.md has the numbers):

- All arms run in one process, one replay each per round, in an order that changes every round. A GEMM slows
  down by 5-12 % while the card warms up; arms measured one after the other would differ by that much.
- A replay is a CUDA graph of many launches, about 1.5 ms long: host time and the start of the graph (a few us)
  vanish. Every arm has the same number of launches, in a graph of its own with its own memory pool.
- Launch i uses input set i % sets. The sets share no memory and exceed the L2 cache threefold, and a graph's
  launches are a multiple of the sets: no launch, of whichever arm, finds its operands in L2.
- Rounds are enqueued without waiting in between, so that the card neither idles nor cools.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gemmx.bench.stats import quantile

COLD_L2_BYTES = 180_000_000  # three times the 60 MB of an H100/H200; a GPU with more L2 gets more, see sets_for
MIN_SETS = 2
MAX_SETS = 1024  # operands under 180 KB: a set is a few allocations, and 1024 of them are enough to make
SHORT_KERNEL_US = 50.0
MIN_SHORT_LAUNCHES = 20
MAX_LAUNCHES = 2048

Arm = Callable[[int], None]


def sets_for(bytes_per_set: int, l2_bytes: int = COLD_L2_BYTES // 3) -> int:
    """How many input sets of this size make every launch find a cold L2.

    Three L2 sizes (at least 180 MB) in all, never fewer than 2 sets nor more than 1024.
    """
    total = max(COLD_L2_BYTES, 3 * l2_bytes)
    return min(MAX_SETS, max(MIN_SETS, math.ceil(total / max(1, bytes_per_set))))


def launches_for(kernel_us: float, sets: int, target_us: float) -> int:
    """Launches per graph: enough for target_us, and at least 20 when the kernel is under 50 us.

    Always a multiple of sets: the next arm starts with set 0 again, which must be cold by then.
    """
    wanted = math.ceil(target_us / max(kernel_us, 0.1))
    if kernel_us < SHORT_KERNEL_US:
        wanted = max(wanted, MIN_SHORT_LAUNCHES)
    wanted = min(wanted, MAX_LAUNCHES)
    return max(1, math.ceil(wanted / sets)) * sets


def round_order(names: Sequence[str], r: int) -> list[str]:
    """The order of the arms in round r.

    Rotated by r, so that each arm takes each place; reversed in odd rounds, so that no arm always follows the
    same one.
    """
    turn = r % len(names)
    order = [*names[turn:], *names[:turn]]
    return order[::-1] if r % 2 else order


@dataclass(frozen=True)
class Timing:
    """Microseconds per launch of one arm.

    `samples` has one entry per round; entry r of every arm of a call of time_arms comes from the same round.
    `error` is set, and there are no samples, when the arm failed.
    """

    median_us: float
    p10_us: float
    p90_us: float
    samples: tuple[float, ...] = ()
    launches: int = 0
    error: str | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[float], launches: int) -> Timing:
        p10, median, p90 = (quantile(samples, q) for q in (0.1, 0.5, 0.9))
        return cls(median, p10, p90, tuple(samples), launches)

    @classmethod
    def failed(cls, error: Exception) -> Timing:
        return cls(math.nan, math.nan, math.nan, error=f"{type(error).__name__}: {error}")


class Backend(Protocol):
    """What time_arms needs of a GPU; the tests supply one with a fake clock."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Runs it eagerly and waits, so that module loads and handle creation stay out of the capture."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Records what `run` launches; the result replays it, asynchronously."""

    def mark(self) -> Any:
        """Records a point in the GPU's time line."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Time between two marks; valid after synchronize."""

    def synchronize(self) -> None: ...


class CudaBackend:
    """CUDA graphs and events.

    Warm-up, capture and replay share one side stream: torch keeps a cuBLAS workspace per stream, and one first
    needed during a capture would be allocated from the graph's pool.
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def warm_up(self, run: Callable[[], None]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            run()
        self.stream.synchronize()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        failure: Exception | None = None
        with torch.cuda.stream(self.stream):  # a failed torch.cuda.graph leaves its stream current; this does not
            try:
                # No pool argument: a private pool per graph, so arms do not hand memory to each other.
                with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    try:
                        run()
                    except Exception as error:
                        failure = error  # the capture must be ended first, and its own complaint says less
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

        def replay() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e3 * float(start.elapsed_time(end))

    def synchronize(self) -> None:
        torch.cuda.synchronize()


@functools.cache
def _cuda_backend(device: int) -> CudaBackend:
    with torch.cuda.device(device):
        return CudaBackend()


def time_arms(
    arms: Mapping[str, Arm],
    *,
    sets: int,
    target_us: float = 1500.0,
    warmup_us: float = 100_000.0,
    budget_us: float = 300_000.0,
    min_rounds: int = 10,
    max_rounds: int = 100,
    backend: Backend | None = None,
) -> dict[str, Timing]:
    """Times each arm, interleaved, and returns one Timing per arm, in the order given.

    An arm is called with the number of an input set, 0 <= i < sets, and must enqueue one computation on it on
    the current stream; it must be capturable and keep its inputs and outputs alive itself. An arm that raises
    is reported through its Timing.error and left out; the others are measured. A kernel that faults on the GPU
    raises from here: nothing can be measured in this process afterwards.

    target_us   length of one replay        warmup_us   rounds run first and thrown away
    budget_us   length of all measured rounds together, within min_rounds and max_rounds
    """
    if sets < 1:
        raise ValueError(f"time_arms: sets is {sets}; it takes at least 1 input set")
    gpu = backend if backend is not None else _cuda_backend(torch.cuda.current_device())
    errors: dict[str, Timing] = {}
    launches = 0
    replays: dict[str, Callable[[], None]] = {}
    for name, arm in arms.items():
        try:
            gpu.warm_up(functools.partial(_launch, arm, min(sets, 3), sets))
            if not launches:  # the first arm that works decides for all
                launches = launches_for(_probe_us(gpu, arm, sets), sets, target_us)
            replays[name] = gpu.capture(functools.partial(_launch, arm, launches, sets))
        except Exception as error:
            errors[name] = Timing.failed(error)
    samples = _measure(
        gpu, replays, warmup_us=warmup_us, budget_us=budget_us, min_rounds=min_rounds, max_rounds=max_rounds
    )
    timings = {n: Timing.from_samples([us / launches for us in s], launches) for n, s in samples.items()}
    return {name: timings.get(name) or errors[name] for name in arms}


def _launch(arm: Arm, launches: int, sets: int) -> None:
    for i in range(launches):
        arm(i % sets)


def _probe_us(gpu: Backend, arm: Arm, sets: int) -> float:
    """Rough time of one launch, from the second replay of one pass over the sets."""
    replay = gpu.capture(lambda: _launch(arm, sets, sets))
    replay()
    start = gpu.mark()
    replay()
    end = gpu.mark()
    gpu.synchronize()
    return gpu.elapsed_us(start, end) / sets


def _measure(
    gpu: Backend,
    replays: Mapping[str, Callable[[], None]],
    *,
    warmup_us: float,
    budget_us: float,
    min_rounds: int,
    max_rounds: int,
) -> dict[str, list[float]]:
    """Microseconds per replay, per arm, one entry per round."""
    if not replays:
        return {}
    first = _run_rounds(gpu, replays, 0, 1)  # uploads the graphs; too slow to count, so the estimate is low
    round_us = max(1.0, sum(times[0] for times in first.values()))
    rounds = max(min_rounds, min(max_rounds, int(budget_us / round_us)))
    warmup = max(1, min(max_rounds, int(warmup_us / round_us)))
    samples = _run_rounds(gpu, replays, 1, warmup + rounds)
    return {name: times[warmup:] for name, times in samples.items()}


def _run_rounds(
    gpu: Backend, replays: Mapping[str, Callable[[], None]], first: int, count: int
) -> dict[str, list[float]]:
    names = list(replays)
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
    for r in range(first, first + count):
        for name in round_order(names, r):
            start = gpu.mark()
            replays[name]()
            marks[name].append((start, gpu.mark()))
    gpu.synchronize()
    return {name: [gpu.elapsed_us(*pair) for pair in pairs] for name, pairs in marks.items()}
