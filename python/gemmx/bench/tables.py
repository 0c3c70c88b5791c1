"""Markdown of result files: the tables of suite epilogue and of a model's steps for benchmarks/report.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gemmx.bench import epilogue, model
from gemmx.bench.results import Document

NOT_MEASURED = "Not measured.\n"


def number(x: float | None, digits: int = 2) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    align = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, align, *rows))


def runs_line(documents: list[Document]) -> str:
    h = documents[0]["header"]
    dates = sorted({d["header"]["date"][:10] for d in documents})
    hashes = sorted({d["header"]["source_hash"][:12] for d in documents})
    text = f"{h['gpu']}, driver {h['driver']}, torch {h['torch']}, cuBLASLt {h['cublaslt']}; {', '.join(dates)}; "
    return text + f"library {', '.join(hashes)}.\n"


def goal_text(row: dict[str, Any], over: str) -> str:
    """The goal of a ratio, marked where it is missed; "" where there is none."""
    texts = [f"{g.least:.3g}" + ("" if g.met(row) else " missed") for g in epilogue.goals(row) if g.over == over]
    return ", ".join(texts)


def epilogue_block(document: Document | None) -> str:
    """Every torch arm of suite epilogue, each ratio beside the goal that it has."""
    if document is None:
        return NOT_MEASURED
    arms = ("gemmx", "eager", "compile", epilogue.ADDMM_ARM)
    ratios = {"torch": "better torch / gemmx", "eager": "eager / gemmx", epilogue.ADDMM_ARM: "`_addmm_` / gemmx"}
    head = ["row", "gemmx µs", "eager µs", "compile µs", "`_addmm_activation` µs"]
    for title in ratios.values():
        head += [title, "goal"]
    head += ["error / bound"]
    lines, missed, count = [], 0, 0
    for row in document["rows"]:
        if row["status"] != "measured":
            reason = f"{row['status']}: {row['reason']}".replace("|", "\\|")
            lines.append([row["name"], *["-"] * (len(head) - 2), reason])
            continue
        name = row["name"] + (" (max-autotune)" if row["compile_mode"].startswith("max-autotune") else "")
        cells = [name, *(number(row.get(f"{arm}_us")) for arm in arms)]
        for over in ratios:
            cells += [number(row.get(f"{over}_over_gemmx"), 3), goal_text(row, over)]
        cells[0] += " (two steps)" if row.get("two_steps") else ""
        lines.append([*cells, number(row["error"])])
        count += len(epilogue.goals(row))
        missed += sum(not goal.met(row) for goal in epilogue.goals(row))
    return f"{table(head, lines)}\nGoals met: {count - missed} of {count}.\n\n{runs_line([document])}"


ARM_TITLES = {"eager": "eager", "compile": "torch.compile", "gemmx": "gemmx", "gemmx_compile": "gemmx, compiled"}


def llama_lines(document: Document, cells: Callable[[dict[str, Any]], list[str]], columns: int) -> list[list[str]]:
    return [
        cells(row) if row["status"] == "measured"
        else [row["name"], *["-"] * (columns - 2), f"{row['status']}: {row['reason']}".replace("|", "\\|")]
        for row in document["rows"]
    ]  # fmt: skip


def upper_limit(row: dict[str, Any], digits: int) -> str:
    """Unknown where torch's GEMMs, profiled alone on a cooler card, were faster than their floor on the hot one."""
    return number(row["upper_limit"], digits) if model.knows_limit(row) else "-"


def llama_table(document: Document) -> str:
    head = ["a model's step", "tokens/s, eager", "torch.compile", "gemmx", "torch / gemmx", "upper limit"]

    def cells(row: dict[str, Any]) -> list[str]:
        speeds = [number(row[f"{arm}_tokens_per_s"], 0) for arm in (*model.TORCH_ARMS, row["best_arm"])]
        return [row["name"], *speeds, number(row["torch_over_gemmx"]), upper_limit(row, 2)]

    return table(head, llama_lines(document, cells, len(head)))


def llama_block(document: Document | None, image: str) -> str:
    """Every step with all its arms; image: the plot, relative to the page."""
    if document is None:
        return NOT_MEASURED
    head = ["step", *(f"{title} ms" for title in ARM_TITLES.values()), "tokens/s", "torch / gemmx (p10 to p90)", "goal",
            "upper limit", "GEMMs of the torch arm", "at their floor", "error / tolerance"]  # fmt: skip

    def cells(row: dict[str, Any]) -> list[str]:
        times = [number(row[f"{arm}_us"] / 1e3, 3) for arm in ARM_TITLES]
        p10, p90 = number(row["torch_over_gemmx_p10"], 3), number(row["torch_over_gemmx_p90"], 3)
        ratio = f"{number(row['torch_over_gemmx'], 3)} ({p10} to {p90})"
        goal = number(row["goal"]) + ("" if not row["goal"] or row["torch_over_gemmx"] >= row["goal"] else " missed")
        gemms = [f"{row[key] / 1e3:.2f} ms" for key in ("gemm_us", "gemm_floor_us")]
        speed = number(row[f"{row['best_arm']}_tokens_per_s"], 0)
        return [row["name"], *times, speed, ratio, goal, upper_limit(row, 3), *gemms, number(row["error"])]

    text = table(head, llama_lines(document, cells, len(head)))
    return f"![Speed of a step relative to eager torch]({image})\n\n{text}\n{runs_line([document])}"
