"""The SASS of a finished library, one file per kernel and architecture.

    python cmake/sass.py [--library FILE] [--kernel NAME] [--output build/sass]

Needs cuobjdump and nvdisasm: a CUDA toolkit's, or pip's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from build_info import kernel_of
from environment import find_cuobjdump

ROOT = Path(__file__).resolve().parent.parent


def built_library() -> Path:
    """libgemmx.so of this checkout: in GEMMX_LIBRARY_DIR, else in python/gemmx."""
    return Path(os.environ.get("GEMMX_LIBRARY_DIR") or ROOT / "python" / "gemmx") / "libgemmx.so"


def disassemble(library: Path) -> Iterator[tuple[str, str, list[str]]]:
    """(architecture, symbol, lines) of every function in the library's GPU code."""
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        sys.exit("cuobjdump: not found: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    path = f"{Path(cuobjdump).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        [cuobjdump, "-sass", str(library)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}
    )
    assert process.stdout is not None
    arch, symbol, lines = "", "", list[str]()
    for line in process.stdout:
        if found := re.search(r"code for sm_(\w+)", line):
            arch = found[1]
        elif found := re.search(r"Function : (\S+)", line):
            symbol, lines = found[1], []
        elif line.strip().startswith("....") and symbol:  # the rule below a function
            yield arch, symbol, lines
            symbol = ""
        elif symbol and re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+\S", line):
            lines.append(re.sub(r"\s*/\* 0x[0-9a-f]+ \*/\s*$", "", line.rstrip()).strip())
    if process.wait() != 0:
        sys.exit(f"cuobjdump: stopped with status {process.returncode} on {library}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=built_library())
    parser.add_argument("--kernel", help="registry name (default: all)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "sass")
    arguments = parser.parse_args()

    info = json.loads((arguments.library.parent / "build_info.json").read_text())
    names = set(info["kernels"])
    if arguments.kernel and arguments.kernel not in names:
        sys.exit(f"--kernel: got '{arguments.kernel}', which is no registered kernel (see `gemmx kernels`)")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for stale in arguments.output.glob("*.sass"):
        stale.unlink()
    for arch, symbol, lines in disassemble(arguments.library):
        name = kernel_of(symbol, names)
        if arguments.kernel and name != arguments.kernel:
            continue
        file = arguments.output / f"{name or 'helpers'}.sm_{arch}.sass"
        with file.open("a") as out:
            out.write(f"// {symbol}\n" + "\n".join(lines) + "\n\n")
    for file in sorted(arguments.output.glob("*.sass")):
        print(file)


if __name__ == "__main__":
    main()
