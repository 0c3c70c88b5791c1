"""Importing this module loads libgemmx.so (kernels and op schemas) and the extension module `gemmx._C`.

Both lie in the package's folder, or in the folder that the environment variable GEMMX_LIBRARY_DIR names. Neither
initialises CUDA: a process may import gemmx, fork, and use the GPU in its children.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
from pathlib import Path

import torch

NAMESPACE = "gemmx"  # of the ops: torch.ops.gemmx
_OLDEST_TORCH = (2, 11)
_BUILD = "build it with `make build` in a checkout or `pip install .`"


def _folder() -> Path:
    override = os.environ.get("GEMMX_LIBRARY_DIR")
    return Path(override) if override else Path(__file__).parent


def torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


def _check_torch_version() -> None:
    oldest = ".".join(map(str, _OLDEST_TORCH))
    if torch_version() < _OLDEST_TORCH:
        raise ImportError(
            f"gemmx needs torch {oldest} or newer, whose stable ABI it is built on, but found torch "
            f"{torch.__version__}; install torch>={oldest}"
        )


def _load_ops(path: Path) -> None:
    if not path.is_file():
        raise ImportError(f"gemmx is not built: there is no {path}; {_BUILD}, or set GEMMX_LIBRARY_DIR to its folder")
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        reason = str(error).splitlines()[0]
        raise ImportError(
            f"{path}, built for torch {oldest} or newer, does not load into torch {torch.__version__} ({reason}); "
            f"{_BUILD} with this torch"
        ) from error


def _load_extension(folder: Path) -> None:
    name = "gemmx._C"
    spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
    if spec is None or spec.loader is None:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ImportError(f"gemmx is not built for Python {python}: there is no _C module in {folder}; {_BUILD}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    # What `import gemmx._C` would do: `from gemmx import _C` finds it here.
    sys.modules["gemmx"]._C = module  # type: ignore[attr-defined]


_check_torch_version()
_load_ops(_folder() / "libgemmx.so")
_load_extension(_folder())
