"""gemmx.explain and gemmx.roofline: their arithmetic by hand, their words, tensors of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmx
from gemmx import _C
from gemmx.roofline import ideal_bytes, naive_bytes, roofline, tiled_bytes
from gemmx.select.explain import check_shape, explain_problem
from gemmx.select.profiles import PROFILES, profile
from gemmx.select.selector import choose


def test_roofline_of_a_decode_layer_by_hand() -> None:
    # 1 x 4096 x 4096 bf16 on an H200.
    r = roofline(1, 4096, 4096, device="h200")
    assert r.flops == 33_554_432  # 2 * 4096 * 4096
    assert r.bytes == 33_570_816  # 8192 of A, 33554432 of B, 8192 of D
    assert r.bytes_naive == 67_117_056  # 4096 elements of D x (4096 x 4 + 2)
    assert r.intensity == pytest.approx(0.99951, abs=1e-5)
    assert r.peak_tflops == pytest.approx(989.4, abs=0.1)  # 132 SMs x 4096 x 1.83 GHz
    assert r.ridge == pytest.approx(206.1, abs=0.1)  # 989.4e12 / 4.8e12
    assert r.time_us == pytest.approx(6.994, abs=1e-3)  # 33570816 / 4.8e6 bytes a us
    assert r.bound == "memory"


def test_roofline_of_a_square_by_hand() -> None:
    # 4096^3 bf16, 128 x 128 tiles: 32 x 32 tiles, each operand read 32 times.
    r = roofline(4096, 4096, 4096, device="h200", tile=(128, 128))
    assert r.flops == 137_438_953_472
    assert r.bytes == 3 * 33_554_432
    assert r.bytes_tiled == 65 * 33_554_432
    assert r.intensity == pytest.approx(1365.33, abs=0.01)
    assert r.bound == "compute"
    assert r.time_us == pytest.approx(138.9, abs=0.1)  # 137.44e9 / 989.4e6


def test_roofline_of_the_ladder_by_hand() -> None:
    # 4096^3 fp32: intensity 1/b naive, T/b tiled, apart from the 4096^2 elements of D.
    r = roofline(4096, 4096, 4096, "f32", "h200", tile=(32, 32))
    assert r.bytes_naive == 2 * 4 * 4096**3 + 4 * 4096**2
    assert r.intensity_naive == pytest.approx(1 / 4, rel=2e-4)
    assert r.intensity_tiled == pytest.approx(32 / 4, rel=0.01)
    assert r.peak_tflops == pytest.approx(66.9, abs=0.1)  # 132 SMs x 256 x 1.98 GHz
    assert r.ridge == pytest.approx(13.9, abs=0.1)
    # bf16 in, fp32 out: only D grows.
    wide = roofline(4096, 4096, 4096, ("bf16", "f32"), profile("h200"))
    assert wide.bytes - roofline(4096, 4096, 4096, "bf16", "h200").bytes == 2 * 4096**2
    assert roofline(0, 5, 7).intensity_naive == roofline(0, 5, 7).intensity_tiled == 0.0


def test_byte_counts_are_ordered_and_exact() -> None:
    assert naive_bytes(3, 5, 7, (2, 2, 4)) == 3 * 5 * (7 * 4 + 4)
    assert ideal_bytes(3, 5, 7, (2, 2, 4)) == 3 * 7 * 2 + 7 * 5 * 2 + 3 * 5 * 4
    # 2 x 2 tiles of (2, 3): A read twice, B read twice.
    assert tiled_bytes(3, 5, 7, (2, 2, 4), (2, 3)) == 2 * 42 + 2 * 70 + 60
    assert ideal_bytes(640, 320, 256, (2, 2, 2)) == tiled_bytes(640, 320, 256, (2, 2, 2), (640, 320))
    assert naive_bytes(640, 320, 256, (2, 2, 2)) == tiled_bytes(640, 320, 256, (2, 2, 2), (1, 1))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: roofline(-1, 2, 3), "M is -1, it must be at least 0"),
        (lambda: roofline(1, 2, 3, "int9"), "dtype is 'int9'"),
        (lambda: roofline(1, 2, 3, ("bf16", "int9")), "dtype is 'int9'"),
        (lambda: roofline(1, 2, 3, tile=(0, 8)), "tile is .0, 8., it must have at least 1 row and 1 column"),
        (lambda: roofline(1, 2, 3, device="h900"), "device is 'h900', which is no profile: use one of a100, "),
        (lambda: gemmx.explain.shape(1, 2, 3, device="h900"), "device is 'h900'"),
        (lambda: gemmx.explain.shape(1, 2, 3, major_a="n"), "major_a is 'n', it must be 'k' or 'm'"),
        (lambda: gemmx.explain.shape(8, 8, 8, lda=4), "lda is 4, it must be at least 8"),
        (lambda: gemmx.explain.shape(8, 8, 8, activation="swish"), "swish"),
    ],
)
def test_wrong_arguments_are_one_sentence(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        call()
    assert "\n" not in str(error.value)


def test_explanation_by_hand_decode() -> None:
    swapped = next(s for s in _C.kernels() if s.swap_ab)
    e = gemmx.explain.shape(1, 4096, 4096, kernel=swapped.name)
    tiles = 4096 // swapped.tile[0]
    assert e.kernel == swapped.name and e.why == "asked for by name"
    assert (e.tiles, e.ctas) == (tiles, tiles)
    assert e.tail_waste == pytest.approx(1 - 1 / swapped.tile[1])  # 1 of the tile's rows of D is real
    assert e.roofline.bytes == 33_570_816 and e.roofline.time_us == pytest.approx(6.994, abs=1e-3)
    assert e.fraction_of_roofline == pytest.approx(e.roofline.time_us / e.predicted_us)


def test_explanation_by_hand_square() -> None:
    kernel = next(s for s in _C.kernels() if s.mma == "HGMMA" and tuple(s.tile[:2]) == (128, 256) and not s.swap_ab)
    e = gemmx.explain.shape(4096, 4096, 4096, kernel=kernel.name)
    assert e.tiles == 32 * 16
    assert e.waves == pytest.approx(512 / 132)  # one CTA an SM
    assert e.tail_waste == pytest.approx(1 - 512 / (4 * 132))  # 512 tiles in 4 waves of 132
    assert e.roofline.flops == 137_438_953_472
    assert e.bound == "mma" and e.roofline.bound == "compute"


def test_bias_c_and_a_shared_operand_count_in_the_bytes() -> None:
    plain = gemmx.explain.shape(256, 512, 1024).roofline.bytes
    assert gemmx.explain.shape(256, 512, 1024, bias="bf16").roofline.bytes == plain + 512 * 2
    assert gemmx.explain.shape(256, 512, 1024, c="f32").roofline.bytes == plain + 256 * 512 * 4
    a, b = torch.empty(8, 4, 256, dtype=torch.bfloat16), torch.empty(512, 256, dtype=torch.bfloat16).t()
    a = a.transpose(0, 1).contiguous().transpose(0, 1)  # batch and rows do not collapse: B is shared
    e = gemmx.explain(a, b, device="h200")
    assert e.roofline.bytes == 2 * (8 * 4 * 256 + 512 * 256 + 8 * 4 * 512)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_and_shape_agree(device: str) -> None:
    a = torch.empty(64, 4096, dtype=torch.bfloat16, device=device)
    weight = torch.empty(6144, 4096, dtype=torch.bfloat16, device=device)
    bias = torch.empty(6144, dtype=torch.bfloat16, device=device)
    got = gemmx.explain(a, weight.t(), bias=bias, activation="silu", device="h200")
    assert got == gemmx.explain.shape(64, 6144, 4096, bias="bf16", activation="silu", device="h200")


def test_leading_dimensions_fold_as_in_gemm() -> None:
    a, weight = torch.empty(2, 4, 8, 256, dtype=torch.bfloat16), torch.empty(512, 256, dtype=torch.bfloat16)
    folded = gemmx.explain(a, weight.t(), device="h200")
    assert folded == gemmx.explain(a.view(64, 256), weight.t(), device="h200")


def test_fake_tensors_are_explained() -> None:
    with FakeTensorMode():
        a = torch.empty(64, 4096, dtype=torch.bfloat16)
        b = torch.empty(4096, 4096, dtype=torch.bfloat16)
        assert gemmx.explain(a, b, device="a100").kernel


def test_without_a_device_the_gpu_or_the_h200_profile_is_explained() -> None:
    e = gemmx.explain(torch.empty(8, 64, dtype=torch.bfloat16), torch.empty(64, 8, dtype=torch.bfloat16))
    if not torch.cuda.is_available() or not _C.build_archs():
        assert e.device == "NVIDIA H200"
    else:
        assert e.device == torch.cuda.get_device_name()


def test_a_wrong_call_is_refused_as_by_the_op() -> None:
    with pytest.raises(ValueError, match="b: "):
        gemmx.explain(torch.empty(4, 8), torch.empty(9, 4))


def test_an_empty_d_launches_nothing() -> None:
    e = gemmx.explain.shape(0, 64, 64)
    assert e.kernel == "" and "nothing is launched" in str(e)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_explanation_is_the_selectors_plan_in_words_and_json(name: str) -> None:
    problem, device = check_shape(512, 6144, 4096, bias="bf16", activation="silu").problem, profile(name)
    e = explain_problem(problem, device, only_built=False)
    assert e.plan == choose(problem, device, only_built=False).to_dict()
    text = str(e)
    for words in (e.kernel, device.name, "roofline", "predicted", "rejected", "FLOP/B", "waves"):
        assert words in text or (words == "waves" and not e.tiles)
    assert max(map(len, text.splitlines())) < 240
    assert json.loads(json.dumps(e.to_dict()))["roofline"]["flops"] == 2 * 512 * 6144 * 4096
    assert set(e.rejected) | {c["kernel"] for c in e.candidates} == {s.name for s in _C.kernels()}
    assert all(e.rejected.values())
    assert e.candidates == sorted(e.candidates, key=lambda c: round(c["us"], 3))
    assert e.built == _C.built_for(e.kernel, device.capability)


def test_an_unaligned_problem_says_what_to_do() -> None:
    e = gemmx.explain.shape(2048, 4096, 4097)
    assert "a's rows start at multiples of 2 bytes" in e.slow_path
    assert "slow path" in str(e)
