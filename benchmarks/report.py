#!/usr/bin/env python3
"""Writes the result tables and plots of README.md and docs/ from benchmarks/results.

    python benchmarks/report.py            rewrites the marked blocks and the plots docs/img/<gpu>*.svg
    python benchmarks/report.py --check    exit code 1, with a sentence per stale block, when something is out of date

A block lies between two markers; what stands there is replaced:

    <!-- begin:results nvidia-h200 -->      one line per suite, and the plot
    <!-- end:results -->
    <!-- begin:rows nvidia-h200 dense -->   one line per row of a suite
    <!-- end:rows -->
    <!-- begin:chain nvidia-h200 -->        one line per M of the chain of decode layers
    <!-- end:chain -->
    <!-- begin:bandwidth nvidia-h200 -->    the plot of GB/s over the weight's size, from rows with a floor
    <!-- end:bandwidth -->
    <!-- begin:invariant nvidia-h200 -->    what batch_invariant costs
    <!-- end:invariant -->
    <!-- begin:epilogue nvidia-h200 -->     one line per row of suite epilogue: every torch arm, goals
    <!-- end:epilogue -->
    <!-- begin:llama nvidia-h200 -->        the steps of a Llama model, and their plot
    <!-- end:llama -->
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmx.bench import epilogue, model
from gemmx.bench.invariant import costs
from gemmx.bench.manifest import FLOOR_MAX_M, FLOOR_SUITES
from gemmx.bench.results import Document, Summary, read, summarise
from gemmx.bench.stats import weighted_geomean
from gemmx.bench.tables import (
    ARM_TITLES,
    NOT_MEASURED,
    epilogue_block,
    llama_block,
    llama_table,
    number,
    runs_line,
    table,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/benchmarks.md", "docs/numerics.md", "examples/README.md")
BLOCK = re.compile(
    r"(<!-- begin:(results|rows|chain|bandwidth|invariant|epilogue|llama) ([^>]*?) -->\n)(.*?)(<!-- end:\2 -->)",
    re.DOTALL,
)
NOTABLE = 1.05  # invariant / default of the rows that are listed
MODES = ("host", "chain", "invariant", model.SUITE)  # result files that are no suite
BANDWIDTH_M = (1, 8, 16, 64)
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)

Suites = dict[str, Document]


def load_results(folder: Path) -> dict[str, Suites]:
    """Result files by GPU folder and suite. The ladder has its own report, ladder_report.py."""
    found: dict[str, Suites] = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.stem == "ladder":
            continue
        found.setdefault(path.parent.name, {})[path.stem] = read(path)
    return found


def suite_cells(s: Summary) -> list[str]:
    counts = str(s.measured) + (f" (+{s.skipped} not supported)" if s.skipped else "")
    counts += f" ({s.failed} FAILED)" if s.failed else ""
    return [
        s.suite,
        counts,
        f"{number(s.torch_over_gemmx)} ({number(s.worst)})",
        f"{number(s.torch_over_own)} ({number(s.own_worst)})",
        number(s.cublaslt_over_gemmx),
        "-" if math.isnan(s.cublaslt_share) else f"{100 * s.cublaslt_share:.0f} %",
        "-" if math.isnan(s.floor_share) else f"{100 * s.floor_share:.0f} %",
        number(s.max_error),
    ]


def results_block(gpu: str, suites: Suites, page: Path, root: Path) -> str:
    measured = {name: d for name, d in suites.items() if name not in MODES}
    if not suites:
        return NOT_MEASURED
    text = ""
    if measured:
        head = ["suite", "rows", "torch / gemmx (worst)", "torch / own (worst)", "cuBLASLt best / gemmx",
                "cuBLASLt serves", f"of the floor (M ≤ {FLOOR_MAX_M})", "largest error / bound"]  # fmt: skip
        text += table(head, [suite_cells(summarise(d)) for d in measured.values()]) + "\n"
        image = os.path.relpath(plot_path(root, gpu), page.parent)
        text += f"![Speed relative to torch, one dot per row]({image})\n\n"
    if "host" in suites:
        text += table(
            ["host time of a call", "mode", "gemmx µs", "torch.mm µs", "torch / gemmx"],
            [[f"{r['M']}x{r['N']}x{r['K']}", r["mode"], number(r["gemmx_us"]), number(r["torch_us"]),
              number(r["torch_over_gemmx"])] for r in suites["host"]["rows"]],
        ) + "\n"  # fmt: skip
    if "chain" in suites:
        text += chain_table(suites["chain"]) + "\n"
    if "invariant" in suites:
        text += cost_table(suites["invariant"]) + "\n"
    if model.SUITE in suites:
        text += llama_table(suites[model.SUITE]) + "\n"
    return text + runs_line(list(suites.values()))


def chain_table(document: Document) -> str:
    head = ["decode layers one after the other", "gemmx µs a block", "torch µs", "torch / gemmx", "gemmx of the floor"]
    return table(head, [
        [r["name"], number(r["gemmx_us"]), number(r["torch_us"]), number(r["torch_over_gemmx"]),
         f"{100 * r['floor_over_gemmx']:.0f} %"] if r["status"] == "measured" else [r["name"], *["-"] * 3, r["status"]]
        for r in document["rows"]])  # fmt: skip


def cost_table(document: Document) -> str:
    head = ["`batch_invariant`", "rows", "run the default's plan", "invariant / default (worst)",
            "torch / invariant (worst)"]  # fmt: skip
    return table(head, [
        [c.suite, str(c.rows) + (f" ({c.failed} FAILED)" if c.failed else ""), str(c.same_plan),
         f"{number(c.over_default)} ({number(c.worst)})", f"{number(c.torch_over_invariant)} ({number(c.slowest)})"]
        for c in costs(document)])  # fmt: skip


def invariant_block(document: Document | None) -> str:
    """The suites, and the rows that cost most."""
    if document is None:
        return NOT_MEASURED
    rows = [r for r in document["rows"] if r["status"] == "measured" and r["invariant_over_default"] > NOTABLE]
    rows.sort(key=lambda r: (-r["invariant_over_default"], r["name"]))
    head = ["row", "M x N x K", "default µs", "invariant µs", "torch µs", "invariant / default", "the default's plan"]
    lines = [
        [f"{r['suite']}/{r['name']}", f"{r['M']}x{r['N']}x{r['K']}",
         *(number(r[f"{arm}_us"]) for arm in ("default", "invariant", "torch")), number(r["invariant_over_default"]),
         f"`{r['default_plan']}`"] for r in rows
    ]  # fmt: skip
    listed = f"Rows that take over {NOTABLE} of the default's time: {len(rows) or 'none'}.\n"
    return "\n".join([cost_table(document), listed, *([table(head, lines)] if lines else []), runs_line([document])])


def rows_block(document: Document | None) -> str:
    if document is None:
        return NOT_MEASURED
    head = ["row", "M x N x K", "gemmx µs", "own µs", "torch µs", "cuBLASLt best µs", "torch / gemmx", "TFLOP/s",
            "kernel"]  # fmt: skip
    lines = []
    for row in document["rows"]:
        shape = f"{row['M']}x{row['N']}x{row['K']}" + (f" x{row['batch']}" if row["batch"] > 1 else "")
        if row["status"] != "measured":
            lines.append([row["name"], shape, *["-"] * 6, f"{row['status']}: {row['reason']}".replace("|", "\\|")])
            continue
        times = [number(row.get(f"{arm}_us")) for arm in ("gemmx", "own", "torch", "cublaslt_best")]
        ratio = f"{number(row['torch_over_gemmx'])}"
        lines.append([row["name"], shape, *times, ratio, number(row["tflops"], 1), f"`{row['kernel']}`"])
    return table(head, lines)


def chain_block(document: Document | None) -> str:
    if document is None:
        return NOT_MEASURED
    head = ["chain", "gemmx µs a block", "torch µs", "floor µs", "torch / gemmx (p10 to p90)", "gemmx of the floor",
            "torch of the floor", "gemmx GB/s of weights", "error / bound", "difference / tolerance"]  # fmt: skip
    lines = []
    for row in document["rows"]:
        if row["status"] != "measured":
            lines.append([row["name"], *["-"] * 8, f"{row['status']}: {row['reason']}".replace("|", "\\|")])
            continue
        times = [number(row[f"{arm}_us"]) for arm in ("gemmx", "torch", "floor")]
        p10, p90 = number(row["torch_over_gemmx_p10"], 3), number(row["torch_over_gemmx_p90"], 3)
        shares = [f"{100 * row[f'floor_over_{arm}']:.1f} %" for arm in ("gemmx", "torch")]
        ratio = f"{number(row['torch_over_gemmx'], 3)} ({p10} to {p90})"
        checks = [number(row["error"]), number(row["difference"])]
        lines.append([row["name"], *times, ratio, *shares, number(row["gemmx_weight_gbps"], 0), *checks])
    return f"{table(head, lines)}\n{runs_line([document])}"


def bandwidth_block(gpu: str, suites: Suites, page: Path, root: Path) -> str:
    points = bandwidth_points(suites)
    if not points:
        return NOT_MEASURED
    image = os.path.relpath(bandwidth_path(root, gpu), page.parent)
    lines = []
    for m, arms in points.items():
        sizes, floor = arms["floor"]
        shares = [
            weighted_geomean((x / f, 1) for x, f in zip(arms[arm][1], floor, strict=True)) for arm in ("gemmx", "torch")
        ]
        text = f"{len(sizes)}, {sizes[0]:.0f} to {sizes[-1]:.0f} MB"
        lines.append([str(m), text, *(f"{100 * share:.0f} %" for share in shares)])
    head = ["M", "weights", "gemmx of the floor (geometric mean)", "torch of the floor"]
    return (
        f"![GB/s of weights over their size, a panel an M]({image})\n\n{table(head, lines)}\n"
        f"{runs_line(list(floor_documents(suites).values()))}"
    )


def render(page: Path, found: dict[str, Suites], root: Path) -> str:
    """The page's text with every marked block rewritten."""

    def replace(match: re.Match[str]) -> str:
        begin, kind, what, _, end = match.groups()
        gpu, _, suite = what.partition(" ")
        suites = found.get(gpu, {})
        bodies: dict[str, Callable[[], str]] = {
            "results": lambda: results_block(gpu, suites, page, root),
            "rows": lambda: rows_block(suites.get(suite)),
            "chain": lambda: chain_block(suites.get("chain")),
            "bandwidth": lambda: bandwidth_block(gpu, suites, page, root),
            "invariant": lambda: invariant_block(suites.get("invariant")),
            "epilogue": lambda: epilogue_block(suites.get(epilogue.SUITE)),
            "llama": lambda: llama_block(suites.get(model.SUITE), os.path.relpath(llama_path(root, gpu), page.parent)),
        }
        return f"{begin}\n{bodies[kind]()}\n{end}"

    return BLOCK.sub(replace, page.read_text())


# -- plots -----------------------------------------------------------------------------------------------------


def plot_path(root: Path, gpu: str) -> Path:
    return root / "docs" / "img" / f"{gpu}.svg"


def plot_points(suites: Suites) -> dict[str, dict[str, list[float]]]:
    """Per suite, torch time over the time of gemmx, of our own kernels and of cuBLASLt's best, per row."""
    points: dict[str, dict[str, list[float]]] = {}
    for name, document in suites.items():
        if name in MODES:
            continue
        rows = [row for row in document["rows"] if row.get("status") == "measured"]
        if not rows:
            continue
        best = [
            r["torch_over_gemmx"] / r["cublaslt_best_over_gemmx"] for r in rows if r.get("cublaslt_best_over_gemmx")
        ]
        own = [r["torch_over_own"] for r in rows if r.get("torch_over_own")]
        points[name] = {"gemmx": [r["torch_over_gemmx"] for r in rows], "own kernels": own, "cuBLASLt best of 16": best}
    return points


def bandwidth_path(root: Path, gpu: str) -> Path:
    return root / "docs" / "img" / f"{gpu}-bandwidth.svg"


def has_floor(row: dict[str, Any]) -> bool:
    return row["status"] == "measured" and bool(row.get("floor_us"))


def floor_documents(suites: Suites) -> Suites:
    """The result files that the bandwidth is read from: those of FLOOR_SUITES with a row at a plotted M."""
    return {
        name: suites[name]
        for name in FLOOR_SUITES
        if name in suites and any(has_floor(row) and row["M"] in BANDWIDTH_M for row in suites[name]["rows"])
    }


def bandwidth_points(suites: Suites) -> dict[int, dict[str, tuple[list[float], list[float]]]]:
    """Per M and arm, of rows with a floor, the weights in MB, ascending, and the GB/s at which they were passed over.

    The weight's bytes over the time, of all arms alike: the ratio of two is that of their times.
    """
    points: dict[int, dict[str, tuple[list[float], list[float]]]] = {}
    rows = [row for document in floor_documents(suites).values() for row in document["rows"] if has_floor(row)]
    for m in BANDWIDTH_M:
        sized = sorted(((2.0 * r["N"] * r["K"], r) for r in rows if r["M"] == m), key=lambda pair: pair[0])
        if sized:
            points[m] = {
                arm: ([b / 1e6 for b, _ in sized], [b / r[f"{arm}_us"] / 1e3 for b, r in sized])
                for arm in ("floor", "gemmx", "torch")
            }
    return points


def digest(points: dict[Any, Any]) -> str:
    """Identifies what a plot shows; stored in the SVG, so that --check needs no matplotlib."""
    return hashlib.sha256(repr(sorted(points.items())).encode()).hexdigest()[:16]


def pyplot(gpu: str) -> Any:
    # By name: only the plots need matplotlib, and tests and --check run without it.
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = gpu  # same data, same file
    return importlib.import_module("matplotlib.pyplot")


def save_plot(plt: Any, figure: Any, path: Path, points: dict[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Description": f"results {digest(points)}"})
    plt.close(figure)


def write_plot(path: Path, gpu: str, suites: Suites) -> None:
    plt, points = pyplot(gpu), plot_points(suites)
    figure, axes = plt.subplots(figsize=(max(5.0, 1.6 * len(points) + 2), 3.6), layout="constrained")
    styles = {"gemmx": ("#1b6ac9", "o"), "own kernels": ("#d9822b", "s"), "cuBLASLt best of 16": ("#8a8a8a", "x")}
    for x, arms in enumerate(points.values()):
        for place, (arm, values) in enumerate(arms.items()):
            color, marker = styles[arm]
            spread = [x + 0.27 * (place - 1) + 0.2 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
            axes.scatter(spread, values, s=9, color=color, marker=marker, linewidths=0.8, label=arm if x == 0 else None)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [t for t in TICKS if low <= t <= high]
    axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(points)), list(points))
    axes.set_ylabel("speed relative to torch")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    save_plot(plt, figure, path, points)


def write_bandwidth_plot(path: Path, gpu: str, suites: Suites) -> None:
    """A panel an M, side by side with one axis of GB/s. A dot is a row: rows of like size differ in N and K."""
    plt, points = pyplot(gpu), bandwidth_points(suites)
    figure, panels = plt.subplots(
        1,
        len(points),
        figsize=(max(4.6, 3.1 * len(points) + 0.6), 3.6),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    styles: dict[str, dict[str, Any]] = {
        "floor": {"color": "black", "linewidth": 1.0, "label": "streaming read"},
        "gemmx": {"color": "#1b6ac9", "marker": "o", "markersize": 4, "linestyle": "none", "label": "gemmx"},
        "torch": {"color": "#d9822b", "marker": "s", "markersize": 3.5, "linestyle": "none", "label": "torch"},
    }
    for axes, (m, arms) in zip(panels[0], points.items(), strict=True):
        for arm, (sizes, gbps) in arms.items():
            axes.plot(sizes, gbps, **styles[arm])
        axes.set_title(f"M = {m}", fontsize=10)
        axes.set_xscale("log", base=2)
        ticks = [t for t in (4, 8, 16, 32, 64, 128, 256, 512) if 0.8 * sizes[0] <= t <= 1.25 * sizes[-1]]
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.set_xlabel("weight, MB")
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("weight bytes / time, GB/s")
    panels[0][-1].legend(frameon=False, fontsize=8, loc="lower right")
    save_plot(plt, figure, path, points)


def llama_path(root: Path, gpu: str) -> Path:
    return root / "docs" / "img" / f"{gpu}-llama.svg"


def llama_points(suites: Suites) -> dict[str, dict[str, float]]:
    """Per step, the speed of each arm relative to eager, and the upper limit of the better torch arm."""
    points: dict[str, dict[str, float]] = {}
    for row in suites[model.SUITE]["rows"] if model.SUITE in suites else []:
        if row["status"] == "measured":
            eager = row["eager_us"]
            points[row["name"]] = {arm: eager / row[f"{arm}_us"] for arm in model.ARMS}
            if model.knows_limit(row):
                points[row["name"]]["limit"] = eager / row[f"{row['torch_arm']}_us"] * row["upper_limit"]
    return points


def write_llama_plot(path: Path, gpu: str, suites: Suites) -> None:
    """A group of bars a step; a line over each where the torch arm's GEMMs would be at their floor."""
    plt, points = pyplot(gpu), llama_points(suites)
    figure, axes = plt.subplots(figsize=(max(5.0, 1.5 * len(points) + 1), 3.6), layout="constrained")
    colors = {"eager": "#8a8a8a", "compile": "#d9822b", "gemmx": "#7fb0ea", "gemmx_compile": "#1b6ac9"}
    width = 0.2
    for i, (arm, color) in enumerate(colors.items()):
        places = [x + width * (i - 1.5) for x in range(len(points))]
        axes.bar(places, [arms[arm] for arms in points.values()], width, color=color, label=ARM_TITLES[arm])
    limits = {x: arms["limit"] for x, arms in enumerate(points.values()) if "limit" in arms}
    ends = [[x + side * 2 * width for x in limits] for side in (-1, 1)]
    axes.hlines(list(limits.values()), *ends, color="black", linewidth=1.0, label="GEMMs at their floor")
    axes.set_xticks(range(len(points)), list(points))
    axes.set_ylabel("speed relative to eager")
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=5)
    save_plot(plt, figure, path, points)


# -- command ---------------------------------------------------------------------------------------------------


def stale(root: Path, found: dict[str, Suites]) -> list[str]:
    """What does not show the result files, one sentence each."""
    faults = []
    for name in PAGES:
        page = root / name
        if page.exists() and render(page, found, root) != page.read_text():
            faults.append(f"{name} does not show benchmarks/results; run python benchmarks/report.py")
    for gpu, suites in found.items():
        plots: dict[Path, dict[Any, Any]] = {
            plot_path(root, gpu): plot_points(suites),
            bandwidth_path(root, gpu): bandwidth_points(suites),
            llama_path(root, gpu): llama_points(suites),
        }
        faults += [
            f"{path.relative_to(root)} does not show benchmarks/results; run python benchmarks/report.py"
            for path, points in plots.items()
            if points and (not path.exists() or f"results {digest(points)}" not in path.read_text())
        ]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to work on")
    options = parser.parse_args()
    root = options.root.resolve()
    found = load_results(root / "benchmarks" / "results")
    if options.check:
        faults = stale(root, found)
        print("\n".join(faults) or "README.md, docs and plots show the result files")
        return int(bool(faults))
    for gpu, suites in found.items():
        if plot_points(suites):
            write_plot(plot_path(root, gpu), gpu, suites)
        if bandwidth_points(suites):
            write_bandwidth_plot(bandwidth_path(root, gpu), gpu, suites)
        if llama_points(suites):
            write_llama_plot(llama_path(root, gpu), gpu, suites)
    for name in PAGES:
        page = root / name
        if page.exists():
            page.write_text(render(page, found, root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
