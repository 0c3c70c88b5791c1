"""The main job, run once: `python -m gemmx.demo` (or `make demo`).

The four linear layers of a Llama-3-8B block, D = silu(A @ weight.t() + bias) in bf16, at M = 1, 16, 512 and 2048
tokens. With a CUDA GPU each is checked against float64 and timed beside torch's silu(linear(...)); without one the
same runs through the CPU reference at a sixteenth of the size, and gemmx.explain says what an H200 would run.
Exit code 1 when an error exceeds the bound of the numerics contract (docs/design.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

import gemmx
from gemmx import reference
from gemmx.bench.timer import sets_for, time_arms

# name, N, K of Llama-3-8B: hidden 4096, 32 query and 8 key/value heads of 128, feed-forward 14336.
LAYERS = (("qkv", 6144, 4096), ("o", 4096, 4096), ("gate-up", 28672, 4096), ("down", 4096, 14336))
TOKENS = (1, 16, 512, 2048)
CPU_SHRINK = 16
CHECK_ROWS = 256  # rows of float64 at a time: 256 x 28672 of them are 59 MB
TIME_BUDGET_US = 200_000.0  # of measured rounds for each of the 16 products


@dataclass(frozen=True)
class Product:
    """One product of the demo: D (m, n) = silu(A (m, k) @ weight (n, k).t() + bias (n,))."""

    layer: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class InputSet:
    a: Tensor
    weight: Tensor
    bias: Tensor


def products(shrink: int = 1) -> list[Product]:
    """The sixteen products; every size divided by `shrink`, at least 1."""
    return [Product(layer, max(1, m // shrink), n // shrink, k // shrink) for m in TOKENS for layer, n, k in LAYERS]


def make_inputs(p: Product, device: str) -> InputSet:
    """Random operands in bf16, scaled so that A @ weight.t() is of order 1."""
    a = torch.randn(p.m, p.k, device=device, dtype=torch.bfloat16)
    weight = torch.randn(p.n, p.k, device=device, dtype=torch.bfloat16).mul_(p.k**-0.5)
    return InputSet(a, weight, torch.randn(p.n, device=device, dtype=torch.bfloat16))


def run(x: InputSet) -> Tensor:
    """The layer by gemmx: one launch."""
    return gemmx.gemm(x.a, x.weight.t(), bias=x.bias, activation="silu")


def run_torch(x: InputSet) -> Tensor:
    """The layer as a torch user writes it."""
    return silu(linear(x.a, x.weight, x.bias))


def _arm(call: Callable[[InputSet], Tensor], inputs: list[InputSet], i: int) -> None:
    call(inputs[i])


def error_over_bound(d: Tensor, x: InputSet) -> float:
    """The greatest |D - D64| / bound over all elements, against float64 on D's device; inf for a NaN in D."""
    worst = 0.0
    b = x.weight.t().double()
    for rows in range(0, d.shape[0], CHECK_ROWS):
        part = slice(rows, rows + CHECK_ROWS)
        a = x.a[part].double()
        exact = reference.gemm(a, b, bias=x.bias, activation="silu", out_dtype=torch.float64)
        bound = reference.error_bound(a, b, bias=x.bias, activation="silu", out_dtype=d.dtype)
        ratio = ((d[part].double() - exact).abs() / bound).nan_to_num(nan=torch.inf).max()
        worst = max(worst, float(ratio))
    return worst


def print_table(rows: list[list[str]]) -> None:
    """Columns separated by two blanks, the first row as head; numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip(), flush=True)


def verdict(errors: list[float]) -> int:
    """Prints the greatest error and returns the exit code."""
    worst = max(errors)
    within = worst <= 1.0
    print(f"\nGreatest error: {worst:.3f} of the bound: {'right' if within else 'WRONG'}.")
    return 0 if within else 1


def demo_gpu() -> int:
    """Checks and times every product on the current CUDA device."""
    name = torch.cuda.get_device_name()
    print(f"silu(A @ weight.t() + bias) in bf16, Llama-3-8B's layers, on {name}.")
    print("Each is checked against float64, then timed beside torch: interleaved CUDA graphs, cold L2, medians.\n")
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    rows = [["layer", "M", "N", "K", "kernel", "gemmx us", "torch us", "torch/gemmx", "error/bound"]]
    errors = []
    for p in products():
        one = make_inputs(p, "cuda")
        error = error_over_bound(run(one), one)
        errors.append(error)
        kernel = gemmx.explain(one.a, one.weight.t(), bias=one.bias, activation="silu").kernel
        sets = sets_for(2 * (p.m * p.k + p.n * p.k + p.n), l2_bytes)
        inputs = [one, *(make_inputs(p, "cuda") for _ in range(sets - 1))]
        timings = time_arms(
            {"gemmx": partial(_arm, run, inputs), "torch": partial(_arm, run_torch, inputs)},
            sets=sets,
            budget_us=TIME_BUDGET_US,
        )
        ours, theirs = timings["gemmx"], timings["torch"]
        if failed := ours.error or theirs.error:
            raise RuntimeError(f"timing {p.layer} at M={p.m} failed: {failed}")
        ratio = theirs.median_us / ours.median_us
        rows.append([p.layer, *map(str, (p.m, p.n, p.k)), kernel])
        rows[-1] += [f"{ours.median_us:.1f}", f"{theirs.median_us:.1f}", f"{ratio:.2f}", f"{error:.3f}"]
    print_table(rows)
    return verdict(errors)


def demo_cpu() -> int:
    """Runs the products at a small size through the CPU reference, and explains the real ones for an H200."""
    print("No CUDA GPU here (or a library built without CUDA), so the layers run through the CPU reference,")
    print(f"every size divided by {CPU_SHRINK}, checked against float64.\n")
    rows = [["layer", "M", "N", "K", "error/bound"]]
    errors = []
    for p in products(CPU_SHRINK):
        x = make_inputs(p, "cpu")
        errors.append(error_over_bound(run(x), x))
        rows.append([p.layer, *map(str, (p.m, p.n, p.k)), f"{errors[-1]:.3f}"])
    print_table(rows)
    print("\nWhat an H200 would run at full size, by the model of gemmx.explain:\n")
    rows = [["layer", "M", "N", "K", "kernel", "model us", "roofline us", "bound"]]
    for p in products():
        e = gemmx.explain.shape(p.m, p.n, p.k, bias="bf16", activation="silu", device="h200")
        rows.append([p.layer, *map(str, (p.m, p.n, p.k)), e.kernel])
        rows[-1] += [f"{e.predicted_us:.1f}", f"{e.roofline.time_us:.1f}", e.roofline.bound]
    print_table(rows)
    print("\nOne of them in full:\n")
    print(gemmx.explain.shape(16, 6144, 4096, bias="bf16", activation="silu", device="h200"))
    return verdict(errors)


def main() -> int:
    """Runs the demo that this machine can; returns the exit code."""
    torch.manual_seed(0)
    with torch.inference_mode():
        return demo_gpu() if torch.cuda.is_available() and gemmx._C.build_archs() else demo_cpu()


if __name__ == "__main__":
    sys.exit(main())
