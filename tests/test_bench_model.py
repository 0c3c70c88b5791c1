"""A model's steps without a GPU: GEMMs, floors, the upper limit, rows, tables; the example on a tiny model."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from bench_rows import ROOT, script
from gemmx.bench import model, results, tables
from gemmx.bench.model import Gemm
from gemmx.bench.timer import Timing

DECODE = next(w for w in model.WORKLOADS if w.name == "decode-b16")


# ---- GEMMs, floor, upper limit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_sm90_tst_64x8_64x16_1x4_h_bz_TNT",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, ...>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1",
        "void gemvx::kernel<int, int, __nv_bfloat16, ...>",
        "triton_tem_fused_mm_0",
        "gemmx::sm90_gemm_bf16_bf16_f32_any_kk_128x128x64_2x1_pp_s6",
    ],
)
def test_gemm_kernels_are_known_by_name(name: str) -> None:
    assert model.is_gemm(name)


@pytest.mark.parametrize(
    "name",
    [
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80",
        "triton_poi_fused_mul_silu_3",
        "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
        "void at::native::index_elementwise_kernel<128, 4, ...>",
    ],
)
def test_other_kernels_are_not_gemms(name: str) -> None:
    assert not model.is_gemm(name)


def test_a_trace_gives_launches_and_time_a_kernel_and_the_gemms_share() -> None:
    kernels = [("nvjet_a", 30.0), ("triton_poi_fused_0", 2.0), ("nvjet_a", 31.0), ("gemv_b", 5.5)]
    events: list[dict[str, Any]] = [{"cat": "kernel", "name": name, "dur": us} for name, us in kernels]
    trace = {"traceEvents": [*events, {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 9.0}, {"ph": "M"}]}
    times = model.kernel_times(trace)
    assert times == {"nvjet_a": (2, 61.0), "triton_poi_fused_0": (1, 2.0), "gemv_b": (1, 5.5)}
    share = model.gemm_share(times)
    assert (share["gemm_us"], share["other_us"]) == (66.5, 2.0)
    assert share["gemm_kernels"] == [
        {"name": "nvjet_a", "launches": 2, "us": 61.0},
        {"name": "gemv_b", "launches": 1, "us": 5.5},
    ]


def test_a_floor_is_the_weights_or_the_flops() -> None:
    small, large = Gemm(1, 4096, 4096), Gemm(8192, 8192, 8192)
    reads = {small.largest_bytes: 10.0, large.largest_bytes: 40.0}
    assert small.largest_bytes == 2 * 4096 * 4096
    assert model.floor_us([small], reads.__getitem__, 700.0) == 10.0
    assert model.floor_us([large], reads.__getitem__, 700.0) == pytest.approx(2 * 8192**3 / 700e6)
    assert model.floor_us([small, small, large], reads.__getitem__, math.inf) == 60.0


def test_the_upper_limit_leaves_all_else_as_it_is() -> None:
    assert model.upper_limit(100.0, 80.0, 60.0) == pytest.approx(100 / 80)
    assert model.upper_limit(100.0, 80.0, 90.0) == 1.0  # a floor above what was reached wins nothing
    assert model.knows_limit({"gemm_us": 80.0, "gemm_floor_us": 60.0})
    assert not model.knows_limit({"gemm_us": 80.0, "gemm_floor_us": 90.0})


def test_a_limit_that_is_not_known_is_not_shown() -> None:
    row = {"upper_limit": 1.0, "gemm_us": 80.0, "gemm_floor_us": 90.0}
    assert tables.upper_limit(row, 2) == "-"
    assert tables.upper_limit(row | {"upper_limit": 1.25, "gemm_floor_us": 60.0}, 2) == "1.25"


def test_the_linear_layers_of_a_step_and_their_gradients() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4, bias=False))
    x = torch.zeros(2, 3, 8)
    forward = [Gemm(6, 16, 8), Gemm(6, 4, 16)]
    assert model.linear_gemms(net, lambda: net(x), train=False) == forward
    backward = model.linear_gemms(net, lambda: net(x), train=True)
    assert backward == [Gemm(6, 16, 8), Gemm(6, 8, 16), Gemm(16, 8, 6), Gemm(6, 4, 16), Gemm(6, 16, 4), Gemm(4, 16, 6)]
    assert not any(module._forward_hooks for module in net.modules())


def test_relative_error_sees_every_element() -> None:
    x, y = [torch.ones(3), torch.ones(1)], [torch.ones(3), torch.zeros(1)]
    assert model.relative_error(x, x) == 0
    assert model.relative_error(x, y) == pytest.approx(3**-0.5)
    assert model.relative_error([torch.tensor([math.nan])], [torch.ones(1)]) == math.inf


# ---- rows ----------------------------------------------------------------------------------------------------------


def timings(**us: float) -> dict[str, Timing]:
    times = {"eager": 14.0, "compile": 12.0, "gemmx": 11.0, "gemmx_compile": 10.0} | us
    return {arm: Timing.from_samples([0.9 * x, x, 1.1 * x], 1) for arm, x in times.items()}


def facts() -> dict[str, Any]:
    gemms = {"gemm_us": 8.0, "other_us": 4.0, "gemm_floor_us": 6.0, "upper_limit": 1.25}
    kernels = [{"name": "nvjet", "launches": 1, "us": 8.0}]
    return {"layers": 32, "compile_layers": 4, "captured": True, "error": 0.9, "gemm_kernels": kernels, **gemms}


def document(rows: list[dict[str, Any]]) -> results.Document:
    header: dict[str, Any] = dict.fromkeys(results.HEADER_KEYS, "x")
    header |= {"suite": "llama", "gpu": "NVIDIA H200", "source_hash": "0123456789abcdef", "date": "2026-01-02T03:04"}
    return {"header": header, "rows": rows}


def test_a_row_compares_the_better_arm_of_each_side() -> None:
    row = model.row_of(DECODE, timings(), facts())
    assert results.validate(document([row])) == []
    assert (row["torch_arm"], row["best_arm"], row["torch_over_gemmx"]) == ("compile", "gemmx_compile", 1.2)
    assert (row["eager_over_gemmx"], row["compile_over_gemmx"], row["goal"]) == (1.4, 1.2, 1.07)
    assert row["gemmx_compile_tokens_per_s"] == pytest.approx(16 / 10e-6)
    row = model.row_of(DECODE, timings(eager=11.5, gemmx=9.0), facts())
    assert (row["torch_arm"], row["best_arm"]) == ("eager", "gemmx")


def test_an_arm_that_fails_fails_the_row() -> None:
    broken = timings() | {"compile": Timing.failed(RuntimeError("no graph"))}
    with pytest.raises(RuntimeError, match="decode-b16, compile: RuntimeError: no graph"):
        model.row_of(DECODE, broken, facts())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"error": 1.01}, "error is 1.01"),
        ({"gemmx_compile_us": None}, "gemmx_compile_us"),
        ({"torch_arm": "eager"}, "torch_arm is eager"),
        ({"best_arm": "compile"}, "best_arm is compile"),
        ({"upper_limit": None}, "upper_limit is not a positive number"),
        ({"gemm_kernels": []}, "gemm_kernels is missing"),
        ({"captured": False}, "not_captured does not say why"),
        ({"status": "failed"}, "needs a reason"),
        ({"status": "skipped"}, "status is 'skipped'"),
    ],
)
def test_validate_names_the_fault(changes: dict[str, Any], fault: str) -> None:
    faults = results.validate(document([model.row_of(DECODE, timings(), facts()) | changes]))
    assert any(fault in text for text in faults), faults


def test_every_step_has_a_goal() -> None:
    assert set(model.GOALS) == {workload.name for workload in model.WORKLOADS}


# ---- report --------------------------------------------------------------------------------------------------------

PAGE = (
    "<!-- begin:llama nvidia-h200 -->\n<!-- end:llama -->\n<!-- begin:results nvidia-h200 -->\n<!-- end:results -->\n"
)


def test_the_report_shows_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = script("report")
    slow = model.row_of(replace(DECODE, name="decode-b64"), timings(compile=10.2), facts())
    failed = {"suite": "llama", "name": "train-1b", "status": "failed", "reason": "no | way"}
    rows = [model.row_of(DECODE, timings(), facts()), slow, failed]
    folder = tmp_path / "benchmarks" / "results"
    results.write(folder / "nvidia-h200" / "llama.json", document(rows))
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    text = report.render(page, report.load_results(folder), tmp_path)
    assert "| decode-b16 | 0.014 | 0.012 | 0.011 | 0.010 | 1600000 | 1.200 (1.200 to 1.200) | 1.07 | 1.250 |" in text
    assert "| 1.04 missed |" in text and "failed: no \\| way |" in text
    assert "| decode-b16 | 1142857 | 1333333 | 1600000 | 1.20 | 1.25 |" in text
    assert "| suite |" not in text  # the model is none

    pytest.importorskip("matplotlib")
    monkeypatch.setattr(report.sys, "argv", ["report.py", "--root", str(tmp_path)])
    assert report.main() == 0
    assert (tmp_path / "docs" / "img" / "nvidia-h200-llama.svg").exists()
    assert report.stale(tmp_path, report.load_results(folder)) == []
    results.write(folder / "nvidia-h200" / "llama.json", document([rows[0]]))
    assert len(report.stale(tmp_path, report.load_results(folder))) == 2  # the page and the plot


# ---- the example ---------------------------------------------------------------------------------------------------


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_llama", ROOT / "examples" / "llama.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cache_returns_what_was_there_and_what_is_new() -> None:
    llama = example()
    before = torch.randn(2, 3, 4, 5)
    cache = llama.LayerCache(before.clone(), before.clone(), torch.tensor([3]))
    new = torch.randn(2, 3, 1, 5)
    keys, values = cache.update(new, 2 * new, 7, {"cache_position": None})
    assert torch.equal(keys[:, :, :3], before[:, :, :3]) and torch.equal(keys[:, :, 3:], new)
    assert torch.equal(values[:, :, 3:], 2 * new) and cache.get_seq_length() == 3
    assert cache.to(torch.float64).keys.dtype == torch.float64


def test_gradients_of_a_fused_weight_are_matched_in_order() -> None:
    llama = example()
    gate, up, q = torch.full((2, 3), 1.0), torch.full((2, 3), 2.0), torch.ones(1)
    theirs = {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "q.weight": q}
    ours = {"mlp.gate_up_weight": torch.cat([gate, up]), "q.weight": q}
    assert model.relative_error(*zip(*llama.matched(ours, theirs), strict=True)) == 0
    assert len(llama.matched(theirs, theirs)) == 3
    with pytest.raises(ValueError, match="the converted model has no gradient for it"):
        llama.matched({"q.weight": q}, theirs)
    with pytest.raises(ValueError, match=r"the torch model has no gradient of k\.weight"):
        llama.matched({"k.weight": q, **ours}, theirs)


def test_the_steps_asked_for_are_made_small() -> None:
    llama = example()
    found = list(llama.workloads(llama.parse_arguments(["--tiny", "--steps", "prefill|b64"])))
    assert [(w.name, w.batch, w.tokens, w.context) for w in found] == [
        ("prefill-2048", 1, 16, 16),
        ("decode-b64", 64, 1, 16),
    ]
    assert list(llama.workloads(llama.parse_arguments([]))) == list(model.WORKLOADS)


@pytest.fixture
def tiny_example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example with torch.compile's tracing but without its code generation, timed by the host's clock."""
    pytest.importorskip("transformers")
    llama, real = example(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: real(f, backend="eager", **options))
    monkeypatch.setattr(llama, "TIMES", {"sets": 1, "warmup_us": 1.0, "min_rounds": 2, "max_rounds": 2})
    return llama


def test_the_example_runs_on_a_tiny_model(tiny_example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["--steps", "prefill|b16|train", "--layers", "4", "--compile-layers", "2"]
    options = tiny_example.parse_arguments(["--tiny", "--device", "cpu", *steps])
    torch.manual_seed(0)
    graphs: Any = torch._dynamo.utils.counters
    graphs.clear()
    rows = tiny_example.run(options)
    names = ["prefill-2048", "decode-b16", "train-1b"]
    assert [(row["name"], row["status"]) for row in rows] == [(name, "measured") for name in names], rows
    assert all(0 < row["error"] <= 1.5 and set(row["errors"]) == set(model.ARMS) for row in rows)
    # The embedding, and layers and head of torch's model and of gemmx's: groups of layers share one compilation.
    assert graphs["stats"]["unique_graphs"] == 5 * len(rows)
    tiny_example.print_rows(rows)
    assert "decode-b16" in capsys.readouterr().out


def test_a_model_converted_in_part_is_refused(tiny_example: ModuleType) -> None:
    net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="has left a layer"):
        tiny_example.convert(net)


def test_a_step_that_raises_is_recorded(tiny_example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(workload: Any, *_: Any) -> dict[str, Any]:
        raise RuntimeError(f"{workload.name}!")

    monkeypatch.setattr(tiny_example, "measure", measure)
    monkeypatch.setattr(tiny_example, "models_for", lambda *_: {})
    options = tiny_example.parse_arguments(["--tiny", "--device", "cpu", "--steps", "decode"])
    rows = tiny_example.run(options)
    assert [row["reason"] for row in rows] == [f"RuntimeError: decode-b{b}!" for b in (1, 16, 64)]
    assert results.validate(document(rows)) == []
