"""What the tests of the benchmarks share: the scripts as modules, a small manifest row, a GPU that is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gemmx.bench import manifest

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_row(**changes: Any) -> manifest.Row:
    """A small plain row, with changes."""
    return replace(manifest.load(ROOT / "benchmarks" / "manifests" / "decode.csv")[0], M=5, N=24, K=40, **changes)


class EagerGpu:
    """Arms run on the CPU when they are captured; a replay is so long that two launches fill it."""

    now = 0.0

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        return self.tick

    def tick(self) -> None:
        self.now += 20_000.0

    def mark(self) -> float:
        return self.now

    def elapsed_us(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None: ...
