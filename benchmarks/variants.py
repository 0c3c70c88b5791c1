#!/usr/bin/env python3
"""Times named kernels side by side with torch on a list of shapes: for choosing tile shapes.

    python benchmarks/variants.py --kernels 'sm90.*kk' --shapes 4096x4096x4096,16x4096x4096
    python benchmarks/variants.py --kernels sm80 --shapes 16x4096x14336 --splits 1,2,4,8 --json out.json
    python benchmarks/variants.py --kernels 'sm90.*128x256' --shapes 512x28672x4096 --stream-k
    python benchmarks/variants.py --kernels 'sm90.*128x128' --shapes 4096x8192x2048 --epilogue residual --dtype f16
    python benchmarks/variants.py --kernels 'sm90.*swapab_32' --shapes 16x4096x4096 --behind

Every kernel whose name matches and that takes the problem is an arm; with --splits, once per number of splits
it supports, with --stream-k once more in that schedule. Majors as in kernel names: A's, then B's. With --behind each
is also timed behind elementwise kernels, whose own time is in it, as in a model (gemmx.bench.cases.behind_elementwise).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from gemmx import _C
from gemmx.bench import results
from gemmx.bench.cases import BEHIND, Case, behind_elementwise
from gemmx.bench.manifest import Row
from gemmx.bench.stats import paired_ratio
from gemmx.bench.suite import check_call, four_digits, torch_precision
from gemmx.bench.timer import Arm, time_arms


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", required=True, help="regular expression over registry names")
    parser.add_argument("--shapes", required=True, help="comma-separated MxNxK or BATCHxMxNxK")
    parser.add_argument("--majors", default="kk", help="majors of A (k, m) and B (k, n); default kk, the linear layer")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"))
    parser.add_argument("--epilogue", default="none", help="as in a manifest, e.g. bias+silu or residual; default none")
    parser.add_argument("--splits", default="1", help="comma-separated numbers of splits of K; default 1")
    parser.add_argument("--stream-k", action="store_true", help="also the schedule stream_k, of kernels that have it")
    parser.add_argument("--behind", action="store_true", help="time each behind elementwise kernels as well")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser.parse_args()


def shape_row(shape: str, majors: str, dtype: str, epilogue: str = "none") -> Row:
    """A product with that epilogue as a manifest row; C of a residual has the inputs' dtype."""
    sizes = [int(part) for part in shape.split("x")]
    if len(sizes) not in (3, 4):
        raise SystemExit(f"--shapes: got {shape}; it takes MxNxK or BATCHxMxNxK")
    batch, m, n, k = [1, *sizes][-4:]
    residual = "residual" in epilogue.split("+")
    return Row("variants", shape, m, n, k, batch, majors[0], majors[1], "n", dtype, dtype, dtype if residual else "",
               dtype, "f32", 1.0, float(residual), epilogue, "none", 0, 0, 0, 0, 16, 64, "", 1.0)  # fmt: skip


def requests(pattern: str, splits: list[int], stream_k: bool, device: Any) -> dict[str, dict[str, Any]]:
    """The op's arguments per arm: each built kernel that matches, in each schedule asked for."""
    found: dict[str, dict[str, Any]] = {}
    for spec in _C.kernels():
        if not re.search(pattern, spec.name) or not _C.built_for(spec.name, device.capability):
            continue
        for s in splits:
            if s == 1 and "data_parallel" in spec.schedules:
                found[spec.name] = {"kernel": spec.name, "schedule": "data_parallel"}
            elif s == 1 and "stream_k" in spec.schedules:
                found[spec.name] = {"kernel": spec.name, "schedule": "stream_k"}
            elif s > 1 and "split_k" in spec.schedules:
                found[f"{spec.name} split_k {s}"] = {"kernel": spec.name, "schedule": "split_k", "splits": s}
        if stream_k and {"data_parallel", "stream_k"} <= set(spec.schedules):
            found[f"{spec.name} stream_k"] = {"kernel": spec.name, "schedule": "stream_k"}
    return found


def measure(row: Row, candidates: dict[str, dict[str, Any]], device: Any, behind: bool = False) -> list[dict[str, Any]]:
    """One entry per kernel: its numbers, or why it does not take the problem or failed.

    behind: each has `behind_us` and `torch_behind_us` too, with the elementwise kernels' own time.
    """
    case = Case(row, l2_bytes=device.l2_bytes)
    arms: dict[str, Arm] = {"torch": case.arm(case.torch_call())}
    if behind:
        arms["torch" + BEHIND] = behind_elementwise(case, case.torch_call())
    entries: dict[str, dict[str, Any]] = {}
    for name, request in candidates.items():
        entries[name] = {"shape": row.name, "name": name, **request}
        try:
            case.problem(**request)
            entries[name]["error"] = round(check_call(case, case.gemmx_call(**request), request["kernel"]), 4)
            arms[name] = case.arm(case.gemmx_call(**request))
            if behind:
                arms[name + BEHIND] = behind_elementwise(case, case.gemmx_call(**request))
        except (RuntimeError, ValueError) as error:
            entries[name]["reason"] = str(error)
    timings = time_arms(arms, sets=case.sets)
    reference = timings["torch"]
    for name, timing in timings.items():
        if name == "torch" or name.endswith(BEHIND):
            continue
        if timing.error is not None or reference.error is not None:
            entries[name]["reason"] = timing.error or f"torch: {reference.error}"
            continue
        ratio = paired_ratio(reference.samples, timing.samples)
        entries[name] |= {"us": round(timing.median_us, 3), "torch_us": round(reference.median_us, 3)}
        entries[name] |= {"of_torch": round(ratio.median, 4), "of_torch_p10": round(ratio.p10, 4)}
        if behind and not (timings[name + BEHIND].error or timings["torch" + BEHIND].error):
            entries[name]["behind_us"] = round(timings[name + BEHIND].median_us, 3)
            entries[name]["torch_behind_us"] = round(timings["torch" + BEHIND].median_us, 3)
        entries[name] |= {
            "of_torch_p90": round(ratio.p90, 4),
            "tflops": four_digits(row.flops / timing.median_us / 1e6),
        }
    return list(entries.values())


def print_shape(row: Row, entries: list[dict[str, Any]]) -> None:
    timed = sorted((e for e in entries if "us" in e), key=lambda e: float(e["us"]))
    print(f"{row.shape} {row.major_a}{row.major_b} {row.dtype_a}")
    if timed:
        head = ["kernel", "us", "% of torch", "p10", "p90", "TFLOP/s", "error"]
        lines = [
            [e["name"], f"{e['us']:.2f}", f"{100 * e['of_torch']:.1f}", f"{100 * e['of_torch_p10']:.1f}",
             f"{100 * e['of_torch_p90']:.1f}", f"{e['tflops']:.1f}", f"{e['error']:.3f}"] for e in timed]  # fmt: skip
        if any("behind_us" in e for e in timed):
            head += ["behind us", "torch behind us"]
            for e, line in zip(timed, lines, strict=True):
                line += [f"{e[key]:.2f}" if key in e else "-" for key in ("behind_us", "torch_behind_us")]
        print(results.text_table(head, lines))
    for e in entries:
        if "us" not in e:
            print(f"  not timed {e['name']}: {e['reason']}")


def main() -> int:
    options = parse_arguments()
    device = _C.cuda_device(torch.cuda.current_device())
    candidates = requests(options.kernels, [int(s) for s in options.splits.split(",")], options.stream_k, device)
    if not candidates:
        print(f"--kernels: no kernel built for this GPU matches {options.kernels!r}", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    entries: list[dict[str, Any]] = []
    for shape in options.shapes.split(","):
        row = shape_row(shape, options.majors, options.dtype, options.epilogue)
        with torch_precision(row.compute):
            measured = measure(row, candidates, device, options.behind)
        print_shape(row, measured)
        entries += measured
    if options.json:
        options.json.write_text(json.dumps(entries, indent=1) + "\n")
    return int(any(e.get("error", 0) > 1 for e in entries))


if __name__ == "__main__":
    sys.exit(main())
