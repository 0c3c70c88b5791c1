"""Options, markers and paths of all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Modules that tests share (problems.py, bad_calls.py) and the plugin beside the GPU tests: pytest's importlib mode
# puts no test folder on the path.
TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS / "gpu")]

# A machine that compiles meanwhile is no reason for a property to fail.
settings.register_profile("gemmx", deadline=None)
settings.load_profile("gemmx")


@pytest.fixture
def user_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No measured table but those that the test loads."""
    from gemmx.select import tables

    monkeypatch.setattr(tables, "SHIPPED", tmp_path / "nothing shipped")
    tables.reset_tables()
    yield
    monkeypatch.undo()
    tables.reset_tables()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-record", action="store_true", help="write tests/gpu_record/<family>.json after the GPU tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--gpu-record"):
        from recording import GpuRecord

        config.pluginmanager.register(GpuRecord(TESTS / "gpu_record"), "gpu-record")
