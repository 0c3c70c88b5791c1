"""Python programs in a process of their own that must end in time: a hang is a failure, not a stuck test run."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(code: str, *, timeout: float = 600.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the code with this process's paths; subprocess.TimeoutExpired when it does not end, after killing it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=env, check=False
    )


def assert_runs(code: str, *, timeout: float, **environment: str) -> str:
    """The program's output; AssertionError with all it said where it fails or hangs."""
    try:
        result = run_python(code, timeout=timeout, **environment)
    except subprocess.TimeoutExpired as expired:
        said = b"".join(x or b"" for x in (expired.stdout, expired.stderr)).decode(errors="replace")
        raise AssertionError(f"did not end within {timeout:.0f} s:\n{said[-4000:]}") from None
    assert result.returncode == 0, f"exit code {result.returncode}:\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout
