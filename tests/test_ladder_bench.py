"""The scripts that measure and report the ladder, without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench_rows import ROOT, script
from gemmx import _C
from gemmx.bench import results
from gemmx.bench.timer import Timing

ladder, report = script("ladder"), script("ladder_report")
RUNGS = [spec for spec in _C.kernels() if spec.family == "ladder"]


def timed(row: dict[str, Any], us: float, torch_us: float) -> dict[str, Any]:
    rows = {"x": row | {"status": "measured", "error": 0.5}}
    samples = [us, us + 0.5, us + 1]
    reference = [torch_us, torch_us + 0.5, torch_us + 1]
    timings = {"x": Timing.from_samples(samples, 2), "torch": Timing.from_samples(reference, 2)}
    ladder.fill(rows, timings, 2.0 * row["size"] ** 3)
    return rows["x"]


def document() -> results.Document:
    """A run with numbers that reach every target, and half of its counters."""
    rows = []
    for spec in RUNGS:
        share = report.TARGETS[report.rung({"name": spec.name})] / 100 * 1.01
        for size in (1024, 4096):
            torch_us = 2.0 * size**3 / 50e6 if spec.dtype_a == "f32" else 2.0 * size**3 / 650e6
            row = {"kind": "rung", "name": spec.name, "size": size, "dtype": spec.dtype_a}
            rows.append(timed(row, torch_us / share, torch_us) | {"registers": 100, "spills": 0, "smem_bytes": 2048})
    for spec in (RUNGS[5], RUNGS[7]):
        for i, (order, (raster, swizzle)) in enumerate(ladder.ORDERS.items()):
            row = {"kind": "order", "name": spec.name, "size": 4096, "dtype": "bf16", "order": order}
            row = timed(row | {"raster": raster, "swizzle": swizzle}, 300.0 - i, 210.0)
            rows.append(row | {"row_over": 1 + i / 100, "row_over_p10": 1.0, "row_over_p90": 1.2})
    row = {"kind": "ceiling", "name": ladder.MMA_SYNC, "size": 4096, "dtype": "bf16"}
    rows.append(timed(row, 400.0, 210.0))
    counters = {"dram_read_bytes": 1e8, "dram_write_bytes": 3e7, "l2_hit_percent": 80.0, "tensor_percent": 50.0}
    rows += [{"kind": "torch", "name": "torch", "size": 4096, "dtype": "bf16", "status": "measured", **counters}]
    header: dict[str, Any] = dict.fromkeys(results.HEADER_KEYS, "x")
    header |= {"suite": "ladder", "gpu": "NVIDIA H200", "source_hash": "0123456789abcdef", "date": "2026-01-02T03:04"}
    return {"header": header, "rows": rows}


def test_a_run_is_a_valid_result_file() -> None:
    good = document()
    assert results.validate(good) == []
    good["rows"][0]["error"] = 2.0
    del good["rows"][1]["of_torch"]
    assert len(results.validate(good)) == 2


def test_the_production_kernel_of_rung_5s_kind_exists() -> None:
    assert ladder.MMA_SYNC in {spec.name for spec in _C.kernels()}


def test_targets_and_steps_are_checked() -> None:
    rows = document()["rows"]
    assert report.unmet(rows) == []
    slow = [r | {"of_torch": 0.9} if r["name"] == RUNGS[7].name else r for r in rows]
    assert report.unmet(slow) == ["ladder_7_warp_specialized reaches 90.00 % of cuBLAS, not 96"]
    near = [r | {"tflops": 530.0} if r["name"] == RUNGS[7].name else r for r in rows]
    assert report.unmet(near)[0].startswith("ladder_7_warp_specialized is 1.0")


# ---- counters ----

NCU = """==PROF== Connected to process 1
loss of torch's own output
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_sector_hit_rate.pct",\
"sm__pipe_tensor_op_a_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"sm__pipe_tensor_op_b_cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","byte","byte","%","%","%"
"0","1","void gemmx::ladder::rung_0::gemm<gemmx::kernels::ladder_0_naive_config>(gemmx::ladder::Params)",\
"1,000","500","81.25","0","12.5"
"1","1","cublas_f32","7","8","9","1","2"
"2","1","cublas_reduce","1","1","9","1","n/a"
"3","1","cublas_bf16","70","80","90","1","2"
"""


def test_counters_of_ncu() -> None:
    found = ladder.parse_ncu(NCU)
    assert len(found) == 4
    assert found[0][1] == {
        "dram_read_bytes": 1000.0,
        "dram_write_bytes": 500.0,
        "l2_hit_percent": 81.25,
        "tensor_percent": 12.5,
    }
    launches = [("ladder_0_naive", 4096, "f32", "", 0), ("torch", 4096, "f32", "", 0), ("torch", 4096, "bf16", "", 0)]
    matched = ladder.match_launches(found, launches)
    assert [counters["dram_read_bytes"] for counters in matched] == [1000.0, 7.0, 70.0]
    with pytest.raises(RuntimeError, match="where ladder_1_shared_tile was launched"):
        ladder.match_launches(found, [("ladder_1_shared_tile", 4096, "f32", "", 0), *launches[1:]])
    with pytest.raises(RuntimeError, match="4 kernels of 6"):
        ladder.match_launches(found, launches * 2)
    with pytest.raises(RuntimeError, match="no table"):
        ladder.parse_ncu("==ERROR== no permission")


def test_pipes_are_taken_as_the_chip_names_them() -> None:
    listing = "sm__pipe_tensor_op_hmma_cycles_active  x\nsm__pipe_tensor_cycles_active_v2 y\nsm__pipe_fma_cycles_active"
    assert [found[1] for found in ladder.PIPES.finditer(listing)] == [
        "sm__pipe_tensor_op_hmma_cycles_active",
        "sm__pipe_fma_cycles_active",
    ]


def test_counters_reach_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "rungs", lambda: RUNGS)
    rows = document()["rows"]
    launches = ladder.profiled_launches()
    assert len(launches) == 8 + 2 * 4 * 6 + 2
    ladder.add_counters(rows, [{"dram_read_bytes": float(i)} for i in range(len(launches))])
    by_rung = [r["dram_read_bytes"] for r in rows if r["kind"] == "rung" and r["size"] == 4096]
    assert by_rung == list(range(8))
    assert all("dram_read_bytes" not in r for r in rows if r["kind"] == "rung" and r["size"] == 1024)
    orders = [r["dram_read_bytes"] for r in rows if r["kind"] == "order"]
    assert orders == [8 + 12 + i for i in range(6)] + [8 + 24 + 12 + i for i in range(6)]  # 4096 is the third size
    assert [r["dtype"] for r in rows if r["kind"] == "torch"][1:] == ["f32", "bf16"]


def test_build_facts_are_those_of_the_aligned_variant() -> None:
    code = [
        {"symbol": f"gemmILb{i}EE", "registers": 100 + i, "spill_stores": 4, "spill_loads": 8, "static_smem": 16}
        for i in (0, 1)
    ]
    info = {"kernels": {"x": {"dynamic_smem": 1000, "code": {"90a": code}}}}
    assert ladder.build_facts("x", info, "90a") == {"registers": 101, "spills": 12, "smem_bytes": 1016}
    assert ladder.build_facts("x", info, "80") == {}


# ---- the page ----


def root_with(folder: Path, found: results.Document) -> Path:
    (folder / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "ladder.md", folder / "docs")
    results.write(folder / "benchmarks" / "results" / "nvidia-h200" / "ladder.json", found)
    return folder


def test_the_page_shows_the_run(tmp_path: Path) -> None:
    root = root_with(tmp_path, document())
    text = report.render(root, report.load(root))
    assert "Not measured" not in text
    for spec in RUNGS:
        assert text.count(f"| `{spec.name}`") >= 3  # traffic, rungs, sizes
    assert "Every rung reaches what it should." in text
    assert "4096: Hilbert fastest, +5.0 % against row order" in text
    (root / "docs" / "ladder.md").write_text(text)
    assert report.render(root, report.load(root)) == text


def test_check_sees_a_stale_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    root = root_with(tmp_path, document())
    assert len(report.stale(root, report.load(root))) == 2
    monkeypatch.setattr(report.sys, "argv", ["ladder_report.py", "--root", str(root)])
    assert report.main() == 0
    assert report.stale(root, report.load(root)) == []
    assert "<svg" in (root / "docs" / "img" / "nvidia-h200-ladder.svg").read_text()


def test_the_page_of_this_checkout_is_current() -> None:
    assert report.stale(ROOT, report.load(ROOT)) == []


def test_formulas_of_the_page() -> None:
    lines = report.traffic_block().splitlines()
    cells = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in lines[2:]}
    assert cells["`ladder_0_naive`"][2] == "0.25"  # 1 / b
    assert float(cells["`ladder_1_shared_tile`"][2]) == pytest.approx(8, rel=0.02)
    assert float(cells["`ladder_4_wmma`"][2]) == pytest.approx(64, rel=0.02)
    assert float(cells["`ladder_7_warp_specialized`"][2]) == pytest.approx(128, rel=0.04)
