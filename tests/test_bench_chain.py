"""Chains of decode layers, without a GPU: order and views, checks, rows of the result file, the report."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench_rows import EagerGpu, script
from gemmx import _C
from gemmx.bench import chain, results, suite, timer
from gemmx.select.profiles import PROFILES, profile

# Extents with the proportions of a block: o reads part of qkv, down half of gateup, and M is no multiple of anything.
SMALL = chain.Chain("small", 3, (
    chain.Layer("qkv", 96, 64), chain.Layer("o", 64, 64), chain.Layer("gateup", 224, 64), chain.Layer("down", 64, 112),
))  # fmt: skip


def weights(seed: int = 0) -> chain.Weights:
    torch.manual_seed(seed)
    return chain.Weights(SMALL, device="cpu")


def new_pass(product: chain.Product = torch.mm, m: int = 5, seed: int = 0) -> chain.Pass:
    made = weights(seed)
    return chain.Pass(made, torch.randn(m, SMALL.layers[-1].N, dtype=chain.DTYPE), product)


# ---- the chain -----------------------------------------------------------------------------------------------


def test_the_published_chain_is_llama_3_8b() -> None:
    assert [(layer.N, layer.K) for layer in chain.LLAMA.layers] == [
        (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
    ]  # fmt: skip
    assert (chain.LLAMA.blocks, chain.LLAMA.weight_bytes) == (8, 436_207_616)
    assert chain.LLAMA.flops(16) == 16 * chain.LLAMA.weight_bytes  # 2 FLOPs a weight of 2 bytes


@pytest.mark.parametrize("name", PROFILES)
def test_its_weights_are_cold_without_a_flush(name: str) -> None:
    assert chain.LLAMA.flushes_itself(profile(name).l2_bytes)
    assert not SMALL.flushes_itself(profile(name).l2_bytes)


def test_a_block_fills_one_graph_of_the_timer() -> None:
    """One pass over the blocks a replay, where a block takes 50 us or more."""
    for us in (50.0, 105.0, 5000.0):
        assert timer.launches_for(us, chain.LLAMA.blocks, chain.TIMING["target_us"]) == chain.LLAMA.blocks


def test_a_layer_cannot_read_more_than_was_written() -> None:
    with pytest.raises(ValueError, match="bad: o reads 4104 columns, qkv writes 4096"):
        chain.Chain("bad", 1, (chain.Layer("qkv", 4096, 64), chain.Layer("o", 64, 4104)))
    with pytest.raises(ValueError, match="bad: qkv reads 64 columns, qkv writes 32"):
        chain.Chain("bad", 1, (chain.Layer("qkv", 32, 64),))
    with pytest.raises(ValueError, match="3x3 weights; it takes a multiple of 8"):
        chain.Chain("bad", 1, (chain.Layer("qkv", 3, 3),))


def test_every_layer_of_every_block_has_its_own_weights() -> None:
    made = weights()
    ranges = sorted((b.data_ptr(), b.data_ptr() + b.nbytes) for block in made.blocks for b in block)
    assert len(ranges) == 12
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
    for block, buffer in zip(made.blocks, made.buffers, strict=True):
        assert sum(b.nbytes for b in block) == buffer.nbytes == SMALL.weight_bytes  # what the floor reads
        for layer, b in zip(SMALL.layers, block, strict=True):
            assert b.shape == (layer.K, layer.N) and b.stride() == (1, layer.K)
            assert float(b.float().std()) == pytest.approx(layer.K**-0.5, rel=0.1)


def test_each_layer_reads_a_view_of_the_one_before() -> None:
    calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def product(a: Tensor, b: Tensor) -> Tensor:
        calls.append((a, b, a @ b))
        return calls[-1][-1]

    arm = new_pass(product)
    outputs = arm.run()
    assert len(calls) == len(outputs) == 12
    before = arm.x
    for i, (a, b, d) in enumerate(calls):
        assert b is arm.weights.blocks[i // 4][i % 4]  # block by block, qkv, o, gateup, down
        assert a.data_ptr() == before.data_ptr() and a.stride() == (before.shape[1], 1)  # no copy
        assert a.shape == (5, SMALL.layers[i % 4].K) and outputs[i] is d
        before = d
    assert [a.stride(0) for a, _, _ in calls[:5]] == [64, 96, 64, 224, 64]
    for block in range(SMALL.blocks):
        for a, again in zip([a for a, _, _ in calls[4 * block :]], arm.inputs(block), strict=False):
            assert (again.data_ptr(), again.shape, again.stride()) == (a.data_ptr(), a.shape, a.stride())


def test_a_second_pass_starts_from_x_again() -> None:
    arm = new_pass()
    first = [output.clone() for output in arm.run()]
    assert all(torch.equal(x, y) for x, y in zip(first, arm.run(), strict=True))


def test_values_stay_in_range() -> None:
    assert 0.3 < float(new_pass(m=32).run()[-1].float().std()) < 3


# ---- checks --------------------------------------------------------------------------------------------------


def test_gemmx_and_torch_agree_and_a_wrong_tile_does_not() -> None:
    ours, theirs = new_pass(torch.ops.gemmx.gemm), new_pass()
    assert chain.difference(ours.run(), theirs.run()) <= 1
    assert chain.difference(ours.written(), ours.written()) == 0
    assert all(chain.error_over_bound(ours, block) <= 1 for block in range(SMALL.blocks))
    ours.outputs[1][2][-1, :8] += 1.0
    assert chain.difference(ours.written(), theirs.written()) > 1
    assert chain.error_over_bound(ours, 1) > 1 and chain.error_over_bound(ours, 0) <= 1
    ours.outputs[0][0][0, 0] = torch.nan
    assert chain.difference(ours.written(), theirs.written()) == chain.error_over_bound(ours, 0) == torch.inf


def test_another_chain_is_out_of_tolerance() -> None:
    assert chain.difference(new_pass(seed=0).run(), new_pass(seed=1).run()) > 1


# ---- measurement ---------------------------------------------------------------------------------------------


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Lets the chain be measured on CPU tensors: one kernel, one read variant; `ran` is what the op launches."""
    state = SimpleNamespace(ran=["sm90_gemm"], reads=[], device=SimpleNamespace(l2_bytes=1, sm_count=132))

    def stream_read(data: int, size: int, *_: int) -> None:
        state.reads.append((data, size))

    fake = SimpleNamespace(
        check_gemm=_C.check_gemm,
        select=lambda problem, device: SimpleNamespace(kernel="sm90_gemm"),
        launch_counts=lambda: {"sm90_gemm": 0, "other": 0} | dict.fromkeys(state.ran, 3),
        reset_launch_counts=lambda: None,
        stream_read=stream_read,
        stream_read_variants=lambda: 1,
        cuda_device=lambda ordinal: state.device,
        source_hash=lambda: "0123456789abcdef",
    )
    state.fake = fake
    gpu = EagerGpu()

    def time_arms(arms: dict[str, Any], **options: Any) -> dict[str, timer.Timing]:
        state.options = options
        return timer.time_arms(arms, **{**options, "backend": gpu, "max_rounds": 12})

    monkeypatch.setattr(chain, "_C", fake)
    monkeypatch.setattr(suite, "_C", fake)
    monkeypatch.setattr(chain, "time_arms", time_arms)
    monkeypatch.setattr(suite, "time_arms", time_arms)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return state


def document(rows: list[dict[str, Any]]) -> results.Document:
    header: dict[str, Any] = dict.fromkeys(results.HEADER_KEYS, "x")
    header |= {"suite": "chain", "gpu": "NVIDIA H200", "source_hash": "0123456789abcdef", "date": "2026-01-02T03:04"}
    return {"header": header, "rows": rows}


def test_a_measured_row_is_complete(pretend_gpu: SimpleNamespace) -> None:
    first, second = chain.measure_chain(SMALL, (1, 5), pretend_gpu.device, tensors_on="cpu")
    assert results.validate(document([first, second])) == []
    assert (first["name"], second["name"], second["M"], second["blocks"]) == ("small-m1", "small-m5", 5, 3)
    assert [(layer["name"], layer["kernel"]) for layer in second["layers"]] == [
        (layer.name, "sm90_gemm") for layer in SMALL.layers
    ]
    assert [layer["row_stride"] for layer in second["layers"]] == [64, 96, 64, 224]
    assert second["torch_over_gemmx"] == second["floor_over_gemmx"] == second["floor_over_torch"] == 1.0
    assert 0 < second["error"] <= 1 and 0 <= second["difference"] <= 1
    assert pretend_gpu.options["sets"] == SMALL.blocks
    assert len(set(pretend_gpu.reads)) == SMALL.blocks and {size for _, size in pretend_gpu.reads} == {
        SMALL.weight_bytes
    }


def test_a_row_whose_op_runs_another_kernel_fails(pretend_gpu: SimpleNamespace) -> None:
    pretend_gpu.ran = ["sm90_gemm", "other"]
    row = chain.measure_chain(SMALL, (5,), pretend_gpu.device, tensors_on="cpu")[0]
    assert row["status"] == "failed"
    assert "the plans name sm90_gemm, but the chain launched other, sm90_gemm" in row["reason"]
    assert results.validate(document([row])) == []


@pytest.mark.parametrize(
    ("wrong_from", "sentence"),
    [
        (0, "eager: the chains of gemmx and torch are"),
        (14, "gemmx: the graph's outputs differ from those of the eager"),
    ],
)
def test_a_wrong_result_fails_the_row_before_and_after_the_timing(
    pretend_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, wrong_from: int, sentence: str
) -> None:
    calls = [0]

    def measured_pass(made: chain.Weights, x: Tensor, product: chain.Product) -> chain.Pass:
        def wrong(a: Tensor, b: Tensor) -> Tensor:
            calls[0] += 1
            d = product(a, b)
            return d if calls[0] <= wrong_from else d * 1.25

        return real_pass(made, x, torch.mm if product is torch.mm else wrong)

    real_pass: Callable[..., chain.Pass] = chain.Pass
    monkeypatch.setattr(chain, "Pass", measured_pass)
    monkeypatch.setattr(chain, "error_over_bound", lambda arm, block: 0.5)
    row = chain.measure_chain(SMALL, (5,), pretend_gpu.device, tensors_on="cpu")[0]
    assert row["status"] == "failed" and sentence in row["reason"], row


def measured_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"suite": "chain", "name": "llama3-8b-m16", "M": 16, "blocks": 8, "weight_bytes": 436207616,
                           "l2_bytes": 62914560, "status": "measured", "error": 0.5, "difference": 0.25}  # fmt: skip
    for arm, us in {"torch": 120.0, "gemmx": 110.0, "floor": 102.0}.items():
        row |= {f"{arm}_us": us, f"{arm}_us_p10": us - 1, f"{arm}_us_p90": us + 1, f"{arm}_weight_gbps": 436207.6 / us}
    for key, ratio in {"torch_over_gemmx": 1.091, "floor_over_gemmx": 0.927, "floor_over_torch": 0.85}.items():
        row |= {key: ratio, f"{key}_p10": ratio - 0.01, f"{key}_p90": ratio + 0.01}
    row |= {"tflops": 63.0, "launches": 8, "rounds": 150}
    row["layers"] = [{"name": layer.name, "N": layer.N, "K": layer.K, "kernel": "k", "plan": "k, data_parallel"}
                     for layer in chain.LLAMA.layers]  # fmt: skip
    return row | changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"difference": 1.5}, "difference is 1.5"),
        ({"error": None}, "error is None"),
        ({"floor_us": None}, "floor_us"),
        ({"floor_over_torch": 0.0}, "floor_over_torch is not a positive number"),
        ({"layers": []}, "layers is missing"),
        ({"layers": [{"name": "qkv", "N": 1, "K": 1, "plan": "p"}]}, "layers: kernel is missing"),
        ({"weight_bytes": 0}, "weight_bytes is missing"),
        ({"status": "skipped"}, "status is 'skipped'"),
        ({"status": "failed"}, "needs a reason"),
    ],
)
def test_validate_names_the_fault(changes: dict[str, Any], fault: str) -> None:
    assert results.validate(document([measured_row()])) == []
    faults = results.validate(document([measured_row(**changes)]))
    assert any(fault in text for text in faults), faults


def test_mode_chain_writes_a_valid_file(
    pretend_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = script("run")
    facts = {"gpu": "NVIDIA H200", "uuid": "GPU-0", "driver": "1", "clocks": {"sm_mhz": "1"}}
    measured: list[tuple[int, ...]] = []

    def measure(shape: chain.Chain, m_values: list[int], device: Any) -> list[dict[str, Any]]:
        assert shape is chain.LLAMA and device is pretend_gpu.device
        measured.append(tuple(m_values))
        return chain_rows(SMALL, m_values, device, "cpu")

    chain_rows = chain.measure_chain
    monkeypatch.setattr(chain, "measure_chain", measure)
    monkeypatch.setattr(run, "_C", pretend_gpu.fake)
    monkeypatch.setattr(run, "check_gpu", lambda arch: "")
    monkeypatch.setattr(results, "gpu_facts", lambda device: facts)
    monkeypatch.setattr(results, "cublaslt_version", lambda: "13.1.0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--mode", "chain", "--rows", "m(1|16)$"])
    assert run.main() == 0
    assert not list(tmp_path.rglob("*.json"))  # a part is no result file
    monkeypatch.setattr(run.sys, "argv", ["run.py", "--mode", "chain"])
    assert run.main() == 0
    assert measured == [(1, 16), chain.M_VALUES]
    written = results.read(tmp_path / "results" / "nvidia-h200" / "chain.json")
    assert results.validate(written) == []
    assert written["header"]["command"] == "python benchmarks/run.py --mode chain"
    assert written["header"]["method"] == chain.METHOD
    assert "small-m16" in capsys.readouterr().out
    pretend_gpu.ran = ["other"]
    assert run.main() == 1
    assert "failed small-m64: RuntimeError" in capsys.readouterr().out


# ---- report --------------------------------------------------------------------------------------------------

PAGE = """# Title
<!-- begin:results nvidia-h200 -->
<!-- end:results -->
<!-- begin:chain nvidia-h200 -->
<!-- end:chain -->
<!-- begin:chain nvidia-b200 -->
<!-- end:chain -->
<!-- begin:bandwidth nvidia-h200 -->
<!-- end:bandwidth -->
"""


def decode_row(m: int, n: int, k: int, **changes: Any) -> dict[str, Any]:
    us = n * k / 2e6
    times = {"gemmx_us": us, "torch_us": 1.25 * us, "floor_us": 0.8 * us}
    return {"name": f"{m}x{n}x{k}", "M": m, "N": n, "K": k, "status": "measured", **times, **changes}


def test_bandwidth_is_weight_bytes_over_time_in_the_order_of_their_size() -> None:
    report = script("report")
    rows = [decode_row(16, 4096, 4096), decode_row(16, 1024, 1024), decode_row(16, 512, 1024, floor_us=None),
            decode_row(2, 512, 512), decode_row(8, 512, 512, status="skipped")]  # fmt: skip
    points = report.bandwidth_points({"decode": document(rows)})
    assert list(points) == [16]
    assert points[16]["gemmx"][0] == points[16]["floor"][0] == [2.097152, 33.554432]
    assert points[16]["gemmx"][1] == pytest.approx([4000.0, 4000.0])
    assert points[16]["torch"][1] == pytest.approx([3200.0, 3200.0])
    assert points[16]["floor"][1] == pytest.approx([5000.0, 5000.0])
    assert report.bandwidth_points({}) == {}


def test_bandwidth_at_m_64_comes_from_suite_mid_once_it_has_the_floor() -> None:
    report = script("report")
    decode = document([decode_row(16, 4096, 4096)])
    before = document([decode_row(64, 4096, 4096, floor_us=None), decode_row(128, 4096, 4096, floor_us=None)])
    assert list(report.bandwidth_points({"decode": decode, "mid": before})) == [16]
    assert list(report.floor_documents({"decode": decode, "mid": before})) == ["decode"]
    mid = document([decode_row(64, 4096, 4096), decode_row(128, 4096, 4096, floor_us=None)])
    assert list(report.bandwidth_points({"mid": mid, "decode": decode})) == [16, 64]
    assert list(report.bandwidth_points({"mid": mid})) == [64]
    assert report.bandwidth_points({"dense": mid}) == {}


def test_report_shows_the_chain_and_the_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, folder = script("report"), tmp_path / "benchmarks" / "results" / "nvidia-h200"
    failed = {"suite": "chain", "name": "llama3-8b-m64", "M": 64, "status": "failed", "reason": "no | way"}
    results.write(folder / "chain.json", document([measured_row(), failed]))
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    text = report.render(page, report.load_results(folder.parent), tmp_path)
    assert ("| llama3-8b-m16 | 110.00 | 120.00 | 102.00 | 1.091 (1.081 to 1.101) | 92.7 % | 85.0 % | 3966 | 0.50 | "
            "0.25 |") in text  # fmt: skip
    assert "failed: no \\| way |" in text and "library 0123456789ab" in text
    assert text.count("Not measured.") == 2  # the other GPU's chain, and decode
    assert "| suite |" not in text  # the chain is none
    short = report.chain_table(document([measured_row(), failed]))
    assert "| llama3-8b-m16 | 110.00 | 120.00 | 1.09 | 93 % |" in short
    assert "| llama3-8b-m64 | - | - | - | failed |" in short

    pytest.importorskip("matplotlib")
    row = decode_row(16, 4096, 4096)
    monkeypatch.setattr(report, "results_block", lambda *_: "")
    monkeypatch.setattr(report, "plot_points", lambda suites: {})
    results.write(folder / "decode.json", document([row]))
    mid = document([decode_row(64, 1024, 1024), decode_row(128, 1024, 1024, floor_us=None)])
    mid["header"] |= {"source_hash": "fedcba9876543210"}
    results.write(folder / "mid.json", mid)
    monkeypatch.setattr(report.sys, "argv", ["report.py", "--root", str(tmp_path)])
    assert report.main() == 0
    assert "| 16 | 1, 34 to 34 MB | 80 % | 64 % |\n| 64 | 1, 2 to 2 MB | 80 % | 64 % |" in page.read_text()
    assert "library 0123456789ab, fedcba987654." in page.read_text()
    assert "](docs/img/nvidia-h200-bandwidth.svg)" in page.read_text()
    found = report.load_results(folder.parent)
    assert report.stale(tmp_path, found) == []
    results.write(folder / "decode.json", document([row | {"gemmx_us": 20.0}]))
    assert len(report.stale(tmp_path, report.load_results(folder.parent))) == 2  # the page and the plot
