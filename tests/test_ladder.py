"""The ladder's specs, refusals and files, on the CPU. What the kernels compute is tests/gpu/test_kernels.py's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gemmx
from gemmx import _C
from gemmx.select.explain import check_shape
from gemmx.select.profiles import PROFILES, profile
from gemmx.select.selector import decide

FOLDER = Path(__file__).resolve().parents[1] / "csrc" / "kernels" / "ladder"
RUNGS = [spec for spec in _C.kernels() if spec.family == "ladder"]
NAMES = [
    "ladder_0_naive",
    "ladder_1_shared_tile",
    "ladder_2_register_tile",
    "ladder_3_double_buffer",
    "ladder_4_wmma",
    "ladder_5_mma_sync",
    "ladder_6_wgmma",
    "ladder_7_warp_specialized",
]
each_rung = pytest.mark.parametrize("spec", RUNGS, ids=lambda spec: spec.name)


def problem(spec: _C.KernelSpec, m: int = 256, n: int = 256, k: int = 256, **options: Any) -> _C.Problem:
    return check_shape(m, n, k, spec.dtype_a, **{"major_a": spec.major_a, "major_b": spec.major_b} | options).problem


def refusal(spec: _C.KernelSpec, **options: Any) -> str:
    return _C.supports(spec.name, problem(spec, **options), profile("h200"))


def test_there_are_eight_rungs() -> None:
    assert [spec.name for spec in RUNGS] == NAMES
    assert all(spec.teaching for spec in RUNGS)
    assert [spec.name for spec in _C.kernels() if spec.teaching] == NAMES


@each_rung
def test_what_a_rung_takes(spec: _C.KernelSpec) -> None:
    fp32 = spec in RUNGS[:4]
    assert spec.dtype_a == spec.dtype_b == ("f32" if fp32 else "bf16")
    assert (spec.major_a, spec.major_b) == ("k", "n" if fp32 else "k")
    assert spec.mma == ("FFMA" if fp32 else "HMMA" if spec in RUNGS[:6] else "HGMMA")
    assert spec.schedules == ("data_parallel",)
    for m, n, k in ((1, 1, 1), (130, 8, 8), (128, 1, 64), (1, 4096, 4096), (128, 128, 0), (8192, 8192, 8192)):
        padded = {"lda": -(-k // 8) * 8 or 8, "ldb": -(-(n if fp32 else k) // 8) * 8 or 8}
        assert refusal(spec, m=m, n=n, k=k, **padded) == ""
    assert refusal(spec, alpha=0.5, c=spec.dtype_a, beta=-2.0) == ""


@each_rung
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch": 3}, "multiplies two matrices, got a batch of 3"),
        ({"bias": "f32"}, "computes alpha * A @ B + beta * C and adds no bias"),
        ({"activation": "gelu"}, "computes alpha * A @ B + beta * C and applies no activation, got gelu"),
        ({"major_a": "m"}, "takes A k-major, got m"),
        ({"schedule": "split_k", "splits": 2}, "has no split_k schedule"),
    ],
)
def test_what_a_rung_refuses(spec: _C.KernelSpec, options: dict[str, Any], reason: str) -> None:
    assert refusal(spec, **options) == reason


@each_rung
def test_other_layouts_of_b_are_refused(spec: _C.KernelSpec) -> None:
    want, other = ("n", "k") if spec.dtype_a == "f32" else ("k", "n")
    assert refusal(spec, major_b=other) == f"takes B {want}-major, got {other}"


@pytest.mark.parametrize("spec", RUNGS[:4], ids=lambda spec: spec.name)
def test_fp32_rungs_multiply_in_fp32(spec: _C.KernelSpec) -> None:
    assert refusal(spec, precision="tf32") == "multiplies in full fp32 (precision ieee), asked for tf32"


@each_rung
def test_only_tma_needs_aligned_rows(spec: _C.KernelSpec) -> None:
    reason = refusal(spec, k=257) or refusal(spec, align_bytes=4 if spec.dtype_a == "f32" else 2)
    if spec in RUNGS[6:]:
        assert reason.startswith("moves a by TMA, which needs its address and row stride at multiples of 16 bytes")
    else:
        assert reason == ""


@each_rung
def test_a_rung_runs_where_its_instructions_exist(spec: _C.KernelSpec) -> None:
    for name in PROFILES:
        device = profile(name)
        reason = _C.supports(spec.name, problem(spec), device)
        if spec in RUNGS[6:]:
            assert (reason == "") == (device.capability == 90), name
        else:
            assert reason == "" or "shared memory" in reason, name


@each_rung
def test_a_rung_runs_only_when_asked_for(spec: _C.KernelSpec) -> None:
    device = profile("h200")
    free = decide(problem(spec), device, only_built=False)
    assert free.rejected[spec.name] == "is a teaching kernel, run only when asked for by name"
    assert not next(s for s in _C.kernels() if s.name == free.chosen.plan.kernel).teaching
    named = decide(problem(spec, kernel=spec.name), device, only_built=False)
    assert named.chosen.plan.kernel == spec.name
    shape = gemmx.explain.shape(
        256, 256, 256, spec.dtype_a, major_a=spec.major_a, major_b=spec.major_b, kernel=spec.name
    )
    assert shape.kernel == spec.name and "teaching kernel" in shape.why


# ---- the files ----


def rung_files() -> list[Path]:
    return sorted(FOLDER.glob("rung_*.cuh"))


def test_one_file_a_rung() -> None:
    assert [f"ladder_{path.stem.removeprefix('rung_')}" for path in rung_files()] == NAMES


@pytest.mark.parametrize("path", rung_files(), ids=lambda path: path.stem)
def test_a_rung_is_short_and_says_what_it_is(path: Path) -> None:
    lines = path.read_text().splitlines()
    number = int(path.stem.split("_")[1])
    assert len(lines) <= (250 if number == 7 else 150)
    head = "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))])
    assert head.startswith(f"// Rung {number}, ")
    for part in ("Before:", "Changes:", "Per CTA:", "Intensity:", "Wastes:"):
        assert f"// {part}" in head


# What a rung may use first; earlier rungs must not name it.
FIRST_USED = {
    r"__shared__": 1,
    r"float4": 2,
    r"cp_async": 3,
    r"wmma::": 4,
    r"mma_m16n8k16|ldmatrix_x4|swizzled_chunk": 5,
    r"wgmma_|tma_load|\bRing\b|SwizzledTile|TileA::load": 6,
    r"setmaxnreg|multicast|TmaTileStore|load<kCluster>": 7,
}


@pytest.mark.parametrize("path", rung_files(), ids=lambda path: path.stem)
def test_a_rung_uses_nothing_of_a_later_one(path: Path) -> None:
    number = int(path.stem.split("_")[1])
    code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("//"))
    for pattern, first in FIRST_USED.items():
        if first > number:
            assert not re.search(pattern, code), f"{path.name} uses {pattern}, which is rung {first}'s"


def test_rungs_before_the_study_walk_row_by_row() -> None:
    follows = {path.stem: re.search(r"kFollowsPlan = (\w+)", path.read_text()) for path in rung_files()}
    assert [name for name, found in follows.items() if found and found[1] == "true"] == [
        "rung_5_mma_sync",
        "rung_7_warp_specialized",
    ]
