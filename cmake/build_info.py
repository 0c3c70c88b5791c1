"""Writes build_info.json: what every kernel costs on the GPU, and what every file cost to build.

Joins three sources by the kernel's registry name, which every instance's mangled symbol contains:
the compile logs beside the objects (cmake/compile_log.py), `cuobjdump -res-usage` of the finished library where
cuobjdump exists, and the KernelSpecs of the registry through `_C`. Fails when a built kernel has no entry, when a
kernel spills and is not listed in ALLOWED_SPILLS, or when the compiles took more CPU time than the budget.

JSON: {"version", "source_hash", "archs", "library_bytes", "core_minutes", "budget_core_minutes",
       "files": [{"source", "seconds", "cpu_seconds", "cached"}],
       "kernels": {name: {"family", "mma", "threads", "dynamic_smem", "code": {arch: [FUNCTION]}}},
       "helpers": {arch: [FUNCTION]}}                       kernels that are no rows
FUNCTION: {"symbol", "registers", "stack", "spill_stores", "spill_loads", "static_smem"}, sizes in bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# 108 bytes: odd alignment with both operands' rows across K, on an architecture whose products are tcgen05's to serve.
_SPILLING_ON_SM100 = [f"sm80_gemm_{dtype}_{dtype}_f32_any_mn_64x64x32_w32x32_s3_align2" for dtype in ("bf16", "f16")]
# 20 and 16 bytes, on an architecture that is compiled and never run: addresses of the loader of odd rows, a column of
# the epilogue. They came with another order of the tile scheduler's steps; for sm_80 and sm_90a nothing spills by it.
_SPILLING_ON_SM120 = [
    f"sm80_gemm_{form}{dtype}_{dtype}_f32_any_{tile}"
    for dtype in ("bf16", "f16")
    for form, tile in (("", "kn_64x64x32_w32x32_s3_align2"), ("gated_aux_", "kk_128x128x32_w64x64_s4"))
]
ALLOWED_SPILLS = {
    *((name, "100a") for name in _SPILLING_ON_SM100),
    *((name, "120a") for name in _SPILLING_ON_SM120),
}
# Families whose kernels are host code that calls a library.
HOST_FAMILIES = {"cublaslt"}

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
PROPERTIES = re.compile(r"Function properties for (\w+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC_SMEM = re.compile(r"(\d+) bytes smem")

Function = dict[str, Any]


def parse_ptxas(lines: list[str]) -> list[tuple[str, Function]]:
    """(architecture, function) of every entry function in the `-Xptxas -v` output of one compile."""
    functions: list[tuple[str, Function]] = []
    about = ""  # the function that a "bytes stack frame" line speaks of: the entry, or a device function it calls
    for line in lines:
        if entry := ENTRY.search(line):
            about = entry[1]
            frame = {"stack": 0, "spill_stores": 0, "spill_loads": 0, "static_smem": 0}
            functions.append((entry[2], {"symbol": entry[1], "registers": 0, **frame}))
        elif properties := PROPERTIES.search(line):
            about = properties[1]
        elif (frame_line := FRAME.search(line)) and functions and about == functions[-1][1]["symbol"]:
            stack, stores, loads = map(int, frame_line.groups())
            functions[-1][1].update(stack=stack, spill_stores=stores, spill_loads=loads)
        elif (used := USED.search(line)) and functions:
            smem = STATIC_SMEM.search(line)
            functions[-1][1].update(registers=int(used[1]), static_smem=int(smem[1]) if smem else 0)
    return functions


def parse_res_usage(text: str) -> dict[tuple[str, str], tuple[int, int]]:
    """(architecture, symbol) -> (registers, stack) from `cuobjdump -res-usage`."""
    usage: dict[tuple[str, str], tuple[int, int]] = {}
    arch = symbol = ""
    for line in text.splitlines():
        if found := re.search(r"arch = sm_(\w+)", line):
            arch = found[1]
        elif found := re.search(r"Function (\w+):", line):
            symbol = found[1]
        elif found := re.search(r"REG:(\d+) STACK:(\d+)", line):
            usage[arch, symbol] = (int(found[1]), int(found[2]))
    return usage


def kernel_of(symbol: str, names: set[str]) -> str | None:
    """The registry name in a mangled symbol: an identifier `<name>_config` is written `<length><name>_config`."""
    for start in re.finditer(r"\d+", symbol):
        identifier = symbol[start.end() : start.end() + int(start[0])]
        if identifier.endswith("_config") and identifier.removesuffix("_config") in names:
            return identifier.removesuffix("_config")
    return None


def load_module(path: Path) -> Any:
    """Imports `_C` from its file; the caller has put torch's libraries on LD_LIBRARY_PATH."""
    spec = importlib.util.spec_from_file_location("gemmx._C", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems_of(info: dict[str, Any], module: Any) -> list[str]:
    """Why this build must not be used, a sentence each."""
    problems = []
    for name, kernel in info["kernels"].items():
        if kernel["family"] in HOST_FAMILIES:
            continue
        for arch in info["archs"]:
            if module.built_for(name, int(arch.rstrip("af"))) and arch not in kernel["code"]:
                problems.append(f"{name}: built for {arch}, but no symbol with '{name}_config' was compiled for it.")
        for arch, functions in kernel["code"].items():
            spilled = sum(f["spill_stores"] + f["spill_loads"] for f in functions)
            if spilled and (name, arch) not in ALLOWED_SPILLS:
                problems.append(
                    f"{name}: spills {spilled} bytes for {arch}; use fewer registers, or list it with the "
                    "reason at ALLOWED_SPILLS of cmake/build_info.py."
                )
    if info["core_minutes"] > info["budget_core_minutes"]:
        problems.append(
            f"build budget: the compiles took {info['core_minutes']} core-minutes, the budget is "
            f"{info['budget_core_minutes']} (GEMMX_BUILD_BUDGET)."
        )
    return problems


def check_against_library(functions: list[tuple[str, Function]], library: Path, cuobjdump: str) -> None:
    """The compile logs must tell of the code in the library; a stale log would not."""
    text = subprocess.run([cuobjdump, "-res-usage", str(library)], check=True, capture_output=True, text=True).stdout
    usage = parse_res_usage(text)
    for arch, function in functions:
        logged = (function["registers"], function["stack"])
        if usage.get((arch, function["symbol"])) != logged:
            sys.exit(
                f"build_info: {function['symbol']} for {arch} has (registers, stack) {logged} in its compile log "
                f"and {usage.get((arch, function['symbol']))} in {library.name}: remove the build folder."
            )


def collect(objects: list[Path], module: Any, library: Path, cuobjdump: str, budget: float) -> dict[str, Any]:
    """The content of build_info.json."""
    logs = [json.loads(Path(f"{obj}.log").read_text()) for obj in objects]
    functions = [function for log in logs for function in parse_ptxas(log.pop("ptxas"))]
    if cuobjdump and functions:
        check_against_library(functions, library, cuobjdump)
    kernels = {
        spec.name: {
            "family": spec.family,
            "mma": spec.mma,
            "threads": spec.threads,
            "dynamic_smem": spec.smem_bytes,
            "code": {},
        }
        for spec in module.kernels()
    }
    helpers: dict[str, list[Function]] = {}
    for arch, function in functions:
        name = kernel_of(function["symbol"], set(kernels))
        (helpers if name is None else kernels[name]["code"]).setdefault(arch, []).append(function)
    return {
        "version": module.version(),
        "source_hash": module.source_hash(),
        "archs": list(module.build_archs()),
        "library_bytes": library.stat().st_size,
        "core_minutes": round(sum(log["cpu_seconds"] for log in logs) / 60, 2),
        "budget_core_minutes": budget,
        "files": sorted(
            ({**log, "source": os.path.relpath(log["source"], ROOT)} for log in logs),
            key=lambda log: -log["cpu_seconds"],
        ),
        "kernels": kernels,
        "helpers": helpers,
    }


def report(info: dict[str, Any]) -> str:
    """Each file's CPU seconds, dearest first, and each kernel's registers and spills."""
    lines = ["core-s  file"]
    for log in info["files"]:
        lines.append(f"{log['cpu_seconds']:6.1f}  {Path(log['source']).name}{' (ccache)' if log['cached'] else ''}")
    code = [(name, arch, f) for name, k in info["kernels"].items() for arch, fs in k["code"].items() for f in fs]
    if code:
        lines.append("  regs  stack  spill  kernel")
    for name, arch, f in code:
        spill = f["spill_stores"] + f["spill_loads"]
        lines.append(f"{f['registers']:6}  {f['stack']:5}  {spill:5}  {name} ({arch})")
    lines.append(
        f"{len(info['files'])} files, {info['core_minutes']} core-minutes of {info['budget_core_minutes']}, library "
        f"{info['library_bytes'] / 2**20:.1f} MiB"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=Path, required=True, help="file with one object path a line")
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--module", type=Path, required=True)
    parser.add_argument("--cuobjdump", default="", help="empty: the library is not compared with the logs")
    parser.add_argument("--budget", type=float, required=True, help="core-minutes")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()

    module = load_module(arguments.module)
    objects = [Path(line) for line in arguments.objects.read_text().split()]
    info = collect(objects, module, arguments.library, arguments.cuobjdump, arguments.budget)
    print(report(info))
    problems = problems_of(info, module)
    if problems:
        sys.exit("\n".join(problems))
    arguments.output.write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    main()
