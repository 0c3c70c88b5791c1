"""Facts about the build: what it refuses and how, what it generates, what the finished library has in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import build_info
import environment
import sass
from source_hash import source_files, source_hash

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sass.built_library()
LIBRARY_LIMIT = 60 * 2**20
SCRIPTS = sysconfig.get_path("scripts")
CMAKE = shutil.which("cmake", path=SCRIPTS) or shutil.which("cmake")
needs_cmake = pytest.mark.skipif(CMAKE is None, reason="needs cmake")


def program(name: str) -> str:
    found = shutil.which(name, path=SCRIPTS) or shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def cmake_script(folder: Path, text: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `text` as a CMake project without languages in `folder`."""
    assert CMAKE is not None
    header = f'cmake_minimum_required(VERSION 3.30)\nproject(probe LANGUAGES NONE)\ninclude("{ROOT}/cmake/'
    (folder / "CMakeLists.txt").write_text(text.replace("INCLUDE ", header, 1))
    env = {key: value for key, value in os.environ.items() if key != "GEMMX_CUDA_ARCHS"} | variables
    command = [CMAKE, "-S", str(folder), "-B", str(folder / "build"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env)


def words(text: str) -> str:
    """The text on one line: CMake wraps its messages."""
    return " ".join(text.split())


# --- architectures ---------------------------------------------------------------------------------------------

RESOLVE = """INCLUDE architectures.cmake")
gemmx_requested_architectures("$ENV{GPUS}" asked)
gemmx_resolve_architectures("${asked}" codes)
gemmx_family_codes(cutlass_sm90 "${codes}" hopper)
message(STATUS "codes=[${codes}] hopper=[${hopper}]")
"""


@needs_cmake
@pytest.mark.parametrize(
    ("asked", "gpus", "codes", "hopper"),
    [
        ("none", "", "", ""),
        ("all", "", "80;90a;100a;120a", "90a"),
        ("80 90a", "", "80;90a", "90a"),
        ("90a,80", "", "80;90a", "90a"),
        ("86;89", "", "80", ""),
        ("", "90", "90a", "90a"),
        ("", "89;90", "80;90a", "90a"),
        ("", "75", "", ""),
        ("", "", "", ""),
    ],
)
def test_architecture_names(tmp_path: Path, asked: str, gpus: str, codes: str, hopper: str) -> None:
    done = cmake_script(tmp_path, RESOLVE, GEMMX_CUDA_ARCHS=asked, GPUS=gpus)
    assert f"codes=[{codes}] hopper=[{hopper}]" in done.stdout, done.stderr


@needs_cmake
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ("90", "got '90', takes none, all or a list of 80 86 89 90a 100a 120a, say 90a"),
        ("80 100", "got '100', takes none, all or a list of 80 86 89 90a 100a 120a, say 100a"),
        ("9.0a", "got '9.0a', takes none, all or a list of 80 86 89 90a 100a 120a."),
        ("hopper", "got 'hopper', takes none"),
        ("all 80", "got 'all', takes none, all or a list of 80 86 89 90a 100a 120a, and all only by itself"),
        ("80 none", "got 'none', takes none"),
    ],
)
def test_wrong_architecture_name(tmp_path: Path, asked: str, sentence: str) -> None:
    done = cmake_script(tmp_path, RESOLVE, GEMMX_CUDA_ARCHS=asked)
    assert done.returncode != 0
    assert f"GEMMX_CUDA_ARCHS: {sentence}" in words(done.stderr)


# --- what is missing -------------------------------------------------------------------------------------------


@needs_cmake
def test_missing_nvcc(tmp_path: Path) -> None:
    pytest.importorskip("pybind11")
    assert CMAKE is not None
    env = {**os.environ, "CUDA_HOME": str(tmp_path), "GEMMX_CUDA_ARCHS": "80"}
    env.pop("CUDACXX", None)
    command = [CMAKE, "-S", str(ROOT), "-B", str(tmp_path / "build"), f"-DGEMMX_PYTHON={sys.executable}"]
    if ninja := shutil.which("ninja", path=SCRIPTS):
        command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode != 0
    assert "nvcc: none found for GEMMX_CUDA_ARCHS=80" in words(done.stderr)
    assert "pip install 'cuda-toolkit[nvcc,cudart,cccl]==13.0.*', or set GEMMX_CUDA_ARCHS=none." in words(done.stderr)


def test_nvcc_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDACXX wins over CUDA_HOME, CUDA_HOME over PATH; an order that cannot be met is not replaced."""
    places = {name: tmp_path / name / "bin" / "nvcc" for name in ("cudacxx", "home", "path")}
    for nvcc in places.values():
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(places["path"].parent))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)
    assert environment.find_nvcc() == str(places["path"])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert environment.find_nvcc() == str(places["home"])
    monkeypatch.setenv("CUDACXX", str(places["cudacxx"]))
    assert environment.find_nvcc() == str(places["cudacxx"])
    monkeypatch.setenv("CUDACXX", str(tmp_path / "absent"))
    assert environment.find_nvcc() == ""


def test_old_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.10.1+cpu'\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "cmake" / "environment.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode != 0
    expected = "torch: got 2.10.1+cpu, gemmx needs torch >= 2.11 (stable ABI): pip install 'torch>=2.11'"
    assert done.stderr.strip() == expected


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "package_dir", lambda name: None)
    with pytest.raises(SystemExit, match=r"torch: not installed for .*: pip install 'torch>=2.11'"):
        environment.torch_facts()


def test_missing_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_nvcc", lambda: "")
    monkeypatch.setattr(environment, "cutlass_dir", lambda: "")
    monkeypatch.setattr(environment, "gpu_capabilities", list)
    monkeypatch.delenv("GEMMX_CUTLASS_DIR", raising=False)
    monkeypatch.setenv("GEMMX_CUDA_ARCHS", "none")
    assert environment.missing_requirements() == []
    monkeypatch.setenv("GEMMX_CUDA_ARCHS", "")
    assert environment.missing_requirements() == []
    monkeypatch.setenv("GEMMX_CUDA_ARCHS", "90a")
    assert environment.missing_requirements() == [environment.CUTLASS_REQUIREMENT, environment.NVCC_REQUIREMENT]


# --- instances -------------------------------------------------------------------------------------------------

GENERATE = """INCLUDE instances.cmake")
gemmx_generate_instances(probe "${CMAKE_SOURCE_DIR}/instances.inc" ROW "probe.cuh" sources)
"""


@needs_cmake
def test_generated_instances(tmp_path: Path) -> None:
    rows = tmp_path / "instances.inc"
    rows.write_text("// ROW(name, n)\nROW(alpha, 1)\n\nROW(beta, 2)\n")
    assert cmake_script(tmp_path, GENERATE).returncode == 0
    folder = tmp_path / "build" / "instances" / "probe"
    assert (folder / "alpha.cu").read_text() == '#include "probe.cuh"\nROW(alpha, 1)\n'
    assert (folder / "beta.cu").read_text() == '#include "probe.cuh"\nROW(beta, 2)\n'

    before = (folder / "alpha.cu").stat().st_mtime_ns
    rows.write_text("ROW(alpha, 1)\nROW(gamma, 3)\n")
    assert cmake_script(tmp_path, GENERATE).returncode == 0
    assert sorted(file.name for file in folder.iterdir()) == ["alpha.cu", "gamma.cu"]
    assert (folder / "alpha.cu").stat().st_mtime_ns == before, "an unchanged row must not be compiled again"


@needs_cmake
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("ROW(alpha,\n  1)\n", "got the row 'ROW(alpha,', a row is one line 'ROW(name, ...)' and nothing else."),
        ("ROW(3, 1)\n", "got the row 'ROW(3, 1)'"),
        ("ROW(alpha, 1)\nROW(alpha, 2)\n", "the name 'alpha' stands in two rows, names are unique."),
    ],
)
def test_malformed_rows(tmp_path: Path, rows: str, sentence: str) -> None:
    (tmp_path / "instances.inc").write_text(rows)
    done = cmake_script(tmp_path, GENERATE)
    assert done.returncode != 0
    assert sentence in words(done.stderr)


def test_wgmma_instructions_are_what_their_script_writes() -> None:
    command = [sys.executable, str(ROOT / "cmake" / "wgmma_shapes.py")]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "csrc/device/ptx/wgmma_shapes.cuh").read_text() == written


# Rows that were measured with fewer stages than fit, and are what they were measured as until more are.
UNFILLED = {
    *(f"sm90_gemm_bf16_bf16_f32_any_kk_swapab_{tile}" for tile in (
        "32x8x256_1x1_pp_s9", "48x8x256_1x1_pp_s7", "56x8x256_1x1_pp_s6", "32x16x256_1x1_pp_s8", "48x16x256_1x1_pp_s6",
        "56x16x256_1x1_pp_s5", "32x32x256_1x1_pp_s6",
    )),
    "sm90_gemm_f16_f16_f32_any_kk_swapab_32x16x256_1x1_pp_s8",
    *(f"sm90_gemm_gated_bf16_bf16_f32_any_kk_swapab_{tile}" for tile in (
        "64x8x256_1x1_pp_s5", "112x8x128_1x1_pp_s6", "112x16x128_1x1_pp_s6",
    )),
}  # fmt: skip


def test_wgmma_rows_fill_the_shared_memory_of_hopper() -> None:
    """Stages are as many as fit, up to 12: another row that leaves room for one more is a mistake."""
    from gemmx import _C

    specs = [spec for spec in _C.kernels() if spec.family == "sm90"]
    assert len(specs) >= 50
    unfilled = set()
    for spec in specs:
        tile_m, tile_n, tile_k = spec.tile
        stage = 2 * tile_k * (tile_m + tile_n)
        assert spec.smem_bytes <= 232448, spec.name
        if spec.smem_bytes + stage <= 232448 and spec.stages != 12:
            unfilled.add(spec.name)
    assert unfilled == UNFILLED


def test_no_flag_flushes_subnormals() -> None:
    for file in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]:
        assert not re.search(r"use_fast_math|ftz=true|ffast-math", file.read_text()), file


# --- source hash -----------------------------------------------------------------------------------------------


def test_source_hash_follows_paths_and_bytes(tmp_path: Path) -> None:
    for path, text in {"CMakeLists.txt": "", "csrc/a.cpp": "x", "csrc/b.h": "y", "cmake/c.cmake": ""}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    first = source_hash(tmp_path)
    os.utime(tmp_path / "csrc" / "a.cpp", (0, 0))
    (tmp_path / "csrc" / "notes.txt").write_text("no source")
    assert source_hash(tmp_path) == first
    (tmp_path / "csrc" / "a.cpp").write_text("xy")
    (tmp_path / "csrc" / "b.h").write_text("")
    assert source_hash(tmp_path) != first


def test_source_files_are_all_there() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in source_files()}
    assert {"CMakeLists.txt", "cmake/instances.cmake", "csrc/core/problem.h"} <= names


# --- build_info ------------------------------------------------------------------------------------------------

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kI13simt_a_configEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kI13simt_a_configEvPf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 128 bytes smem, 904 bytes cmem[0]
ptxas info    : Function properties for device_helper
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""


def test_ptxas_output() -> None:
    ((arch, function),) = build_info.parse_ptxas(PTXAS.splitlines())
    assert arch == "90a"
    assert function == {
        "symbol": "_Z1kI13simt_a_configEvPf",
        "registers": 40,
        "stack": 16,
        "spill_stores": 8,
        "spill_loads": 12,
        "static_smem": 128,
    }


def test_res_usage_output() -> None:
    text = "arch = sm_90a\nResource usage:\n Function kern:\n  REG:40 STACK:16 SHARED:128 LOCAL:0 CONSTANT[0]:904\n"
    assert build_info.parse_res_usage(text) == {("90a", "kern"): (40, 16)}


def test_symbols_join_by_whole_names() -> None:
    names = {"simt_a", "simt_a_b", "a"}
    assert build_info.kernel_of("_ZN5gemmx4simt1kINS_7kernels13simt_a_configEEEvPf", names) == "simt_a"
    assert build_info.kernel_of("_ZN5gemmx4simt1kINS_7kernels15simt_a_b_configEEEvPf", names) == "simt_a_b"
    assert build_info.kernel_of("_ZN5gemmx6reduceEPf", names) is None


def fake_info(**kernel: Any) -> dict[str, Any]:
    return {
        "archs": ["80"],
        "core_minutes": 1.0,
        "budget_core_minutes": 25.0,
        "kernels": {"k": {"family": "simt", "code": {}} | kernel},
    }


def test_build_stops_on_kernels_without_code_spills_and_budget() -> None:
    module = SimpleNamespace(built_for=lambda name, capability: True)
    (missing,) = build_info.problems_of(fake_info(), module)
    assert missing.startswith("k: built for 80, but no symbol with 'k_config'")
    (spill,) = build_info.problems_of(fake_info(code={"80": [{"spill_stores": 4, "spill_loads": 8}]}), module)
    assert spill.startswith("k: spills 12 bytes for 80")
    (budget,) = build_info.problems_of(fake_info(family="cublaslt") | {"core_minutes": 30.0}, module)
    assert budget.startswith("build budget: the compiles took 30.0 core-minutes, the budget is 25.0")


# --- the finished library --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def info() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((LIBRARY.parent / "build_info.json").read_text())
    return loaded


def test_library_is_built_from_this_checkout(info: dict[str, Any]) -> None:
    from gemmx import _C

    assert _C.source_hash() == info["source_hash"] == source_hash()
    assert _C.version() == info["version"]
    assert tuple(_C.build_archs()) == tuple(info["archs"])


def test_build_info_is_complete(info: dict[str, Any]) -> None:
    from gemmx import _C

    specs = {spec.name: spec for spec in _C.kernels()}
    assert set(info["kernels"]) == set(specs)
    for name, kernel in info["kernels"].items():
        assert kernel["dynamic_smem"] == specs[name].smem_bytes
        if kernel["family"] in build_info.HOST_FAMILIES:
            continue
        built = {arch for arch in info["archs"] if _C.built_for(name, int(arch.rstrip("a")))}
        assert set(kernel["code"]) == built, name
        for arch, functions in kernel["code"].items():
            for function in functions:
                assert 0 < function["registers"] <= 255
                spills = function["spill_stores"] + function["spill_loads"]
                assert spills == 0 or (name, arch) in build_info.ALLOWED_SPILLS
    assert info["core_minutes"] <= info["budget_core_minutes"]
    assert all(file["cpu_seconds"] > 0 for file in info["files"])


def assert_first_load_is_near(name: str, lines: list[str]) -> None:
    """What the loading warp runs up to its first load. A kernel does nothing for its product until then."""
    start = next(i for i, line in enumerate(lines) if "USETMAXREG.DEALLOC" in line)
    load = next(i for i, line in enumerate(lines) if i > start and "UTMALDG" in line)
    first = lines[start:load]
    assert len(first) <= 420, f"{name}: {len(first)} instructions"
    # No fence of the whole GPU, no division in software, and without neighbours no wait for the rest of the CTA.
    slow = ("MEMBAR", "CALL", "BAR.SYNC") if "_1x1_" in name else ("MEMBAR", "CALL")
    assert not [line for line in first if any(word in line for word in slow)], name


def test_every_kernel_has_its_mma_instruction(info: dict[str, Any]) -> None:
    """And no access to local memory, which would be a spill or an array that registers cannot hold."""
    if not info["archs"]:
        pytest.skip("GEMMX_CUDA_ARCHS=none: no GPU code")
    if not environment.find_cuobjdump():
        pytest.skip("needs cuobjdump")
    names = set(info["kernels"])
    found: dict[tuple[str, str], bool] = {}
    for arch, symbol, lines in sass.disassemble(LIBRARY):
        name = build_info.kernel_of(symbol, names)
        if name is None:
            continue
        mnemonic = re.compile(rf"\b{info['kernels'][name]['mma']}\b")
        found[name, arch] = found.get((name, arch), False) or any(mnemonic.search(line) for line in lines)
        if (name, arch) not in build_info.ALLOWED_SPILLS:
            local = [line for line in lines if re.search(r"\b(LDL|STL)\b", line)]
            assert not local, f"{name} for {arch}: {local[0]}"
        if info["kernels"][name]["family"] == "sm90":
            # Not where the mainloop's stages and descriptors lie in uniform registers, as they must for its speed.
            products = [i for i, line in enumerate(lines) if "HGMMA" in line]
            assert not any("WARPSYNC" in line for line in lines[products[0] : products[-1]]), name
            assert_first_load_is_near(name, lines)
    expected = {(name, arch) for name, kernel in info["kernels"].items() for arch in kernel["code"]}
    assert found == dict.fromkeys(expected, True)


def test_library_size() -> None:
    assert LIBRARY.stat().st_size <= LIBRARY_LIMIT


def test_library_links_neither_python_nor_cuda_libraries() -> None:
    dynamic = subprocess.run([program("readelf"), "-d", str(LIBRARY)], capture_output=True, text=True).stdout
    needed = re.findall(r"NEEDED.*\[(.+)\]", dynamic)
    assert needed, dynamic
    assert not [name for name in needed if re.match(r"libpython|libtorch_python|libcudart|libcublas", name)]
    symbols = subprocess.run([program("nm"), "-D", str(LIBRARY)], capture_output=True, text=True).stdout
    assert "gemmx" in symbols
    assert not re.findall(r" _?Py[A-Z_]\w+", symbols)
    assert not re.findall(r" [TW] cuda\w+", symbols), "the static CUDA runtime must stay hidden"


# --- custom epilogues ------------------------------------------------------------------------------------------


@needs_cmake
def test_the_example_of_a_custom_epilogue_builds(info: dict[str, Any], tmp_path: Path) -> None:
    """Its kernel and the registry with its row: docs/custom_epilogue.md, without the rest of the library."""
    if "90a" not in info["archs"]:
        pytest.skip("the library here has no sm_90a code, so that there may be no nvcc")
    assert CMAKE is not None
    epilogues = ROOT / "examples" / "custom_epilogue"
    rows = (epilogues / "rows.inc").read_text()
    name = re.findall(r"^GEMMX_SM90_CUSTOM_KERNEL\((\w+), ", rows, re.M)[0]
    options = [f"-DGEMMX_CUSTOM_EPILOGUES={epilogues}", "-DGEMMX_CUDA_ARCHS=90a", f"-DGEMMX_PYTHON={sys.executable}"]
    configure = [CMAKE, "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja", *options]
    subprocess.run([*configure, f"-DCMAKE_MAKE_PROGRAM={program('ninja')}"], check=True, capture_output=True)
    kernel = f"CMakeFiles/gemmx_sm90_custom.dir/instances/sm90_custom/{name}.cu.o"
    registry = "CMakeFiles/gemmx_core.dir/csrc/core/registry.cpp.o"
    subprocess.run([program("ninja"), "-C", str(tmp_path), kernel, registry], check=True, capture_output=True)
    symbols = [
        subprocess.run([program("nm"), tmp_path / x], capture_output=True, text=True).stdout for x in (kernel, registry)
    ]
    assert re.search(rf" [DBRd] .*{name}", symbols[0]), "the kernel is not defined"
    assert re.search(rf" U .*{name}", symbols[1]), "the registry does not know the kernel"


# --- the project's files ---------------------------------------------------------------------------------------


def test_workflow_is_valid() -> None:
    pytest.importorskip("check_jsonschema")
    files = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert files
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, files)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_pins_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pins = dict(re.findall(r"([a-z-]+)==([0-9.]+[0-9])", hooks))
    assert set(pins) == {"clang-format", "ruff", "mypy", "typos", "check-jsonschema"}
    for name, version in pins.items():
        assert f'"{name}=={version}"' in project
