"""The record of a GPU run: what each kernel did, on which GPU, with which sources.

`make test-gpu` writes tests/gpu_record/<family>.json. Tests say which kernel they tried with
`record_property("kernel", name)`; parametrized kernel tests do so through the `kernel` fixture. What a test measured
or counted, `record_property("figure", {name: value})`, goes to figures.json; what the tests of batch_invariant
compared, `record_property("invariant_bits", {name: value})`, to invariant_bits.json.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmx import _C
from gemmx._files import write_atomically
from gpu_fixtures import missing
from source_hash import source_hash  # cmake/, on pytest's pythonpath

# Properties of tests and the file that each goes to.
FIGURES = {"figure": "figures", "invariant_bits": "invariant_bits"}


class GpuRecord:
    """A pytest plugin that counts outcomes per kernel and writes one file per family."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, Counter[str]] = {}
        self.figures: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in FIGURES.values()}

    def pytest_sessionstart(self) -> None:
        """Refuses at once, not after minutes of tests, to record a library that the checkout did not build."""
        if stale := stale_library():
            raise pytest.UsageError(f"--gpu-record: {stale}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        for name, file in FIGURES.items():
            if report.when == "call" and report.outcome != "skipped" and isinstance(properties.get(name), dict):
                test = report.nodeid.removeprefix("tests/")
                self.figures[file][test] = {"outcome": report.outcome, **properties[name]}
        kernel = properties.get("kernel")
        if not isinstance(kernel, str):
            return
        counts = self.outcomes.setdefault(kernel, Counter())
        # A test counts once: by its call, or by the setup that skipped it or broke; a broken teardown is a failure.
        if report.when == "call" or report.outcome != "passed":
            counts[report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        for file, figures in self.figures.items():
            if figures:
                self.write_figures(file, figures)
        if not self.outcomes:
            return
        header = describe_run()
        families: dict[str, dict[str, dict[str, int]]] = {}
        for spec in _C.kernels():
            if spec.name in self.outcomes:
                counts = self.outcomes[spec.name]
                families.setdefault(spec.family, {})[spec.name] = {
                    outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")
                }
        self.folder.mkdir(exist_ok=True)
        for family, kernels in families.items():
            record = {"header": header, "kernels": dict(sorted(kernels.items()))}
            (self.folder / f"{family}.json").write_text(json.dumps(record, indent=2) + "\n")

    def write_figures(self, file: str, figures: dict[str, dict[str, Any]]) -> None:
        """Each test's figures with the run that they come from; those of tests that did not run stay as they are."""
        path = self.folder / f"{file}.json"
        header = describe_run()
        new = {test: {"header": header, "figure": figure} for test, figure in figures.items()}
        self.folder.mkdir(exist_ok=True)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # another session may end at the same time
            kept = json.loads(path.read_text()) if path.exists() else {}
            write_atomically(path, json.dumps(dict(sorted((kept | new).items())), indent=2) + "\n")
        finally:
            os.close(folder)


def stale_library() -> str:
    """Why the library's records would not be the checkout's; "" where they are."""
    if _C.source_hash() == source_hash():
        return ""
    return (
        f"the library was built from sources {_C.source_hash()} but the checkout's are {source_hash()}; build it again"
    )


def checked_run() -> dict[str, Any]:
    """describe_run() for a program that records; SystemExit where the library is not the checkout's or can't run."""
    if (reason := stale_library() or missing()) != "":
        raise SystemExit(reason)
    return describe_run()


def describe_run() -> dict[str, Any]:
    """GPU, driver, torch, the library's source hash and the date (UTC)."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "source_hash": _C.source_hash(),
        "gpu": properties.name,
        "uuid": f"GPU-{properties.uuid}",
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
    }


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
