"""What the tests of the benchmarks share: the scripts as modules, and a small manifest row."""

from __future__ import annotations

import importlib.util
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
