"""Result files: their header, their schema, and the summary of a suite.

benchmarks/results/<gpu>/<suite>.json is {"header": {...}, "rows": [...]}, written in one run by one library.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gemmx._files import write_atomically
from gemmx.bench.stats import weighted_geomean

Document = dict[str, Any]

METHOD = (
    "CUDA graphs of >= 20 launches (kernels under 50 us) or about 1.5 ms, one graph and memory pool per arm; "
    "arms interleaved in one process, order changed every round; input sets rotated over >= 3x L2; random normal "
    "data; per-launch median, p10 and p90 over rounds; ratios are medians of per-round ratios; >= 100 ms of "
    "warm-up rounds per row, rows without pause (steady state)"
)
HEADER_KEYS = (
    "suite", "gpu", "uuid", "driver", "clocks", "torch", "cuda", "cublaslt", "source_hash", "date", "command", "method"
)  # fmt: skip
ARMS = ("gemmx", "own", "torch", "cublaslt_best")
STATUSES = ("measured", "skipped", "failed")


def slug(gpu: str) -> str:
    """The folder of a GPU's results: "NVIDIA H200" -> "nvidia-h200"."""
    return "-".join("".join(c if c.isalnum() else " " for c in gpu.lower()).split())


def cublaslt_version() -> str:
    """The version of the cuBLASLt that torch loaded, e.g. "13.1.0"."""
    library = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '0').split('.')[0]}")
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    version = int(library.cublasLtGetVersion())
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def gpu_facts(device: int) -> dict[str, Any]:
    """Name, UUID, driver and the clocks at this moment: right after a run they are those of the hot card."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    fields = "name,uuid,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={uuid}"]
    answer = subprocess.run(query, check=True, capture_output=True, text=True, timeout=60).stdout
    name, found, driver, *numbers = (field.strip() for field in answer.strip().split(","))
    keys = ("sm_mhz", "memory_mhz", "sm_max_mhz", "power_limit_w", "temperature_c")
    return {"gpu": name, "uuid": found, "driver": driver, "clocks": dict(zip(keys, numbers, strict=True))}


def make_header(suite: str, device: int, source_hash: str, command: str, method: str = METHOD) -> dict[str, Any]:
    return {
        "suite": suite,
        **gpu_facts(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cublaslt": cublaslt_version(),
        "source_hash": source_hash,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "method": method,
    }


def write(path: Path, document: Document) -> None:
    """One row per line, so that a diff shows which rows changed."""
    rows = ",\n".join("  " + json.dumps(row) for row in document["rows"])
    header = json.dumps(document["header"], indent=2).replace("\n", "\n ")
    write_atomically(path, f'{{\n "header": {header},\n "rows": [\n{rows}\n ]\n}}\n')


def read(path: Path) -> Document:
    document: Document = json.loads(path.read_text())
    return document


# -- schema ----------------------------------------------------------------------------------------------------


def _positive(x: object) -> bool:
    return isinstance(x, (int, float)) and math.isfinite(x) and x > 0


def _status_faults(row: Mapping[str, Any], missing: Iterable[str], statuses: Sequence[str] = STATUSES) -> list[str]:
    """Of what every row has: a status out of `statuses`, no key missing, and a reason where it is not measured."""
    status = row.get("status")
    if status not in statuses:
        return [f"status is {status!r}; it takes {', '.join(statuses)}"]
    faults = [f"{key} is missing" for key in missing]
    return faults if status == "measured" or row.get("reason") else [*faults, f"a {status} row needs a reason"]


def _number_faults(row: Mapping[str, Any], positive: Iterable[str], within_bound: Iterable[str]) -> list[str]:
    """Numbers that must be positive, and errors that must lie in [0, 1] of their bound."""
    faults = [f"{key} is not a positive number" for key in positive if not _positive(row.get(key))]
    for key in within_bound:
        value = row.get(key)
        if not isinstance(value, (int, float)) or not 0 <= value <= 1:
            faults.append(f"{key} is {value}, outside [0, 1] of its bound")
    return faults


def validate(document: Document) -> list[str]:
    """What is wrong with a result file; [] when nothing is."""
    header, rows = document.get("header"), document.get("rows")
    if not isinstance(header, dict) or not isinstance(rows, list):
        return ["it takes a header and a list of rows"]
    faults = [f"header: {key} is missing or empty" for key in HEADER_KEYS if not header.get(key)]
    checks: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
        "chain": _chain_faults,
        "host": _host_faults,
        "ladder": _ladder_faults,
        "invariant": _invariant_faults,
        "epilogue": _epilogue_faults,
        "llama": _llama_faults,
    }
    check = checks.get(str(header.get("suite")), _row_faults)
    for row in rows:
        faults += [f"row {row.get('name')}: {fault}" for fault in check(row)]
    return faults


_ROW_KEYS = ("suite", "name", "M", "N", "K", "batch", "weight")


def _row_faults(row: Mapping[str, Any]) -> list[str]:
    faults = _status_faults(row, [key for key in _ROW_KEYS if key not in row])
    if row.get("status") != "measured":
        return faults
    faults += _arm_faults(row, "gemmx") + _arm_faults(row, "torch")
    for arm in ("own", "cublaslt_best"):
        if row.get(f"{arm}_us") is None and not row.get(f"{arm}_reason"):
            faults.append(f"{arm}_us is null and {arm}_reason does not say why")
        elif row.get(f"{arm}_us") is not None:
            faults += _arm_faults(row, arm)
    faults += [f"{key} is missing" for key in ("kernel", "plan") if not row.get(key)]
    return faults + _number_faults(row, ("torch_over_gemmx", "gbps", "tflops", "weight"), ("error",))


def _epilogue_faults(row: Mapping[str, Any]) -> list[str]:
    """A suite's row whose torch arm is the better of eager and compile, both there, with what gemmx takes of each."""
    faults = _row_faults(row)
    if row.get("status") != "measured":
        return faults
    arms = ["eager", "compile", *(["addmm_activation"] if "addmm_activation_us" in row else [])]
    for arm in arms:
        faults += _arm_faults(row, arm)
    best, us = row.get("torch_arm"), [row.get(f"{arm}_us") for arm in ("eager", "compile")]
    if best not in ("eager", "compile") or not row.get("torch_us") == row.get(f"{best}_us") == min(filter(None, us)):
        faults.append(f"torch_us is not the smaller of eager_us and compile_us, or torch_arm ({best}) is not its arm")
    if not row.get("compile_mode"):
        faults.append("compile_mode is missing")
    return faults + _number_faults(row, [f"{arm}_over_gemmx" for arm in arms], ())


def _host_faults(row: Mapping[str, Any]) -> list[str]:
    faults = [f"{key} is missing" for key in ("name", "mode", "M", "N", "K", "kernel", "plan") if not row.get(key)]
    return faults + _arm_faults(row, "gemmx") + _arm_faults(row, "torch")


def _chain_faults(row: Mapping[str, Any]) -> list[str]:
    """Rows of --mode chain: times of a block, its plans, and how far the results are from what they should be."""
    keys = ("suite", "name", "M", "blocks", "weight_bytes", "l2_bytes")
    faults = _status_faults(row, [key for key in keys if not row.get(key)], ("measured", "failed"))
    if row.get("status") != "measured":
        return faults
    for arm in ("torch", "gemmx", "floor"):
        faults += _arm_faults(row, arm)
    layers = row.get("layers") or []
    faults += [] if layers else ["layers is missing"]
    for layer in layers:
        faults += [f"layers: {key} is missing" for key in ("name", "N", "K", "kernel", "plan") if not layer.get(key)]
    numbers = ("torch_over_gemmx", "floor_over_gemmx", "floor_over_torch", "gemmx_weight_gbps", "torch_weight_gbps",
               "floor_weight_gbps", "tflops", "launches", "rounds")  # fmt: skip
    return faults + _number_faults(row, numbers, ("error", "difference"))


def _invariant_faults(row: Mapping[str, Any]) -> list[str]:
    """Rows of gemmx.bench.invariant: three arms, two plans, two ratios, and an error of its bound."""
    faults = _status_faults(row, [key for key in _ROW_KEYS if key not in row])
    if row.get("status") != "measured":
        return faults
    for arm in ("default", "invariant", "torch"):
        faults += _arm_faults(row, arm)
    keys = ("kernel", "plan", "default_kernel", "default_plan")
    faults += [f"{key} is missing" for key in keys if not row.get(key)]
    if row.get("same_plan") != (row.get("plan") == row.get("default_plan")):
        faults.append(f"same_plan is {row.get('same_plan')}, but the plans say otherwise")
    numbers = ("invariant_over_default", "torch_over_invariant", "weight")
    errors = ["error", *(["default_error"] if "default_error" in row else [])]
    return faults + _number_faults(row, numbers, errors)


def _llama_faults(row: Mapping[str, Any]) -> list[str]:
    """Rows of examples/llama.py: a step's four arms, the better of each side, its GEMMs and their floor."""
    faults = _status_faults(row, [key for key in ("suite", "name") if not row.get(key)], ("measured", "failed"))
    if row.get("status") != "measured":
        return faults
    arms, sides = ("eager", "compile", "gemmx", "gemmx_compile"), {"torch_arm": ("eager", "compile")}
    sides["best_arm"] = ("gemmx", "gemmx_compile")
    for arm in arms:
        faults += _arm_faults(row, arm)
    for side, choice in sides.items():
        times = {arm: row.get(f"{arm}_us") or math.inf for arm in choice}
        if row.get(side) != min(choice, key=times.__getitem__):
            faults.append(f"{side} is {row.get(side)}, which is not the faster of {' and '.join(choice)}")
    if not row.get("gemm_kernels"):
        faults.append("gemm_kernels is missing")
    if row.get("captured") is not True and not row.get("not_captured"):
        faults.append("captured is not true and not_captured does not say why")
    numbers = ("batch", "tokens", "context", "layers", "compile_layers", "torch_over_gemmx", "upper_limit", "gemm_us",
               "other_us", "gemm_floor_us", "rounds", *(f"{arm}_tokens_per_s" for arm in arms))  # fmt: skip
    return faults + _number_faults(row, numbers, ("error",))


def _ladder_faults(row: Mapping[str, Any]) -> list[str]:
    """Rows of benchmarks/ladder.py: every kind has its counters or not; the timed ones have times and an error."""
    faults = [f"{key} is missing" for key in ("kind", "name", "size", "dtype") if not row.get(key)]
    if row.get("status") not in STATUSES:
        return [*faults, f"status is {row.get('status')!r}; it takes {', '.join(STATUSES)}"]
    if row["status"] != "measured" or row.get("kind") == "torch":
        return faults
    timed = {f"gemmx_us{suffix}": row.get(f"us{suffix}") for suffix in ("", "_p10", "_p90")}
    faults += _arm_faults(timed, "gemmx") + _arm_faults(row, "torch")
    return faults + _number_faults(row, ("of_torch", "tflops", "torch_tflops"), ("error",))


def _arm_faults(row: Mapping[str, Any], arm: str) -> list[str]:
    median, p10, p90 = (row.get(f"{arm}_us{suffix}") for suffix in ("", "_p10", "_p90"))
    if not (_positive(median) and _positive(p10) and _positive(p90)):
        return [f"{arm}_us, _p10 and _p90 are not positive numbers"]
    assert median is not None and p10 is not None and p90 is not None
    return [] if p10 <= median <= p90 else [f"{arm}_us is not between its p10 and p90"]


# -- summary ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """A suite in one line. Ratios are weighted geometric means over its measured rows; NaN where there is none."""

    suite: str
    measured: int
    skipped: int
    failed: int
    torch_over_gemmx: float
    worst: float
    worst_row: str
    torch_over_own: float
    own_worst: float
    own_worst_row: str
    cublaslt_over_gemmx: float
    cublaslt_share: float  # of the measured rows, served by a cuBLASLt plan
    floor_share: float  # floor_us / gemmx_us
    max_error: float


def summarise(document: Document) -> Summary:
    rows: list[dict[str, Any]] = document["rows"]
    measured = [row for row in rows if row["status"] == "measured"]

    def mean(key: str) -> float:
        return weighted_geomean((row[key], row["weight"]) for row in measured if row.get(key))

    def worst(key: str) -> tuple[float, str]:
        return min(((row[key], row["name"]) for row in measured if row.get(key)), default=(math.nan, ""))

    served = [row for row in measured if row.get("kernel_family") == "cublaslt"]
    return Summary(
        suite=document["header"]["suite"],
        measured=len(measured),
        skipped=sum(row["status"] == "skipped" for row in rows),
        failed=sum(row["status"] == "failed" for row in rows),
        torch_over_gemmx=mean("torch_over_gemmx"),
        worst=worst("torch_over_gemmx")[0],
        worst_row=worst("torch_over_gemmx")[1],
        torch_over_own=mean("torch_over_own"),
        own_worst=worst("torch_over_own")[0],
        own_worst_row=worst("torch_over_own")[1],
        cublaslt_over_gemmx=mean("cublaslt_best_over_gemmx"),
        cublaslt_share=len(served) / len(measured) if measured else math.nan,
        floor_share=mean("floor_over_gemmx"),
        max_error=max((row["error"] for row in measured), default=math.nan),
    )


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded with blanks; the first left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))

    return "\n".join(map(line, (head, *rows)))
