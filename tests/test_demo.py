"""The demo: its CPU path from end to end, and its judgement of errors."""

from __future__ import annotations

import time

import pytest
import torch

from gemmx import demo


def test_the_cpu_demo_is_right_and_quick(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    start = time.process_time()
    assert demo.demo_cpu() == 0
    assert time.process_time() - start < 60  # 30 s of wall time on two cores
    out = capsys.readouterr().out
    for words in ("CPU reference", "qkv", "gate-up", "down", "NVIDIA H200", "roofline", ": right."):
        assert words in out
    head = next(line for line in out.splitlines() if "error/bound" in line)
    assert head.split() == ["layer", "M", "N", "K", "error/bound"]


def test_products_are_those_of_llama() -> None:
    full = demo.products()
    assert len(full) == 16 and demo.Product("gate-up", 2048, 28672, 4096) in full
    assert demo.Product("down", 1, 256, 896) in demo.products(16)


@pytest.mark.parametrize("broken", ["wrong", "nan", "none"])
def test_an_error_beyond_the_bound_is_seen(broken: str) -> None:
    torch.manual_seed(0)
    x = demo.make_inputs(demo.Product("qkv", 300, 64, 128), "cpu")
    d = demo.run(x).clone()
    if broken == "wrong":
        d[299, 63] += 0.5
    elif broken == "nan":
        d[270, 1] = torch.nan
    assert (demo.error_over_bound(d, x) > 1) == (broken != "none")


def test_the_exit_code_follows_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.verdict([0.2, 0.9]) == 0
    assert demo.verdict([0.2, 1.1]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_wrong_result_ends_the_demo_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = demo.run
    monkeypatch.setattr(demo, "run", lambda x: right(x) + 1)
    assert demo.demo_cpu() == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_gpu_demo_checks_and_times(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "TOKENS", (16,))
    monkeypatch.setattr(demo, "TIME_BUDGET_US", 5_000.0)
    with torch.inference_mode():
        assert demo.demo_gpu() == 0
    out = capsys.readouterr().out
    assert "torch/gemmx" in out and "gate-up" in out and ": right." in out
