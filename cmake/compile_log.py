"""Compiler launcher: runs the compile command and keeps its cost and its remarks beside the object.

    python cmake/compile_log.py [ccache] compiler ... -o file.o    also writes file.o.log

The log has the wall and CPU seconds, what ccache said, and the `ptxas info` lines of `-Xptxas -v` (registers,
stack, spills), which nvcc prints only while it compiles; ccache replays them on a hit. cmake/build_info.py reads it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    command = sys.argv[1:]
    obj = Path(command[command.index("-o") + 1])
    stats = Path(f"{obj}.ccache")
    stats.unlink(missing_ok=True)
    start = time.monotonic()
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "CCACHE_STATSLOG": str(stats)}
    )
    seconds = time.monotonic() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)

    lines = done.stderr.splitlines()
    ptxas = [i for i, line in enumerate(lines) if line.startswith("ptxas info") or "bytes stack frame" in line]
    remarks = [line for i, line in enumerate(lines) if i not in set(ptxas)]
    if remarks:
        print("\n".join(remarks), file=sys.stderr)
    if done.returncode == 0:
        log = {
            "source": command[command.index("-c") + 1],
            "seconds": round(seconds, 4),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 4),
            "cached": stats.exists() and "_cache_hit" in stats.read_text(),
            "ptxas": [lines[i] for i in ptxas],
        }
        Path(f"{obj}.log").write_text(json.dumps(log, indent=1))
    stats.unlink(missing_ok=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
