#!/usr/bin/env python3
"""Measures the ladder on the GPU present and writes benchmarks/results/<gpu>/ladder.json.

    python benchmarks/ladder.py              everything, about 80 s on an H200
    python benchmarks/ladder.py --no-ncu     without Nsight Compute's counters

Four kinds of rows:
  rung    a rung beside torch.mm of the same precision (fp32 without TF32), one row a size; at 4096 with its counters
  order   rung 5 or 7 with one order of its tiles, beside the other orders and torch.mm, with its counters
  ceiling at 4096, what rung 5 can reach: the production kernel that multiplies by mma.sync, and as many mma.sync as
          the product takes from registers alone
  torch   the counters of torch.mm at 4096
Afterwards `python benchmarks/ladder_report.py` writes docs/ladder.md and its plots.

Exit code 1 when a row failed or broke its error bound, 2 when nothing can be measured here.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmx import _C
from gemmx.bench import results
from gemmx.bench.cases import Call, Case, Inputs
from gemmx.bench.manifest import Row
from gemmx.bench.stats import paired_ratio
from gemmx.bench.suite import check_call, four_digits, torch_precision
from gemmx.bench.timer import Arm, Timing, time_arms
from gemmx.select.selector import choose

ROOT = Path(__file__).resolve().parent
SIZES = (256, 512, 1024, 2048, 4096, 8192)
STUDY_SIZES = (1024, 2048, 4096, 8192)
STUDY_RUNGS = (5, 7)
COUNTED_SIZE = 4096
HILBERT = _C.testing.hilbert
# Raster and swizzle of a Plan. along_n, 1: row by row. along_n, g: groups of g rows, down a column of the group first.
ORDERS: dict[str, tuple[str, int]] = {
    "row": ("along_n", 1),
    "column": ("along_m", 1),
    "group 4": ("along_n", 4),
    "group 8": ("along_n", 8),
    "group 16": ("along_n", 16),
    "Hilbert": ("along_n", HILBERT),
}
MMA_SYNC = "sm80_gemm_bf16_bf16_f32_any_kk_128x256x64_w64x64_s3"  # the production kernel of rung 5's kind
MMA_RATE = "mma.sync from registers"
# An fp32 round at 8192 takes a second: few are enough, and all that fits into the minutes that a ladder may take.
SLOW = {"min_rounds": 3, "warmup_us": 1.0, "budget_us": 1.0}
USUAL = {"budget_us": 200_000.0}

Counters = dict[str, float]


def rungs() -> list[Any]:
    """The specs of the ladder that this GPU runs, in order."""
    capability = _C.cuda_device(torch.cuda.current_device()).capability
    return [s for s in _C.kernels() if s.family == "ladder" and _C.built_for(s.name, capability)]


def rung_number(name: str) -> int:
    return int(name.split("_")[1])


def cube(size: int, dtype: str) -> Row:
    """A plain product of size^3 in the layout that the rungs of this dtype take."""
    major_b = "n" if dtype == "f32" else "k"
    return Row("ladder", f"{dtype}-{size}", size, size, size, 1, "k", major_b, "n", dtype, dtype, "", dtype, "f32", 1.0,
               0.0, "none", "none", 0, 0, 0, 0, 16, 64, "", 1.0)  # fmt: skip


# ---- timing --------------------------------------------------------------------------------------------------


def timing_fields(prefix: str, timing: Timing) -> dict[str, float]:
    values = (timing.median_us, timing.p10_us, timing.p90_us)
    return {f"{prefix}us{suffix}": round(v, 3) for suffix, v in zip(("", "_p10", "_p90"), values, strict=True)}


def ratio_fields(key: str, numerator: Timing, denominator: Timing) -> dict[str, float]:
    ratio = paired_ratio(numerator.samples, denominator.samples)
    return {key: round(ratio.median, 4), f"{key}_p10": round(ratio.p10, 4), f"{key}_p90": round(ratio.p90, 4)}


def fill(rows: dict[str, dict[str, Any]], timings: dict[str, Timing], flops: float) -> None:
    """Times and ratios against torch into the rows of the arms; a failed arm says why."""
    reference = timings["torch"]
    for name, row in rows.items():
        timing = timings.get(name)
        if row["status"] != "measured" or timing is None:
            continue
        if timing.error or reference.error:
            row.update({"status": "failed", "reason": timing.error or f"torch: {reference.error}"})
            continue
        row.update(timing_fields("", timing) | timing_fields("torch_", reference))
        row.update(ratio_fields("of_torch", reference, timing))
        row.update(
            tflops=four_digits(flops / timing.median_us / 1e6),
            torch_tflops=four_digits(flops / reference.median_us / 1e6),
        )


def mma_rate_arm(flops: int, sm_count: int) -> Arm:
    """mma.sync on every SM without a memory access, as many as a product of so many FLOPs takes (to 0.1 %)."""
    sink = torch.empty(1, dtype=torch.float32, device="cuda")
    iterations = round(flops / (sm_count * _C.mma_rate_flops()))

    def run(i: int) -> None:
        _C.mma_rate(iterations, sink.data_ptr(), sm_count, torch.cuda.current_stream().cuda_stream)

    return run


def measure_size(size: int, dtype: str, device: Any) -> list[dict[str, Any]]:
    """Every rung of this dtype beside torch; at 4096 also the production kernel that uses mma.sync."""
    row = cube(size, dtype)
    names = [s.name for s in rungs() if s.dtype_a == dtype]
    if size == COUNTED_SIZE and dtype == "bf16":
        names.append(MMA_SYNC)
    with torch_precision(row.compute):
        case = Case(row, l2_bytes=device.l2_bytes)
        arms: dict[str, Arm] = {"torch": case.arm(case.torch_call())}
        rows: dict[str, dict[str, Any]] = {}
        for name in names:
            call = case.gemmx_call(kernel=name, schedule="data_parallel")
            kind = "ceiling" if name == MMA_SYNC else "rung"
            rows[name] = {"kind": kind, "name": name, "size": size, "dtype": dtype, "status": "measured"}
            plan = _C.select(case.problem(kernel=name, schedule="data_parallel"), device)
            rows[name] |= {"raster": plan.raster, "swizzle": plan.swizzle}
            try:
                rows[name]["error"] = check_call(case, call, name)
                arms[name] = case.arm(call)
            except RuntimeError as error:
                rows[name] |= {"status": "failed", "reason": str(error)}
        if size == COUNTED_SIZE and dtype == "bf16":
            rows[MMA_RATE] = {"kind": "ceiling", "name": MMA_RATE, "size": size, "dtype": dtype, "status": "measured"}
            rows[MMA_RATE]["error"] = 0.0
            arms[MMA_RATE] = mma_rate_arm(row.flops, device.sm_count)
        options = SLOW if dtype == "f32" and size > COUNTED_SIZE else USUAL
        fill(rows, time_arms(arms, sets=case.sets, **options), row.flops)  # type: ignore[arg-type]
    return list(rows.values())


# ---- the order of the tiles ----------------------------------------------------------------------------------


@contextlib.contextmanager
def planned() -> Iterator[Callable[[Any], None]]:
    """use(plan) makes the op run this plan from now on; at the end the usual selector is back."""
    current: list[Any] = [None]

    def use(plan: Any) -> None:
        if current[0] is None or plan != current[0]:
            current[0] = plan
            _C.set_selector(lambda problem, device: plan)  # empties the cache of plans

    try:
        yield use
    finally:
        _C.set_selector(choose)


def with_plan(use: Callable[[Any], None], plan: Any, call: Call) -> Call:
    """The call with this plan: whatever a CUDA graph captures of it keeps the plan."""

    def run(inputs: Inputs, out: Tensor | None) -> Tensor:
        use(plan)
        return call(inputs, out)

    return run


def study_kernels() -> list[Any]:
    return [s for s in rungs() if rung_number(s.name) in STUDY_RUNGS]


def measure_orders(size: int, spec: Any, device: Any) -> list[dict[str, Any]]:
    """The orders of one rung side by side, and torch."""
    row = cube(size, spec.dtype_a)
    with planned() as use:
        case = Case(row, l2_bytes=device.l2_bytes)
        arms: dict[str, Arm] = {"torch": case.arm(case.torch_call())}
        rows: dict[str, dict[str, Any]] = {}
        for order, (raster, swizzle) in ORDERS.items():
            plan = _C.Plan(spec.name, "data_parallel", 1, raster, swizzle)
            call = with_plan(use, plan, case.gemmx_call(kernel=spec.name))
            rows[order] = {"kind": "order", "name": spec.name, "size": size, "dtype": spec.dtype_a, "order": order}
            rows[order] |= {"status": "measured", "raster": raster, "swizzle": swizzle}
            try:
                rows[order]["error"] = check_call(case, call, spec.name)
                arms[order] = case.arm(call)
            except RuntimeError as error:
                rows[order] |= {"status": "failed", "reason": str(error)}
        timings = time_arms(arms, sets=case.sets, **USUAL)  # type: ignore[arg-type]
    fill(rows, timings, row.flops)
    for order, entry in rows.items():
        if entry["status"] == "measured" and not timings["row"].error:
            entry.update(ratio_fields("row_over", timings["row"], timings[order]))
    return list(rows.values())


# ---- Nsight Compute ------------------------------------------------------------------------------------------

COUNTERS = {
    "dram_read_bytes": r"dram__bytes_read\.sum",
    "dram_write_bytes": r"dram__bytes_write\.sum",
    "l2_hit_percent": r"lts__t_sector_hit_rate\.pct",
    "sm_percent": r"sm__throughput\.avg\.pct_of_peak_sustained_elapsed",
    "occupancy_percent": r"sm__warps_active\.avg\.pct_of_peak_sustained_active",
    "tensor_percent": r"sm__(inst_executed_)?pipe_tensor\w*\.avg\.pct_of_peak_sustained_elapsed",
    "fma_percent": r"sm__(inst_executed_)?pipe_fma\w*\.avg\.pct_of_peak_sustained_elapsed",
}
FIXED_METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
# The pipes' names differ from chip to chip: what the installed ncu knows of these is asked for.
PIPES = re.compile(r"^(sm__pipe_tensor(_op_[a-z]+)?_cycles_active|sm__pipe_fma_cycles_active)\b", re.MULTILINE)


def profiled_launches() -> list[tuple[str, int, str, str, int]]:
    """(kernel or "torch", size, dtype, raster, swizzle) in the order in which the profiled process launches them."""
    launches = [(s.name, COUNTED_SIZE, s.dtype_a, "", 0) for s in rungs()]
    launches += [
        (spec.name, size, spec.dtype_a, raster, swizzle)
        for spec in study_kernels()
        for size in STUDY_SIZES
        for raster, swizzle in ORDERS.values()
    ]
    return launches + [("torch", COUNTED_SIZE, dtype, "", 0) for dtype in ("f32", "bf16")]


def run_profiled() -> None:
    """The process under ncu: each launch once, profiling on for it alone."""
    device = _C.cuda_device(torch.cuda.current_device())
    cases: dict[tuple[int, str], Case] = {}
    with planned() as use, torch_precision("f32"):
        for name, size, dtype, raster, swizzle in profiled_launches():
            if (size, dtype) not in cases:
                cases = {(size, dtype): Case(cube(size, dtype), sets=1)}  # the others' memory goes back
                torch.cuda.empty_cache()
            case = cases[size, dtype]
            if name == "torch":
                call = case.torch_call()
            else:
                problem = case.problem(kernel=name)
                plan = _C.Plan(name, "data_parallel", 1, raster, swizzle) if raster else choose(problem, device)
                call = with_plan(use, plan, case.gemmx_call(kernel=name))
            call(case.inputs[0], None)
            torch.cuda.synchronize()
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            call(case.inputs[0], None)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def ncu_metrics(ncu: str) -> list[str]:
    listing = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=60)
    pipes = sorted({found[1] for found in PIPES.finditer(listing.stdout)})
    return [*FIXED_METRICS, *(f"{pipe}.avg.pct_of_peak_sustained_elapsed" for pipe in pipes)]


def parse_ncu(text: str) -> list[tuple[str, Counters]]:
    """(kernel, counters) of each profiled kernel in `ncu --csv --page raw` output, in the order of launches."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise RuntimeError("ncu printed no table: " + " | ".join(lines[-5:]))
    found: list[tuple[str, Counters]] = []
    for record in csv.DictReader(lines[first:]):
        if not (record["ID"] or "").isdigit():
            continue  # the units
        counters: Counters = {}
        for key, pattern in COUNTERS.items():
            cells = [v.replace(",", "") for name, v in record.items() if name and v and re.fullmatch(pattern, name)]
            values = [float(cell) for cell in cells if re.fullmatch(r"[0-9.e+-]+", cell)]
            if values:
                counters[key] = round(max(values), 3)
        found.append((record["Kernel Name"], counters))
    return found


def match_launches(found: list[tuple[str, Counters]], launches: list[tuple[str, int, str, str, int]]) -> list[Counters]:
    """The counters of each launch. The two of torch come last: of its kernels the first and the last count."""
    ours = [name for name, *_ in launches if name != "torch"]
    if len(found) < len(launches):
        raise RuntimeError(f"ncu profiled {len(found)} kernels of {len(launches)}")
    for name, (profiled, _) in zip(ours, found, strict=False):
        if "_config" in profiled and f"{name}_config" not in profiled:
            raise RuntimeError(f"ncu profiled {profiled} where {name} was launched")
    return [counters for _, counters in (*found[: len(ours)], found[len(ours)], found[-1])]


def profile_all() -> tuple[list[Counters], str]:
    """Counters per entry of profiled_launches(), or none and why."""
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if ncu is None:
        return [], "ncu is not installed"
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "application-only"]
    command += ["--csv", "--page", "raw", "--print-units", "base"]
    try:
        command += [
            "--metrics",
            ",".join(ncu_metrics(ncu)),
            sys.executable,
            str(Path(__file__).resolve()),
            "--profiled",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return match_launches(parse_ncu(done.stdout + done.stderr), profiled_launches()), ""
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return [], str(error)


def add_counters(rows: list[dict[str, Any]], counters: list[Counters]) -> None:
    for (name, size, dtype, raster, swizzle), values in zip(profiled_launches(), counters, strict=False):
        if name == "torch":
            rows.append(
                {"kind": "torch", "name": "torch", "size": size, "dtype": dtype, "status": "measured", **values}
            )
            continue
        for row in rows:
            same = row["name"] == name and row["size"] == size
            wanted = (row.get("raster"), row.get("swizzle")) == (raster, swizzle) if raster else row["kind"] == "rung"
            if same and wanted and (row["kind"] == "order") == bool(raster):
                row.update(values)


# ---- what the build says -------------------------------------------------------------------------------------


def build_facts(name: str, info: dict[str, Any], arch: str) -> dict[str, Any]:
    """Registers, spilled bytes and shared memory of the variant for aligned operands."""
    kernel = info["kernels"][name]
    functions = kernel["code"].get(arch, [])
    aligned = [f for f in functions if "Lb1E" in f.get("symbol", "")] or functions
    if not aligned:
        return {}
    code = aligned[0]
    return {
        "registers": code["registers"],
        "spills": code["spill_stores"] + code["spill_loads"],
        "smem_bytes": code.get("static_smem", 0) + kernel["dynamic_smem"],
    }


def add_build_facts(rows: list[dict[str, Any]]) -> None:
    folder = Path(os.environ.get("GEMMX_LIBRARY_DIR") or Path(_C.__file__).parent)
    info = json.loads((folder / "build_info.json").read_text())
    capability = _C.cuda_device(torch.cuda.current_device()).capability
    specs = {spec.name: spec for spec in _C.kernels()}
    for row in rows:
        if row["kind"] == "rung":
            arch = next((a for a in info["archs"] if int(a.rstrip("a")) == capability), info["archs"][0])
            row.update(build_facts(row["name"], info, arch) | {"threads": specs[row["name"]].threads})


# ---- command -------------------------------------------------------------------------------------------------


def print_rows(rows: list[dict[str, Any]]) -> None:
    head = (
        "kernel",
        "size",
        "order",
        "us",
        "% of torch",
        "p10",
        "p90",
        "TFLOP/s",
        "error",
        "L2 %",
        "DRAM MB",
        "tensor %",
    )
    table = []
    for r in rows:
        if "us" not in r:
            if r["status"] != "measured":
                print(f"{r['status']} {r['name']} {r['size']} {r.get('order', '')}: {r['reason']}")
            continue
        counted = [f"{r[k] / scale:.1f}" if k in r else "-" for k, scale in
                   (("l2_hit_percent", 1), ("dram_read_bytes", 1e6), ("tensor_percent", 1))]  # fmt: skip
        table.append([r["name"], str(r["size"]), r.get("order", "-"), f"{r['us']:.2f}",
                      *(f"{100 * r[k]:.1f}" for k in ("of_torch", "of_torch_p10", "of_torch_p90")),
                      f"{r['tflops']:.1f}", f"{r['error']:.3f}", *counted])  # fmt: skip
    if table:
        print(results.text_table(head, table))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-ncu", action="store_true", help="leave out Nsight Compute's counters")
    parser.add_argument("--sizes", help="comma-separated sizes; prints only: a part of the ladder is no result file")
    parser.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results")
    parser.add_argument("--profiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available() or not _C.build_archs() or not rungs():
        print("the ladder needs a CUDA device and a build for it", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    if options.profiled:
        run_profiled()
        return 0
    ordinal = torch.cuda.current_device()
    device = _C.cuda_device(ordinal)
    sizes = tuple(int(s) for s in options.sizes.split(",")) if options.sizes else SIZES
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for dtype in ("f32", "bf16"):
        for size in sizes:
            rows += measure_size(size, dtype, device)
    for spec in study_kernels():
        for size in STUDY_SIZES:
            if size in sizes:
                rows += measure_orders(size, spec, device)
    add_build_facts(rows)
    header = results.make_header("ladder", ordinal, _C.source_hash(), "python benchmarks/ladder.py")
    print(f"timing: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not options.no_ncu and not options.sizes:
        torch.cuda.empty_cache()
        counters, reason = profile_all()
        add_counters(rows, counters)
        header["counters"] = reason or "ncu --clock-control none, caches cold before each kernel"
        print(f"with ncu: {time.perf_counter() - start:.0f} s {reason}", file=sys.stderr)
    print_rows(rows)
    if not options.sizes:
        out = options.out or ROOT / "results"
        results.write(out / results.slug(header["gpu"]) / "ladder.json", {"header": header, "rows": rows})
    return int(any(r["status"] == "failed" or r.get("error", 0) > 1 for r in rows))


if __name__ == "__main__":
    sys.exit(main())
