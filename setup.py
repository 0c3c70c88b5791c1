"""Builds libgemmx.so, _C and build_info.json with CMake and puts them into the package.

Environment: GEMMX_CUDA_ARCHS (docs/building.md), MAX_JOBS (parallel compiles, default: all cores).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def tool(name: str) -> str:
    """Path of a program that pip installed beside this interpreter, or of the system's."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        sys.exit(f"{name}: not found, the build needs it: pip install {name}")
    return found


def build_folder() -> Path:
    """A folder for each Python version and set of architectures, so that changing one does not rebuild the other."""
    archs = re.sub(r"[^0-9a-z]+", "-", os.environ.get("GEMMX_CUDA_ARCHS") or "native")
    return ROOT / "build" / f"{sys.implementation.cache_tag}-{archs}"


def cmake_build(prefix: Path) -> None:
    """Configures, builds and installs into `prefix`."""
    cmake, folder = tool("cmake"), build_folder()
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    configure += [f"-DGEMMX_PYTHON={sys.executable}"]
    if budget := os.environ.get("GEMMX_BUILD_BUDGET"):
        configure += [f"-DGEMMX_BUILD_BUDGET={budget}"]
    if epilogues := os.environ.get("GEMMX_CUSTOM_EPILOGUES"):
        configure += [f"-DGEMMX_CUSTOM_EPILOGUES={Path(epilogues).resolve()}"]
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
    build = [cmake, "--build", str(folder), "--parallel", jobs]
    install = [cmake, "--install", str(folder), "--prefix", str(prefix), "--strip"]
    for command in (configure, build, install):
        if subprocess.run(command).returncode != 0:
            sys.exit("gemmx: the build stopped, the reason is above")


class CMakeBuildExt(build_ext):
    """build_ext whose one extension stands for everything that CMake makes."""

    def run(self) -> None:
        cmake_build(ROOT / "python" / "gemmx" if self.inplace else Path(self.build_lib).resolve() / "gemmx")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


setup(ext_modules=[Extension("gemmx._C", sources=[])], cmdclass={"build_ext": CMakeBuildExt})
