"""docs/reliability.md quotes the records, and what it says of tests is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import reliability_page
from sanitize import EXPLAINED, load_explained

ROOT = Path(__file__).parents[1]
PAGE = reliability_page.PAGE.read_text()


def test_the_page_has_the_figures_of_the_records() -> None:
    """`python tests/gpu/reliability_page.py` writes them, as do the make targets that record."""
    assert reliability_page.updated(PAGE) == PAGE


def test_files_and_programs_exist() -> None:
    for path in re.findall(r"`((?:tests|csrc)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
    programs = (ROOT / "tests" / "gpu" / "load_programs.py").read_text()
    for name in (
        "cold_threads",
        "one_shape",
        "distinct_shapes",
        "captures",
        "neighbours",
        "two_devices",
        "out_of_memory",
    ):
        assert name in PAGE
        assert f"def {name}(" in programs


def test_every_explained_report_is_on_the_page() -> None:
    for row in load_explained(EXPLAINED):
        assert row["reason"] in PAGE, row
    assert json.loads(EXPLAINED.read_text()) or "\nNone.\n" in PAGE
