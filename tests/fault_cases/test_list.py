"""README.md lists every case that has a test, and every case that it calls tested or refused has one."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def cases_with_tests() -> set[str]:
    names = (
        name for path in FOLDER.glob("test_*.py") for name in re.findall(r"^def test_(\w+)", path.read_text(), re.M)
    )
    return {found.upper() for name in names for found in re.findall(r"b\d\d(?=_)", name)}


def test_readme_and_tests_have_the_same_cases() -> None:
    rows = re.findall(r"^\| (B\d\d) \|(.*)\|$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    listed = [case for case, _ in rows]
    assert listed == sorted(set(listed))
    assert set(listed) == cases_with_tests()
