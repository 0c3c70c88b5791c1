"""compute-sanitizer over every kernel of this GPU: memcheck, initcheck, racecheck and synccheck. `make sanitize`.

Fails where a tool reports anything that sanitizer_reports.json does not explain, where a result is wrong, and where a
kernel did not run. Logs, and how far a tool came, stay in build/sanitize. Writes
tests/gpu_record/sanitize.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "gpu"), str(TESTS.parent / "cmake")]

from gemmx import _C  # noqa: E402
from gemmx._files import write_atomically  # noqa: E402

TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
EXPLAINED = Path(__file__).with_name("sanitizer_reports.json")
LOGS = TESTS.parent / "build" / "sanitize"
PREFIX = "========="
# initcheck does not see what TMA stores write: neither the D that is copied to the host, nor the partials that the
# second launch of split-K and stream-K reads. Both would be reported for every 32 bytes. That they are written is shown
# by values: D and the workspace are fresh or poisoned memory in the tests and in fuzz.py.
OPTIONS = {
    "initcheck": [
        *("--check-api-memory-access", "no"),
        *("--kernel-name-exclude", "kernel_substring=stream_k_reduce_kernel"),
        *("--kernel-name-exclude", "kernel_substring=AllRows"),  # split_k_reduce_kernel of the wgmma family
    ],
}
# Lines of a log that are no report.
HEADINGS = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|Target application returned")


@dataclass(frozen=True)
class Report:
    tool: str
    kernel: str  # "" where the text names none of the registry
    family: str
    text: str


@dataclass
class Outcome:
    """What one tool found."""

    tool: str
    seconds: float = 0.0
    ran: dict[str, int] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    explained: int = 0
    problems: list[str] = field(default_factory=list)


def parse_log(tool: str, log: str) -> list[Report]:
    """The reports of a log: blocks of lines, parted by empty ones, that begin with no heading."""
    families = {spec.name: spec.family for spec in _C.kernels()}
    reports = []
    lines = [line.removeprefix(PREFIX).rstrip() for line in log.splitlines() if line.startswith(PREFIX)]
    for block in re.split(r"\n\s*\n", "\n".join(lines)):
        body = [line for line in block.splitlines() if line.strip() and not HEADINGS.search(line)]
        if not body:
            continue
        text = "\n".join(body)
        # A name may begin another: the longest is meant.
        kernel = max((name for name in families if name in text), key=len, default="")
        reports.append(Report(tool, kernel, families.get(kernel, "other"), text))
    return reports


def count_of_log(log: str) -> int:
    """The number of errors that the tool says it found, also those that it did not print."""
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    return int(counts[-1]) if counts else 0


def load_explained(path: Path) -> list[dict[str, str]]:
    """Reports that are the tool's own: each with tool, family, a text that it contains, and the reason."""
    rows: list[dict[str, str]] = json.loads(path.read_text())
    for row in rows:
        if set(row) != {"tool", "family", "text", "reason"} or not all(row.values()) or row["tool"] not in TOOLS:
            raise ValueError(f"{path}: {row} must have tool, family, text and reason, none empty")
    return rows


def is_explained(report: Report, rows: list[dict[str, str]]) -> bool:
    return any(
        row["tool"] == report.tool and row["family"] == report.family and row["text"] in report.text for row in rows
    )


def judge(outcome: Outcome, log: str, printed: str, exit_code: int, explained: list[dict[str, str]]) -> None:
    """Fills in what the tool's log and the program's output say."""
    found = parse_log(outcome.tool, log)
    outcome.explained = sum(is_explained(report, explained) for report in found)
    outcome.reports = [report for report in found if not is_explained(report, explained)]
    if count_of_log(log) > len(found):
        outcome.problems.append(f"{count_of_log(log)} errors, of which {len(found)} are in the log")
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    if not last.startswith("{"):
        outcome.problems.append(f"the program ended with exit code {exit_code} before its last line: {printed[-1000:]}")
        return
    result = json.loads(last)
    outcome.ran = result["ran"]
    outcome.problems += result["wrong"]
    outcome.problems += [f"{name} did not run" for name, times in outcome.ran.items() if times == 0]


def start(sanitizer: str, tool: str) -> tuple[subprocess.Popen[str], Path]:
    log = LOGS / f"{tool}.log"
    log.unlink(missing_ok=True)
    command = [sanitizer, "--tool", tool, *OPTIONS.get(tool, []), "--print-limit", "1000", "--log-file", str(log)]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-u", str(Path(__file__).with_name("sanitized.py"))]
    output = (LOGS / f"{tool}.out").open("w")
    process = subprocess.Popen(
        [*command, *program],
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        start_new_session=True,  # a group of its own, which can be ended as a whole
    )
    return process, log


def run_tools(sanitizer: str, tools: list[str], seconds: float) -> list[Outcome]:
    """One after the other: side by side they wait for each other's turns on the GPU. seconds: each tool's limit."""
    LOGS.mkdir(parents=True, exist_ok=True)
    explained = load_explained(EXPLAINED)
    outcomes = []
    for tool in tools:
        begin = time.monotonic()
        process, log = start(sanitizer, tool)
        outcome = Outcome(tool)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool and the program under it
            process.wait()
            outcome.problems.append(f"did not end within {seconds:.0f} s")
        outcome.seconds = round(time.monotonic() - begin, 1)
        text = log.read_text(errors="replace") if log.exists() else ""
        judge(outcome, text, (LOGS / f"{tool}.out").read_text(errors="replace"), process.returncode, explained)
        outcomes.append(outcome)
    return outcomes


def as_record(outcome: Outcome) -> dict[str, Any]:
    return {
        "seconds": outcome.seconds,
        "kernels": len(outcome.ran),
        "problems": sum(outcome.ran.values()),
        "explained reports": outcome.explained,
        "unexplained reports": len(outcome.reports),
        "faults": outcome.problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of each tool")
    parser.add_argument("--record", type=Path, default=TESTS / "gpu_record" / "sanitize.json")
    arguments = parser.parse_args()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("compute-sanitizer: not found; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    from recording import checked_run

    header = checked_run()
    outcomes = run_tools(sanitizer, arguments.tools.split(","), arguments.seconds)
    for outcome in outcomes:
        record = as_record(outcome)
        print(f"{outcome.tool}: " + ", ".join(f"{name} {value}" for name, value in record.items() if name != "faults"))
        for problem in outcome.problems[:10]:
            print(f"  {problem}")
        kinds: dict[tuple[str, str], int] = {}
        for report in outcome.reports:
            key = (report.kernel or report.family, report.text.splitlines()[0].strip()[:160])
            kinds[key] = kinds.get(key, 0) + 1
        for (who, what), count in sorted(kinds.items())[:20]:
            print(f"  {count} x {who}: {what}")
    record = {"header": header, "tools": {outcome.tool: as_record(outcome) for outcome in outcomes}}
    write_atomically(arguments.record, json.dumps(record, indent=2) + "\n")
    return 1 if any(outcome.reports or outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
