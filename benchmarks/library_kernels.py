#!/usr/bin/env python3
"""Prints which kernels torch runs for the rows of a manifest: names, grids and shared memory.

    python benchmarks/library_kernels.py --suite mid
    python benchmarks/library_kernels.py --suite decode --rows 'm16$'

What a kernel that is to beat the library stands against. Nothing is timed here; kernels under a profiler are slower.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gemmx import _C
from gemmx.bench import manifest, results
from gemmx.bench.cases import Case
from gemmx.bench.suite import torch_precision

MANIFESTS = Path(__file__).parent / "manifests"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="comma-separated suites of benchmarks/manifests")
    parser.add_argument("--rows", default="", help="regular expression over row names; default: all")
    return parser.parse_args()


def launches(trace: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(kernel, grid, block, shared KB) of every kernel in a chrome trace, in the order of their starts."""
    events = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    found = []
    for event in sorted(events, key=lambda e: float(e["ts"])):
        arguments = event.get("args", {})
        sizes = ["x".join(str(size) for size in arguments.get(key, [])) or "-" for key in ("grid", "block")]
        shared = arguments.get("shared memory")
        found.append((str(event["name"]), sizes[0], sizes[1], "-" if shared is None else f"{shared / 1024:.1f}"))
    return found


def trace_of(case: Case) -> dict[str, Any]:
    """The trace of one call of torch, after one that loads what it needs."""
    call, inputs = case.torch_call(), case.inputs[0]
    out = case.make_out() if case.needs_out else None
    call(inputs, out)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call(inputs, out)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        trace: dict[str, Any] = json.loads(file.read_text())
        return trace


def main() -> int:
    options = parse_arguments()
    device = _C.cuda_device(torch.cuda.current_device())
    lines: list[list[str]] = []
    for suite in options.suite.split(","):
        for row in manifest.load(MANIFESTS / f"{suite}.csv"):
            if not re.search(options.rows, row.name) or row.unsupported():
                continue
            with torch_precision(row.compute):
                found = launches(trace_of(Case(row, sets=1, l2_bytes=device.l2_bytes)))
            lines += [[row.name, row.shape, *launch] for launch in found]
    if not lines:
        print(f"--rows: no row of {options.suite} that this version runs matches {options.rows!r}", file=sys.stderr)
        return 2
    print(results.text_table(("row", "MxNxK", "kernel", "grid", "block", "shared KB"), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
