"""Load and lifetime. Every program runs in a process of its own with a time limit: a hang fails, and cold is cold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from load_limits import PROGRAMS
from watchdog import assert_runs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("program", PROGRAMS)
def test_load(program: str, record_property: Callable[[str, object], None]) -> None:
    if program == "two_devices" and torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    printed = assert_runs(f"import load_programs; load_programs.{program}()", timeout=PROGRAMS[program])
    record_property("figure", json.loads(printed.strip().splitlines()[-1]))
