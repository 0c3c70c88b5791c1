"""What the build has to know of the machine, asked once at configure time.

    python cmake/environment.py              JSON, read by CMakeLists.txt
    python cmake/environment.py --missing    pip requirements that a build for GEMMX_CUDA_ARCHS lacks, one a line

The interpreter that runs this is the one whose torch is built against. It finds packages without importing
them: `import torch` costs 2 s and fails where the environment variable TORCH_LOGS is set but empty.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TORCH_FLOOR = (2, 11)
CUTLASS_REQUIREMENT = "nvidia-cutlass==4.2.0.0"
NVCC_REQUIREMENT = "cuda-toolkit[nvcc,cudart,cccl]==13.0.*"
MODULE_QUERY = "import sysconfig as s; print(s.get_path('include')); print(s.get_config_var('EXT_SUFFIX'))"


def package_dir(name: str) -> Path | None:
    """Folder of an installed package, None where there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def torch_facts() -> dict[str, object]:
    """Version, folders and CUDA support of this interpreter's torch; SystemExit when it is absent or too old."""
    folder = package_dir("torch")
    floor = ".".join(map(str, TORCH_FLOOR))
    if folder is None:
        sys.exit(
            f"torch: not installed for {sys.executable}, gemmx needs torch >= {floor}: pip install 'torch>={floor}'"
        )
    text = (folder / "version.py").read_text()
    found = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", text)
    if found is None:
        sys.exit(f"torch: no version in {folder / 'version.py'}, reinstall it: pip install --force-reinstall torch")
    if (int(found[2]), int(found[3])) < TORCH_FLOOR:
        sys.exit(f"torch: got {found[1]}, gemmx needs torch >= {floor} (stable ABI): pip install 'torch>={floor}'")
    return {
        "torch_version": found[1],
        "torch_include": str(folder / "include"),
        "torch_lib": str(folder / "lib"),
        "torch_cuda": (folder / "lib" / "libtorch_cuda.so").exists(),
    }


def module_facts(python: str) -> dict[str, object]:
    """Header folder and file suffix of extension modules for the interpreter that will import `_C`."""
    include, suffix = subprocess.run(
        [python, "-c", MODULE_QUERY], check=True, capture_output=True, text=True
    ).stdout.split()
    if not (Path(include) / "Python.h").exists():
        sys.exit(f"python: {python} has no Python.h in {include}: install its development package, e.g. python3-dev")
    pybind11 = package_dir("pybind11")
    if pybind11 is None:
        sys.exit(f"pybind11: not installed for {sys.executable}: pip install pybind11")
    return {
        "python_include": include,
        "module_suffix": suffix,
        "pybind11_include": str(pybind11 / "include"),
    }


def pip_cuda_dir() -> Path | None:
    """site-packages/nvidia/cu13, where pip's CUDA 13 packages share one prefix."""
    nvidia = package_dir("nvidia")
    return nvidia / "cu13" if nvidia is not None and (nvidia / "cu13").is_dir() else None


def pip_cuda_tool(name: str) -> str:
    """A program of pip's CUDA packages, found the way NVIDIA documents it; empty where it is not installed."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.pathfinder") is None:
        return ""
    from cuda.pathfinder import find_nvidia_binary_utility

    return find_nvidia_binary_utility(name) or ""


def find_cuobjdump() -> str:
    """The system's or pip's cuobjdump; `-sass` needs nvdisasm in the same folder or on PATH."""
    return shutil.which("cuobjdump") or pip_cuda_tool("cuobjdump")


def find_nvcc() -> str:
    """CUDACXX, then CUDA_HOME, then PATH, /usr/local/cuda and pip; empty where there is none.

    CUDACXX and CUDA_HOME are orders, so nothing else is tried when one is set.
    """
    if compiler := os.environ.get("CUDACXX"):
        return shutil.which(compiler) or ""
    if home := os.environ.get("CUDA_HOME"):
        return shutil.which("nvcc", path=f"{home}/bin") or ""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin") or pip_cuda_tool("nvcc")


def gpu_capabilities() -> list[int]:
    """Compute capabilities of the GPUs present, e.g. [90], sorted."""
    if shutil.which("nvidia-smi"):
        smi = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True
        )
        return sorted({int(major) * 10 + int(minor) for major, minor in re.findall(r"(\d+)\.(\d)", smi.stdout)})
    if not Path("/dev/nvidiactl").exists():
        return []
    os.environ.pop("TORCH_LOGS", None)
    import torch

    return sorted({10 * a + b for a, b in map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))})


def cutlass_dir() -> str:
    """The CUTLASS source tree inside pip's nvidia-cutlass; empty where it is not installed."""
    library = package_dir("cutlass_library")
    source = library / "source" if library is not None else None
    return str(source) if source is not None and (source / "include" / "cutlass").is_dir() else ""


def missing_requirements() -> list[str]:
    """What pip must install before a build for GEMMX_CUDA_ARCHS (default: the GPUs present) can start."""
    archs = os.environ.get("GEMMX_CUDA_ARCHS", "").strip()
    if archs == "none" or (not archs and not gpu_capabilities()):
        return []
    missing = []
    if not cutlass_dir() and not os.environ.get("GEMMX_CUTLASS_DIR"):
        missing.append(CUTLASS_REQUIREMENT)
    if not find_nvcc():
        missing.append(NVCC_REQUIREMENT)
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("--module-python", default=sys.executable, help="interpreter that will import _C")
    arguments = parser.parse_args()
    if arguments.missing:
        print("\n".join(missing_requirements()))
        return
    cuda = pip_cuda_dir()
    facts = {
        **torch_facts(),
        **module_facts(arguments.module_python),
        "nvcc": find_nvcc(),
        "nvcc_requirement": NVCC_REQUIREMENT,
        "cuobjdump": find_cuobjdump(),
        "pip_cuda_include": str(cuda / "include") if cuda is not None else "",
        "cutlass": cutlass_dir(),
        "cutlass_requirement": CUTLASS_REQUIREMENT,
        "gpus": gpu_capabilities(),
    }
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
