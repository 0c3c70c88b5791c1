"""The record of a GPU run: what each kernel did, on which GPU, with which sources.

`pytest tests/gpu --gpu-record` writes tests/gpu_record/<family>.json. Tests say which kernel they tried with
`record_property("kernel", name)`; parametrized kernel tests do so through the `kernel` fixture of gpu/conftest.py.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gemmx import _C
from source_hash import source_hash  # cmake/, on pytest's pythonpath


class GpuRecord:
    """A pytest plugin that counts outcomes per kernel and writes one file per family."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, Counter[str]] = {}

    def pytest_sessionstart(self) -> None:
        """Refuses at once, not after minutes of tests, to record a library that the checkout did not build."""
        if _C.source_hash() != source_hash():
            raise pytest.UsageError(
                f"--gpu-record: the library was built from sources {_C.source_hash()} but the checkout's are "
                f"{source_hash()}; build it again"
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kernel = dict(report.user_properties).get("kernel")
        if not isinstance(kernel, str):
            return
        counts = self.outcomes.setdefault(kernel, Counter())
        # A test counts once: by its call, or by the setup that skipped it or broke; a broken teardown is a failure.
        if report.when == "call" or report.outcome != "passed":
            counts[report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
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
