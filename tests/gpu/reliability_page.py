"""Writes the figures of tests/gpu_record into docs/reliability.md, between its markers."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "tests" / "gpu_record"
BEGIN, END = "<!-- begin:figures -->", "<!-- end:figures -->"
OTHERS = ("fuzz", "sanitize", "figures", "invariant_bits")  # records that are no kernel family's


def read(name: str) -> dict[str, Any]:
    path = RECORDS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(x) for x in row) + " |" for row in rows)])


def of_run(header: dict[str, Any]) -> str:
    return (
        f"{header['gpu']}, driver {header['driver']}, torch {header['torch']}, library {header['source_hash'][:12]}, "
        f"{header['date']}"
    )


def kernel_tests() -> list[str]:
    rows: list[list[object]] = []
    runs = set()
    for path in sorted(RECORDS.glob("*.json")):
        if path.stem in OTHERS:
            continue
        record = json.loads(path.read_text())
        counts: Counter[str] = Counter()
        for outcomes in record["kernels"].values():
            counts.update(outcomes)
        rows.append([path.stem, len(record["kernels"]), counts["passed"], counts["failed"], counts["skipped"]])
        runs.add(of_run(record["header"]))
    if not rows:
        return []
    return [table(["kernel family", "kernels", "passed", "failed", "declined"], rows), *sorted(runs)]


def fuzzing() -> list[str]:
    record = read("fuzz")
    if not record:
        return []
    fuzz = record["fuzz"]
    counts = fuzz["kernels"].values()
    selected, refused, failures = (fuzz[name] for name in ("by the selector", "refused", "failures"))
    text = (
        f"{fuzz['problems']} random problems of seed {fuzz['seed']} in {fuzz['seconds']} s: {len(failures)} failures. "
        f"{selected} by the selector's plan, {refused} refused as they must be, {fuzz['empty']} empty; each of "
        f"{len(counts)} kernels {min(counts)} to {max(counts)} times."
    )
    if compared := fuzz.get("batch_invariant elements compared"):
        text += f" Under batch_invariant {compared} elements were compared bit for bit with those of other batches."
    return [text, of_run(record["header"])]


def sanitizers() -> list[str]:
    record = read("sanitize")
    if not record:
        return []
    rows: list[list[object]] = [
        [
            tool,
            x["kernels"],
            x["problems"],
            x["unexplained reports"],
            x["explained reports"],
            len(x["faults"]),
            x["seconds"],
        ]
        for tool, x in record["tools"].items()
    ]
    head = ["tool", "kernels", "problems", "unexplained reports", "explained reports", "other faults", "seconds"]
    return [table(head, rows), of_run(record["header"])]


def measured(name: str) -> list[str]:
    record = read(name)
    rows: list[list[object]] = []
    for test, entry in record.items():
        figure = dict(entry["figure"])
        outcome = figure.pop("outcome")
        rows.append([test.split("::")[-1], outcome, ", ".join(f"{name} {value}" for name, value in figure.items())])
    if not rows:
        return []
    return [
        table(["test", "outcome", "figures"], rows),
        *sorted({of_run(entry["header"]) for entry in record.values()}),
    ]


def render() -> str:
    parts = []
    for title, body in (
        ("Every kernel against float64", kernel_tests()),
        ("Fuzz", fuzzing()),
        ("Sanitizers", sanitizers()),
        ("Bits of batch_invariant", measured("invariant_bits")),
        ("Load, determinism, cost", measured("figures")),
    ):
        parts += [f"### {title}", *(body or ["No run is recorded."])]
    return "\n\n".join(parts)


def updated(page: str) -> str:
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n\n{render()}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    PAGE.write_text(updated(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
