#!/usr/bin/env python3
"""Writes the tables and plots of docs/ladder.md from benchmarks/results/<gpu>/ladder.json.

    python benchmarks/ladder_report.py            rewrites the marked blocks and docs/img/<gpu>-ladder.svg
    python benchmarks/ladder_report.py --check    exit code 1, with a sentence each, when something is out of date

A block lies between two markers; what stands there is replaced:

    <!-- begin:ladder nvidia-h200 rungs -->   one line a rung at 4096
    <!-- end:ladder -->
and sizes (TFLOP/s against size, and the plot), folk (beside the percentages usually quoted), ceiling (rung 5 and
mma.sync), orders (the study), traffic (formulas of gemmx.roofline, no measurement).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmx import _C
from gemmx.bench.results import Document, read
from gemmx.roofline import roofline

ROOT = Path(__file__).resolve().parents[1]
PAGE = "docs/ladder.md"
BLOCK = re.compile(r"(<!-- begin:ladder (\S+) (\S+) -->\n)(.*?)(<!-- end:ladder -->)", re.DOTALL)
NOT_MEASURED = "Not measured.\n"
SIZE = 4096
# What must hold at 4096, in % of torch.mm of the same precision.
TARGETS = {0: 10, 1: 15, 2: 45, 3: 80, 4: 32, 5: 50, 6: 80, 7: 96}
STEP = 1.15  # each rung over the one before, within a precision
# The percentages of cuBLAS that are usually quoted, from other cards, and those of simple versions on an H200.
FOLK = {0: "2", 1: "25", 2: "65", 3: "80", 4: "95"}
SIMPLE = {0: "11.5", 1: "17", 2: "41"}

Rows = list[dict[str, Any]]


def rung(row: dict[str, Any]) -> int:
    return int(row["name"].split("_")[1])


def number(x: float | None, digits: int = 1) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    align = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, align, *rows))


def of_kind(rows: Rows, kind: str, **fields: Any) -> Rows:
    found = [r for r in rows if r["kind"] == kind and r["status"] == "measured"]
    return [r for r in found if all(r.get(key) == value for key, value in fields.items())]


def spread(row: dict[str, Any], key: str = "of_torch", scale: float = 100.0, digits: int = 1) -> str:
    p10, p90 = (number(scale * row[f"{key}_{p}"], digits) for p in ("p10", "p90"))
    return f"{number(scale * row[key], digits)} ({p10}, {p90})"


def counter(row: dict[str, Any], key: str, scale: float = 1.0, digits: int = 1) -> str:
    return number(row[key] / scale, digits) if key in row else "-"


# ---- blocks --------------------------------------------------------------------------------------------------


def rungs_block(rows: Rows) -> str:
    head = ["rung", "% of cuBLAS (p10, p90)", "at least", "over the rung before", "TFLOP/s", "DRAM MB, read + written",
            "L2 hit %", "tensor %", "FMA %", "SM %", "registers", "spills", "shared KB", "occupancy %"]  # fmt: skip
    lines: list[list[str]] = []
    before: dict[str, float] = {}
    for r in of_kind(rows, "rung", size=SIZE):
        step = r["tflops"] / before[r["dtype"]] if r["dtype"] in before else None
        before[r["dtype"]] = r["tflops"]
        dram = f"{counter(r, 'dram_read_bytes', 1e6, 0)} + {counter(r, 'dram_write_bytes', 1e6, 0)}"
        lines.append([f"`{r['name']}` {r['dtype']}", spread(r), str(TARGETS[rung(r)]), number(step, 2),
                      number(r["tflops"]), dram, counter(r, "l2_hit_percent"), counter(r, "tensor_percent"),
                      counter(r, "fma_percent"), counter(r, "sm_percent"), str(r.get("registers", "-")),
                      str(r.get("spills", "-")), counter(r, "smem_bytes", 1024),
                      counter(r, "occupancy_percent")])  # fmt: skip
    for r in of_kind(rows, "torch"):
        torch_tflops = next(x["torch_tflops"] for x in of_kind(rows, "rung", size=SIZE, dtype=r["dtype"]))
        dram = f"{counter(r, 'dram_read_bytes', 1e6, 0)} + {counter(r, 'dram_write_bytes', 1e6, 0)}"
        lines.append([f"torch.mm (cuBLAS) {r['dtype']}", "100", "", "", number(torch_tflops), dram,
                      counter(r, "l2_hit_percent"), counter(r, "tensor_percent"), counter(r, "fma_percent"),
                      counter(r, "sm_percent"), "", "", "", counter(r, "occupancy_percent")])  # fmt: skip
    return table(head, lines)


def unmet(rows: Rows) -> list[str]:
    """What the table does not reach of what it should."""
    faults: list[str] = []
    before: dict[str, dict[str, Any]] = {}
    for r in of_kind(rows, "rung", size=SIZE):
        if 100 * r["of_torch"] < TARGETS[rung(r)]:
            faults.append(f"{r['name']} reaches {100 * r['of_torch']:.2f} % of cuBLAS, not {TARGETS[rung(r)]}")
        if r["dtype"] in before and r["tflops"] < STEP * before[r["dtype"]]["tflops"]:
            ratio = r["tflops"] / before[r["dtype"]]["tflops"]
            faults.append(f"{r['name']} is {ratio:.3f} times {before[r['dtype']]['name']}, not {STEP}")
        before[r["dtype"]] = r
    return faults


def rungs_with_verdict(rows: Rows) -> str:
    faults = unmet(rows)
    verdict = "Not reached: " + "; ".join(faults) + "." if faults else "Every rung reaches what it should."
    return rungs_block(rows) + f"\n{verdict}\n"


def sizes_block(rows: Rows, image: str) -> str:
    sizes = sorted({r["size"] for r in of_kind(rows, "rung")})
    lines = []
    for dtype in ("f32", "bf16"):
        timed = of_kind(rows, "rung", dtype=dtype)
        for name in dict.fromkeys(r["name"] for r in timed):
            by_size = {r["size"]: r for r in timed if r["name"] == name}
            cells = [f"{number(by_size[s]['tflops'])} ({100 * by_size[s]['of_torch']:.0f} %)" if s in by_size else "-"
                     for s in sizes]  # fmt: skip
            lines.append([f"`{name}`", *cells])
        reference = {r["size"]: r["torch_tflops"] for r in timed}
        lines.append([f"torch.mm {dtype}", *(number(reference.get(s)) for s in sizes)])
    return table(["TFLOP/s (% of cuBLAS)", *map(str, sizes)], lines) + f"\n![The ladder]({image})\n"


def folk_block(rows: Rows) -> str:
    lines = []
    for r in of_kind(rows, "rung", size=SIZE):
        i = rung(r)
        lines.append([f"`{r['name']}`", FOLK.get(i, "-"), SIMPLE.get(i, "-"), number(100 * r["of_torch"])])
    return table(["% of cuBLAS of the same precision", "usually quoted", "a simple version on an H200", "here"], lines)


def ceiling_block(rows: Rows) -> str:
    found = of_kind(rows, "rung", name="ladder_5_mma_sync", size=SIZE) + of_kind(rows, "ceiling")
    names = {r["name"]: f"`{r['name']}`" if "_" in r["name"] else r["name"] for r in found}
    lines = [[names[r["name"]], spread(r), number(r["tflops"])] for r in found]
    return table(["at 4096", "% of cuBLAS (p10, p90)", "TFLOP/s"], lines)


def orders_block(rows: Rows) -> str:
    text = ""
    for name in dict.fromkeys(r["name"] for r in of_kind(rows, "order")):
        head = ["size", "order", "us", "time in row order / this (p10, p90)", "% of cuBLAS", "L2 hit %",
                "DRAM MB read"]  # fmt: skip
        lines = [
            [str(r["size"]), r["order"], number(r["us"]), spread(r, "row_over", 1.0, 3) if "row_over" in r else "-",
             number(100 * r["of_torch"]), counter(r, "l2_hit_percent"), counter(r, "dram_read_bytes", 1e6, 0)]
            for r in of_kind(rows, "order", name=name)
        ]  # fmt: skip
        text += f"`{name}`\n\n{table(head, lines)}\n{orders_summary(of_kind(rows, 'order', name=name))}\n"
    return text


def orders_summary(rows: Rows) -> str:
    """Per size the fastest order and what it gained, and the greatest change of the L2 hit rate."""
    parts = []
    for size in sorted({r["size"] for r in rows}):
        here = [r for r in rows if r["size"] == size and "row_over" in r]
        if not here:
            continue
        best = max(here, key=lambda r: float(r["row_over"]))
        text = f"{size}: {best['order']} fastest, {100 * (best['row_over'] - 1):+.1f} % against row order"
        rates = {r["order"]: r["l2_hit_percent"] for r in here if "l2_hit_percent" in r}
        if "row" in rates:
            top = max(rates, key=lambda order: rates[order])
            relative = 100 * (rates[top] / rates["row"] - 1)
            text += f", L2 hit rate {rates['row']:.1f} % to {rates[top]:.1f} % ({top}, {relative:+.0f} %)"
        parts.append(text)
    return "\n".join(f"- {part}." for part in parts) + "\n"


def traffic_block(device: str = "h200") -> str:
    """What the formulas say of each rung's traffic at 4096, before any cache but the CTA's own."""
    lines = []
    for spec in (s for s in _C.kernels() if s.family == "ladder"):
        tile = (spec.tile[0] * spec.cluster[0], spec.tile[1])
        naive = spec.name == "ladder_0_naive"
        r = roofline(SIZE, SIZE, SIZE, spec.dtype_a, device, tile=tile)
        moved = r.bytes_naive if naive else r.bytes_tiled
        intensity = r.flops / moved
        at = min(r.peak_tflops, intensity * r.dram_gbps / 1e3)
        lines.append([f"`{spec.name}`", "1" if naive else f"{tile[0]} x {tile[1]}", number(moved / 1e9, 2),
                      number(intensity, 2), number(r.ridge), number(at)])  # fmt: skip
    for dtype in ("f32", "bf16"):
        r = roofline(SIZE, SIZE, SIZE, dtype, device)
        lines.append([f"each operand once, {dtype}", "", number(r.bytes / 1e9, 2), number(r.intensity),
                      number(r.ridge), number(min(r.peak_tflops, r.intensity * r.dram_gbps / 1e3))])  # fmt: skip
    head = ["at 4096", "tile", "GB moved", "FLOP per byte", "ridge", "min(peak, I x DRAM) TFLOP/s"]
    return table(head, lines)


def block(kind: str, document: Document | None, image: str) -> str:
    if kind == "traffic":
        return traffic_block()
    if document is None:
        return NOT_MEASURED
    makers: dict[str, Callable[[Rows], str]] = {
        "rungs": rungs_with_verdict,
        "sizes": lambda rows: sizes_block(rows, image),
        "folk": folk_block,
        "ceiling": ceiling_block,
        "orders": orders_block,
        "run": lambda _: run_line(document),
    }
    return makers[kind](document["rows"])


def run_line(document: Document) -> str:
    h = document["header"]
    return (
        f"{h['gpu']}, driver {h['driver']}, torch {h['torch']}, cuBLASLt {h['cublaslt']}; {h['date'][:10]}; library "
        f"{h['source_hash'][:12]}. Counters: {h.get('counters', 'none')}.\n"
    )


# ---- plot ----------------------------------------------------------------------------------------------------


def plot_path(root: Path, gpu: str) -> Path:
    return root / "docs" / "img" / f"{gpu}-ladder.svg"


def digest(document: Document) -> str:
    """Identifies what the plot shows; stored in the SVG, so that --check needs no matplotlib."""
    shown = [(r["name"], r["size"], r["tflops"], r["torch_tflops"]) for r in of_kind(document["rows"], "rung")]
    return hashlib.sha256(repr(sorted(shown)).encode()).hexdigest()[:16]


def write_plot(path: Path, gpu: str, document: Document) -> None:
    """Left: TFLOP/s of each rung at 4096. Right: against the size."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = gpu  # same data, same file
    plt = importlib.import_module("matplotlib.pyplot")

    rows = of_kind(document["rows"], "rung")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    colors = {"f32": "#d9822b", "bf16": "#1b6ac9"}
    for dtype, color in colors.items():
        here = [r for r in rows if r["dtype"] == dtype and r["size"] == SIZE]
        if not here:
            continue
        left.bar([rung(r) for r in here], [r["tflops"] for r in here], color=color, width=0.7, label=dtype)
        left.hlines(here[0]["torch_tflops"], rung(here[0]) - 0.5, rung(here[-1]) + 0.5, color="black", linewidth=1,
                    label="torch.mm of the same precision" if dtype == "f32" else None)  # fmt: skip
        for r in here:
            left.annotate(f"{100 * r['of_torch']:.0f} %", (rung(r), r["tflops"]), ha="center", va="bottom", fontsize=8)
    left.set_yscale("log")
    left.set_xticks(sorted({rung(r) for r in rows}))
    left.set_xlabel(f"rung, at {SIZE}")
    left.set_ylabel("TFLOP/s")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    for name in dict.fromkeys(r["name"] for r in rows):
        line = sorted((r["size"], r["tflops"]) for r in rows if r["name"] == name)
        dtype = next(r["dtype"] for r in rows if r["name"] == name)
        shade = 0.4 + 0.15 * (int(name.split("_")[1]) % 4)
        right.plot(*zip(*line, strict=True), marker="o", markersize=3, color=colors[dtype], alpha=shade)
        right.annotate(name.split("_")[1], line[-1], xytext=(4, -3), textcoords="offset points", fontsize=8)
    for dtype in colors:
        line = sorted({(r["size"], r["torch_tflops"]) for r in rows if r["dtype"] == dtype})
        if line:
            right.plot(*zip(*line, strict=True), color="black", linewidth=1, linestyle="--")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    sizes = sorted({r["size"] for r in rows})
    right.set_xticks(sizes, [str(s) for s in sizes])
    right.set_xlabel("M = N = K; dashed: torch.mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Description": f"results {digest(document)}"})
    plt.close(figure)


# ---- command -------------------------------------------------------------------------------------------------


def load(root: Path) -> dict[str, Document]:
    return {path.parent.name: read(path) for path in sorted((root / "benchmarks" / "results").glob("*/ladder.json"))}


def render(root: Path, found: dict[str, Document]) -> str:
    """The page's text with every marked block rewritten."""

    def replace(match: re.Match[str]) -> str:
        begin, gpu, kind, _, end = match.groups()
        body = block(kind, found.get(gpu), f"img/{plot_path(root, gpu).name}")
        return f"{begin}\n{body}\n{end}"

    return BLOCK.sub(replace, (root / PAGE).read_text())


def stale(root: Path, found: dict[str, Document]) -> list[str]:
    """What does not show the result file, one sentence each."""
    run = "run python benchmarks/ladder_report.py"
    faults = []
    if render(root, found) != (root / PAGE).read_text():
        faults.append(f"{PAGE} does not show benchmarks/results; {run}")
    for gpu, document in found.items():
        path = plot_path(root, gpu)
        if not path.exists() or f"results {digest(document)}" not in path.read_text():
            faults.append(f"{path.relative_to(root)} does not show benchmarks/results; {run}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to work on")
    options = parser.parse_args()
    root = options.root.resolve()
    found = load(root)
    if options.check:
        faults = stale(root, found)
        print("\n".join(faults) or f"{PAGE} and its plot show the result file")
        return int(bool(faults))
    (root / PAGE).write_text(render(root, found))
    for gpu, document in found.items():
        print("\n".join(unmet(document["rows"])) or f"{gpu}: every rung reaches what it should")
        try:
            write_plot(plot_path(root, gpu), gpu, document)
        except ModuleNotFoundError as error:
            print(f"no plot for {gpu}: {error}; install it and run python benchmarks/ladder_report.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
