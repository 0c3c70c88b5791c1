"""The hash of the sources that libgemmx.so is built from.

    python cmake/source_hash.py    prints it

The library carries it, evidence files (tests/gpu_record, benchmarks/results) quote it, and a record is refused
where it differs from the checkout's. Python files are not in it: none of them changes what the library computes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Folder and the suffixes that count there. Anything else (caches, editor files) is no source.
FOLDERS = {"csrc": (".h", ".cuh", ".cpp", ".cu", ".inc"), "cmake": (".cmake",), "third_party": (".cmake",)}


def source_files(root: Path = ROOT) -> list[Path]:
    """The files that are hashed, in the order of their POSIX paths."""
    files = [root / "CMakeLists.txt"]
    for folder, suffixes in FOLDERS.items():
        files += [path for path in (root / folder).rglob("*") if path.suffix in suffixes]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def source_hash(root: Path = ROOT) -> str:
    """16 hexadecimal digits; depends on the files' paths and bytes, not on their times."""
    digest = hashlib.sha256()
    for path in source_files(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(source_hash())
