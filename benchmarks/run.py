#!/usr/bin/env python3
"""Measures gemmx on the GPU present and writes benchmarks/results/<gpu>/<suite>.json.

    python benchmarks/run.py                                every suite this version can run
    python benchmarks/run.py --suite dense,decode,layouts
    python benchmarks/run.py --suite decode --rows 'm16$'   prints only: a part of a suite is no result file
    python benchmarks/run.py --mode host                    host time per call -> host.json
    python benchmarks/run.py --mode chain                   blocks of decode layers in one graph -> chain.json
    python benchmarks/run.py --mode invariant               rows of dense, mid, decode by default and under
                                                            batch_invariant -> invariant.json

Exit code 1 when a row failed or broke its error bound, 2 when nothing can be measured here.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gemmx import _C
from gemmx.bench import chain, epilogue, invariant, results
from gemmx.bench.host import measure_host
from gemmx.bench.manifest import Row, load
from gemmx.bench.suite import Result, measure_row, outcome

ROOT = Path(__file__).resolve().parent


ROW_MODES = ("suite", "chain", "invariant")  # that measure some rows where asked to


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="comma-separated names of benchmarks/manifests/*.csv; default: all supported")
    parser.add_argument("--mode", choices=("suite", "host", "chain", "invariant"), default="suite")
    parser.add_argument("--arch", choices=("sm80", "sm90", "sm100"), help="refuse to run on another GPU architecture")
    parser.add_argument("--rows", default="", help="measure rows whose name matches this regular expression")
    parser.add_argument("--limit", type=int, default=0, help="measure at most this many rows of a suite")
    parser.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results")
    options = parser.parse_args()
    for name, modes in (("suite", ("suite", "invariant")), ("rows", ROW_MODES), ("limit", ROW_MODES)):
        if getattr(options, name) and options.mode not in modes:
            parser.error(f"--{name} says nothing to --mode {options.mode}; it is for {', '.join(modes)}, leave it out")
    return options


def check_gpu(arch: str | None) -> str:
    """Why nothing can be measured here, in one sentence; "" when it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible to torch; benchmarks need one"
    if not _C.build_archs():
        return "this build has no CUDA kernels; build with GEMMX_CUDA_ARCHS naming this GPU's architecture"
    major, _ = torch.cuda.get_device_capability()
    present = f"sm{major}0"
    if arch not in (None, present):
        return f"--arch is {arch}, but this GPU is {present}; leave --arch out or run on a GPU of that architecture"
    return ""


def suites(names: str | None) -> dict[str, list[Row]]:
    """The manifests asked for, by default those with a row that this version can run."""
    paths = {path.stem: path for path in sorted((ROOT / "manifests").glob("*.csv"))}
    if names is None:
        loaded = {name: load(path) for name, path in paths.items()}
        return {name: rows for name, rows in loaded.items() if any(not row.unsupported() for row in rows)}
    unknown = [name for name in names.split(",") if name not in paths]
    if unknown:
        raise SystemExit(f"--suite: there is no suite {', '.join(unknown)}; there are {', '.join(paths)}")
    return {name: load(paths[name]) for name in names.split(",")}


def cell(x: float | None, digits: int = 2) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.{digits}f}"


HEAD = ("row", "M x N x K", "gemmx", "own", "torch", "Lt best", "floor", "torch/gemmx", "TFLOP/s", "GB/s", "error",
        "kernel")  # fmt: skip


def row_cells(row: Result) -> list[str]:
    times = [cell(row.get(f"{arm}_us")) for arm in ("gemmx", "own", "torch", "cublaslt_best", "floor")]
    ratio, tflops, gbps = cell(row["torch_over_gemmx"], 3), cell(row["tflops"], 1), cell(row["gbps"], 0)
    shape = f"{row['M']}x{row['N']}x{row['K']}"
    return [row["name"], shape, *times, ratio, tflops, gbps, cell(row["error"], 3), row["kernel"]]


EPILOGUE_HEAD = ("row, us", "gemmx", "own", "eager", "compile", "_addmm_", "torch/gemmx", "eager/gemmx", "goals",
                 "error", "compiled s", "kernel")  # fmt: skip


def epilogue_cells(row: Result) -> list[str]:
    times = [cell(row.get(f"{arm}_us")) for arm in ("gemmx", "own", "eager", "compile", epilogue.ADDMM_ARM)]
    ratios = [cell(row[f"{over}_over_gemmx"], 3) for over in ("torch", "eager")]
    goals = ", ".join(f"{g.over} {g.least:g}{'' if g.met(row) else ' MISSED'}" for g in epilogue.goals(row))
    compiled = f"{row['compile_seconds']:.1f}{' tuned' if row['compile'] else ''}"
    return [row["name"], *times, *ratios, goals or "-", cell(row["error"], 3), compiled, row["kernel"]]


def print_suite(document: results.Document) -> None:
    rows = document["rows"]
    measured = [row for row in rows if row["status"] == "measured"]
    if measured and document["header"]["suite"] == epilogue.SUITE:
        print(results.text_table(EPILOGUE_HEAD, [epilogue_cells(row) for row in measured]))
    elif measured:
        print(results.text_table(HEAD, [row_cells(row) for row in measured]))
    for row in rows:
        if row["status"] != "measured":
            print(f"{row['status']} {row['name']}: {row['reason']}")


def summary_line(s: results.Summary) -> str:
    return (
        f"{s.suite}: {s.measured} measured, {s.skipped} skipped, {s.failed} failed; geomean torch/gemmx "
        f"{cell(s.torch_over_gemmx, 3)} (worst {cell(s.worst, 3)} {s.worst_row}); own {cell(s.torch_over_own, 3)} "
        f"(worst {cell(s.own_worst, 3)} {s.own_worst_row}); Lt best/gemmx {cell(s.cublaslt_over_gemmx, 3)}; "
        f"floor/gemmx {cell(s.floor_share, 3)}; cuBLASLt serves {cell(100 * s.cublaslt_share, 0)} %; "
        f"largest error {cell(s.max_error, 3)} of its bound"
    )


def run_rows(rows: list[Row], device: Any, measure: Callable[[Row, Any], Result]) -> list[Result]:
    """Every row's result, failures included.

    A row that raises is recorded as failed and the next one runs; when it took the CUDA context with it, the
    rows after it say so.
    """
    measured: list[Result] = []
    lost = ""
    for row in rows:
        if lost:
            measured.append(outcome(row, "failed", f"not run: row {lost} destroyed the CUDA context"))
            continue
        start = time.perf_counter()
        try:
            measured.append(measure(row, device))
        except Exception as error:
            measured.append(outcome(row, "failed", f"{type(error).__name__}: {error}"))
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                lost = row.name
        seconds = time.perf_counter() - start
        print(f"  {row.suite}/{row.name} {measured[-1]['status']} {seconds:.1f} s", file=sys.stderr, flush=True)
    return measured


def broken(row: Result) -> bool:
    keys = ("error", "own_error", "default_error", "difference")
    errors = [row[key] for key in keys if key in row]
    return row["status"] == "failed" or not all(0 <= error <= 1 for error in errors)


def command() -> str:
    """The command line as someone else would repeat it: without where its results went."""
    words = sys.argv[1:]
    kept = [w for i, w in enumerate(words) if not w.startswith("--out") and (i == 0 or words[i - 1] != "--out")]
    return " ".join(["python benchmarks/run.py", shlex.join(kept)]).strip()


def save(out: Path, name: str, rows: list[Result], method: str = results.METHOD) -> results.Document:
    ordinal = torch.cuda.current_device()
    document: results.Document = {
        "header": results.make_header(name, ordinal, _C.source_hash(), command(), method),
        "rows": rows,
    }
    results.write(out / results.slug(document["header"]["gpu"]) / f"{name}.json", document)
    return document


def run_host(device: Any, out: Path) -> int:
    rows = measure_host(device)
    save(out, "host", rows)
    head = ("problem", "mode", "gemmx us", "torch us", "torch/gemmx", "plan")
    print(results.text_table(head, [
        [f"{r['M']}x{r['N']}x{r['K']}", r["mode"], cell(r["gemmx_us"]), cell(r["torch_us"]),
         cell(r["torch_over_gemmx"]), r["plan"]] for r in rows]))  # fmt: skip
    return 0


CHAIN_HEAD = ("chain, us a block", "torch", "gemmx", "floor", "torch/gemmx", "floor/gemmx", "weight GB/s", "error",
              "difference")  # fmt: skip


def run_chain(device: Any, out: Path | None, options: argparse.Namespace) -> int:
    values = [m for m in chain.M_VALUES if re.search(options.rows, chain.row_name(chain.LLAMA, m))]
    rows = chain.measure_chain(chain.LLAMA, values[: options.limit or None], device)
    if out is not None:
        save(out, "chain", rows, chain.METHOD)
    measured = [row for row in rows if row["status"] == "measured"]
    print(results.text_table(CHAIN_HEAD, [
        [r["name"], *(cell(r[f"{arm}_us"]) for arm in chain.ARMS), cell(r["torch_over_gemmx"], 3),
         cell(r["floor_over_gemmx"], 3), cell(r["gemmx_weight_gbps"], 0), cell(r["error"], 3),
         cell(r["difference"], 3)] for r in measured]))  # fmt: skip
    for row in rows:
        if row["status"] != "measured":
            print(f"{row['status']} {row['name']}: {row['reason']}")
    return int(any(broken(row) for row in rows))


def run_invariant(device: Any, out: Path, options: argparse.Namespace) -> int:
    names = options.suite or ",".join(invariant.SUITES)
    partial = bool(options.rows or options.limit or options.suite)
    rows = [
        row
        for manifest in suites(names).values()
        for row in [row for row in manifest if re.search(options.rows, row.name)][: options.limit or None]
    ]
    measured = run_rows(rows, device, invariant.measure_invariant_row)
    document: results.Document = {"rows": measured}
    if not partial or options.out is not None:
        document = save(out, "invariant", measured, invariant.INVARIANT_METHOD)
    head = ("row", "M x N x K", "default", "invariant", "torch", "invariant/default", "torch/invariant", "kernel")
    print(results.text_table(head, [
        [f"{r['suite']}/{r['name']}", f"{r['M']}x{r['N']}x{r['K']}",
         *(cell(r[f"{arm}_us"]) for arm in invariant.ARMS), cell(r["invariant_over_default"], 3),
         cell(r["torch_over_invariant"], 3), r["kernel"]] for r in measured if r["status"] == "measured"]))  # fmt: skip
    for row in measured:
        if row["status"] != "measured":
            print(f"{row['status']} {row['name']}: {row['reason']}")
    for c in invariant.costs(document):
        print(
            f"{c.suite}: {c.rows} measured, {c.failed} failed, {c.same_plan} run the default's plan; geomean "
            f"invariant/default {cell(c.over_default, 3)} (worst {cell(c.worst, 3)} {c.worst_row}); torch/invariant "
            f"{cell(c.torch_over_invariant, 3)} (worst {cell(c.slowest, 3)} {c.slowest_row})"
        )
    return int(any(broken(row) for row in measured))


def main() -> int:
    options = parse_arguments()
    reason = check_gpu(options.arch)
    if reason:
        print(reason, file=sys.stderr)
        return 2
    torch.manual_seed(0)
    device = _C.cuda_device(torch.cuda.current_device())
    out = options.out or ROOT / "results"
    results.make_header("", torch.cuda.current_device(), "", "")  # what cannot be read fails now, not after the run
    if options.mode == "host":
        return run_host(device, out)
    if options.mode == "invariant":
        return run_invariant(device, out, options)
    partial = bool(options.rows or options.limit)
    if options.mode == "chain":
        return run_chain(device, None if partial and options.out is None else out, options)
    documents: list[results.Document] = []
    for name, manifest in suites(options.suite).items():
        rows = [row for row in manifest if re.search(options.rows, row.name)]
        measured = run_rows(rows[: options.limit or None], device, measure_row)
        if partial and options.out is None:
            documents.append({"header": {"suite": name}, "rows": measured})
        else:
            documents.append(save(out, name, measured))
        print_suite(documents[-1])
    print("\n".join(summary_line(results.summarise(document)) for document in documents))
    return int(any(broken(row) for document in documents for row in document["rows"]))


if __name__ == "__main__":
    sys.exit(main())
