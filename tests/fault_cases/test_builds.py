"""B55-B58: architectures, shared memory, versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from every_way import SPECS
from gemmx import _C
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import choose
from watchdog import run_python

ROOT = Path(__file__).parents[2]


def test_b55_code_of_one_architecture_runs_there_only() -> None:
    """Wgmma and tcgen05 need sm_90a and sm_100a; a plain 90 is refused before anything is compiled (test_build.py)."""
    assert "90" not in _C.build_archs()
    for name, spec in SPECS.items():
        if spec.mma in ("HGMMA", "UTCHMMA"):
            assert spec.min_capability == spec.max_capability, name
            for capability in (80, 86, 89, 90, 100, 120):
                needed = {90: "90a", 100: "100a"}.get(capability)
                built = _C.built_for(name, capability)
                assert not built or (capability == spec.min_capability and needed in _C.build_archs()), name


def test_b55_a_kernel_of_another_architecture_is_refused() -> None:
    for name, spec in SPECS.items():
        for model in ("a100", "rtx4090", "h200", "b200"):
            device = profile(model)
            problem = check_shape(128, 128, 128, spec.dtype_a).problem
            if not spec.min_capability <= device.capability <= spec.max_capability:
                assert "needs compute capability" in _C.supports(name, problem, device)


def device_with_smem(device: _C.Device, smem: int) -> _C.Device:
    fields = ("name", "capability", "sm_count", "smem_per_sm", "l2_bytes", "clock_ghz", "dram_gbps")
    return _C.Device(**{field: getattr(device, field) for field in fields}, smem_per_block=smem)


LIMITS = {"a100": 166_912, "rtx4090": 101_376, "h100": 232_448, "h200": 232_448, "b200": 232_448}


@pytest.mark.parametrize("model", LIMITS)
def test_b57_shared_memory_is_within_the_limit_of_the_device(model: str) -> None:
    device = profile(model)
    assert device.smem_per_block == LIMITS[model]
    for name, spec in SPECS.items():
        problem = check_shape(128, 128, 128, spec.dtype_a).problem
        if spec.smem_bytes > device.smem_per_block:
            assert _C.supports(name, problem, device), name
        # The limit is the device's answer, not the architecture's.
        if spec.smem_bytes:
            less = device_with_smem(device, spec.smem_bytes - 1)
            assert _C.supports(name, problem, less), name
            if not _C.supports(name, problem, device):
                assert "bytes of shared memory" in _C.supports(name, problem, less), name


@pytest.mark.parametrize("model", LIMITS)
@pytest.mark.parametrize("smem", [48 << 10, 101_376])
def test_b57_something_fits_a_small_limit(model: str, smem: int) -> None:
    device = device_with_smem(profile(model), smem)
    for dtype in ("f32", "f16", "bf16"):
        for majors in (("k", "k"), ("m", "n")):
            problem = check_shape(77, 99, 301, dtype, major_a=majors[0], major_b=majors[1], bias=dtype).problem
            plan = choose(problem, device, only_built=False, exclude_families=("cublaslt",))
            assert SPECS[plan.kernel].smem_bytes <= smem


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import gemmx", "gemmx is not built: there is no {}/libgemmx.so; build it with `make build`"),
        (
            "import torch; torch.__version__ = '2.10.1+cu130'; import gemmx",
            "gemmx needs torch 2.11 or newer, whose stable ABI it is built on, but found torch 2.10.1+cu130",
        ),
        (
            "import os; open(os.environ['GEMMX_LIBRARY_DIR'] + '/libgemmx.so', 'w').close(); import gemmx",
            "{}/libgemmx.so, built for torch 2.11 or newer, does not load into torch " + torch.__version__,
        ),
    ],
)
def test_b58_import_says_what_is_missing(code: str, sentence: str, tmp_path: Path) -> None:
    """Both versions are named, and nothing of the loader's own words comes first."""
    result = run_python(code, GEMMX_LIBRARY_DIR=str(tmp_path))
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: " + sentence.format(tmp_path)), result.stderr
