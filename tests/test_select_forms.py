"""Selection of gated problems and of those that keep Z: the model's bytes, tables, explain, strict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gemmx
from gemmx import _C
from gemmx._strict import refuse_slow_path
from gemmx.select import tables
from gemmx.select.explain import check_shape
from gemmx.select.model import machine_of, second_step_us, shape_of
from gemmx.select.profiles import profile
from gemmx.select.selector import choose, decide, every_plan, two_steps_reason

FORMS = [(True, False), (False, True), (True, True)]
H200, A100, B200 = profile("h200"), profile("a100"), profile("b200")
PROFILES = {"h200": H200, "a100": A100, "rtx4090": profile("rtx4090"), "b200": B200}


def problem_of(m: int = 512, n: int = 1024, k: int = 4096, **options: Any) -> _C.Problem:
    return check_shape(m, n, k, **options).problem


def test_bytes_by_hand() -> None:
    """The product has 2 N columns; D has N, and Z all of them."""
    gated, aux, both = (shape_of(problem_of(4, 8, 16, gated=g, aux=a, bias="bf16")) for g, a in FORMS)
    assert (gated.n, aux.n, both.n) == (16, 8, 16)
    assert gated.flops == 2 * 4 * 16 * 16
    assert gated.read_bytes == 2 * (4 * 16 + 16 * 16 + 16)
    assert [x.write_bytes for x in (gated, aux, both)] == [2 * 4 * 8, 2 * 2 * 4 * 8, 2 * 4 * (8 + 16)]
    roof = gemmx.explain.shape(4, 8, 16, gated=True, device="h200").roofline
    assert (roof.flops, roof.bytes) == (2 * 4 * 16 * 16, 2 * (4 * 16 + 16 * 16 + 4 * 8))


@pytest.mark.parametrize(("gated", "aux"), FORMS)
@pytest.mark.parametrize("m", [1, 16, 100, 4096])
@pytest.mark.parametrize(("model", "family"), [("h200", "sm90"), ("a100", "sm80"), ("rtx4090", "sm80"), ("b200", "")])
def test_a_kernel_of_the_form_is_chosen_where_there_is_one(
    gated: bool, aux: bool, m: int, model: str, family: str
) -> None:
    device = PROFILES[model]
    problem = problem_of(m, gated=gated, aux=aux, activation="gelu")
    of_form = [k for k in _C.kernels() if (k.gated, k.aux) == (gated, aux) and not _C.supports(k.name, problem, device)]
    assert {k.family for k in of_form} == ({family} if family else set())
    assert (two_steps_reason(problem, device, only_built=False) == "") == bool(of_form)
    explanation = gemmx.explain.shape(m, 1024, 4096, gated=gated, aux=aux, activation="gelu", device=model)
    assert explanation.form == "gemm" + "_gated" * gated + "_aux" * aux
    assert (explanation.kernel in {k.name for k in of_form}) == bool(of_form)
    assert (explanation.second_step_us == 0) == bool(of_form)
    if of_form:
        assert "in one launch" in str(explanation)
        assert {c.kernel.name for c in every_plan(problem, device)} <= {k.name for k in of_form}
        assert explanation.kernel == choose(problem, device, only_built=False).kernel


@pytest.mark.parametrize(("gated", "aux"), FORMS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_mma_sync_has_every_form(gated: bool, aux: bool, dtype: str) -> None:
    """Of every size, D and C; any alignment where a row for it is there."""
    for m, n, k in ((1, 8, 8), (100, 1000, 4096), (4096, 14336, 512), (33, 264, 0)):
        for options in ({}, {"out_dtype": "f32"}, {"bias": "f32"}, {} if gated else {"c": "f32", "beta": 0.5}):
            problem = problem_of(m, n, k, dtype=dtype, gated=gated, aux=aux, **options)
            assert two_steps_reason(problem, A100, only_built=False) == ""
    unaligned = problem_of(100, 1001, 4097, gated=gated, aux=aux)
    assert choose(unaligned, A100, only_built=False).kernel.endswith("_align2")


def test_up_begins_on_sixteen_bytes_or_is_loaded_in_smaller_pieces() -> None:
    aligned = "sm80_gemm_gated_bf16_bf16_f32_any_kn_128x128x32_w64x64_s4"
    for n, reason in (
        (136, ""),
        (132, "needs up aligned to 16 bytes in every row of b, where it begins at column N, got N=132"),
    ):
        problem = problem_of(64, n, 64, gated=True, major_b="n")
        assert _C.supports(aligned, problem, A100) == reason
        assert choose(problem, A100, only_built=False).kernel.endswith("_align2") == bool(reason)


@pytest.mark.parametrize("device", [H200, B200], ids=lambda device: device.name)
def test_forms_of_mma_sync_are_called_by_name_where_it_is_not_the_devices_own_instruction(device: _C.Device) -> None:
    problem = problem_of(gated=True)
    names = [k.name for k in _C.kernels() if k.family == "sm80" and k.gated and not k.aux and k.dtype_a == "bf16"]
    assert names
    for name in names:
        reason = _C.supports(name, problem, device)
        assert (
            ", where mma.sync is not the tensor cores' own instruction, unless it is asked for by name" in reason
            or (reason.startswith("takes B n-major"))
        )
    named = problem_of(gated=True, kernel=names[0])
    assert two_steps_reason(named, device, only_built=False) == _C.supports(names[0], named, device) == ""
    assert choose(named, device, only_built=False).kernel == names[0]


@pytest.mark.parametrize(("gated", "aux"), FORMS)
def test_two_steps_are_explained(gated: bool, aux: bool) -> None:
    """Where no kernel has the form: the plan is the plain product's, and the second launch is in the prediction."""
    call: dict[str, Any] = {"gated": gated, "aux": aux, "bias": "bf16", "activation": "silu", "major_a": "m"}
    problem = problem_of(**call)
    explanation = gemmx.explain.shape(512, 1024, 4096, device="a100", **call)
    inner = decide(_C.plain_problem(problem), A100, only_built=False).chosen
    assert explanation.plan == inner.plan.to_dict()
    assert explanation.second_step_us == second_step_us(problem, machine_of(A100)) > 0
    assert explanation.predicted_us == inner.estimate.us + explanation.second_step_us
    assert explanation.slow_path.startswith(f"no kernel computes {explanation.form} of ")
    assert explanation.slow_path.endswith(", takes A k-major, got m.")
    assert f"{explanation.form} in two steps" in str(explanation)
    assert gemmx.explain.shape(512, 1024, 4096, bias="bf16", device="a100").form == "gemm"


def test_a_named_plain_kernel_takes_two_steps() -> None:
    name = next(k.name for k in _C.kernels() if k.family == "sm80" and k.dtype_a == "bf16" and k.major_b == "k")
    explanation = gemmx.explain.shape(64, 64, 64, gated=True, kernel=name, device="a100")
    assert explanation.kernel == name
    assert explanation.slow_path == f"{name} was asked for, which does not compute gemm_gated."


def test_explain_takes_tensors_of_the_forms() -> None:
    a, b = torch.empty(2, 8, 64, device="meta", dtype=torch.bfloat16), torch.empty(64, 48, device="meta").bfloat16()
    assert gemmx.explain(a, b, gated=True, device="h200").problem.startswith("M=16 N=24 K=64")
    assert gemmx.explain(a, b, aux=True, device="h200").form == "gemm_aux"


def test_gate_gradients_are_selected_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"major_b": "n", "gate_gradient": True}
    problem = problem_of(4096, 8192, 2048, **options)
    shape = shape_of(problem)
    assert (shape.n, shape.flops) == (8192, 2 * 4096 * 8192 * 2048)
    assert shape.read_bytes == 2 * (4096 * 2048 + 2048 * 8192 + 4096 * 2 * 8192)
    assert shape.write_bytes == 2 * 4096 * 2 * 8192
    explanation = gemmx.explain.shape(4096, 8192, 2048, device="h200", **options)
    assert (explanation.form, explanation.second_step_us) == ("_gated_dgrad", 0.0)
    assert next(k for k in _C.kernels() if k.name == explanation.kernel).gate_gradient
    assert "_gated_dgrad in one launch" in str(explanation)
    assert {k.kernel.name for k in every_plan(problem, H200)} <= {k.name for k in _C.kernels() if k.gate_gradient}
    two = gemmx.explain.shape(4096, 8190, 2048, device="h200", **options)
    assert two.second_step_us > 0
    assert "reads Z and writes its gradient by TMA" in two.slow_path
    monkeypatch.setattr(_C, "cuda_device", lambda ordinal: H200)
    with pytest.raises(RuntimeError, match=r"^strict: no kernel .*computes _gated_dgrad of .*, so that it takes two"):
        refuse_slow_path(check_shape(4096, 8190, 2048, **options), torch.device("cuda", 0))
    grad, down, z = (torch.empty(x, device="meta", dtype=torch.bfloat16) for x in ((16, 64), (64, 24), (16, 48)))
    assert gemmx.explain(grad, down, z, gate_gradient=True, device="h200").problem.startswith("M=16 N=24 K=64")


@pytest.mark.usefixtures("user_tables")
def test_tables_tell_gate_gradients_apart(tmp_path: Path) -> None:
    """A row of one serves no product with the same sizes, nor the other way round."""
    problem, plain = (problem_of(64, activation="silu", gate_gradient=g, major_b="n") for g in (True, False))
    kernel = next(k.name for k in _C.kernels() if k.gate_gradient and k.dtype_a == "bf16")
    row = tables.row_dict(problem, _C.Plan(kernel), 7.0)
    assert (row["gate_gradient"], row["epilogue"]) == (True, "silu")
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"format": tables.FORMAT, "gpu": H200.name, "rows": [row]}))
    tables.load_table(path)
    assert len(tables.tables().find(problem, H200)) == 1
    assert not tables.tables().find(plain, H200)
    assert choose(problem, H200, only_built=False).kernel == kernel


def test_strict_refuses_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device", lambda ordinal: A100)
    checked = check_shape(512, 1024, 4096, gated=True, major_a="m")
    with pytest.raises(RuntimeError, match=r"^strict: no kernel computes gemm_gated of .*, so that it takes two"):
        refuse_slow_path(checked, torch.device("cuda", 0))
    refuse_slow_path(check_shape(512, 1024, 4096, gated=True), torch.device("cuda", 0))


# ---- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("user_tables")
def test_a_row_serves_its_form_alone(tmp_path: Path) -> None:
    problems = {f: problem_of(64, gated=f[0], aux=f[1], activation="silu") for f in [(False, False), *FORMS]}
    served = {}
    for form, problem in problems.items():
        plans = every_plan(problem, H200)
        if plans:
            served[form] = tables.row_dict(problem, plans[-1].plan, 1.0)
    assert len({json.dumps(row | {"plan": None}) for row in served.values()}) == len(served) > 1
    assert not {"gated", "aux"} & served[False, False].keys()
    path = tmp_path / "table.json"
    for form, row in served.items():
        tables.reset_tables()
        path.write_text(json.dumps({"format": 1, "gpu": H200.name, "rows": [row]}))
        assert gemmx.load_table(path) == 1
        for other, problem in problems.items():
            assert len(tables.tables().find(problem, H200)) == (other == form)
        assert choose(problems[form], H200).to_dict() == row["plan"]
    row = served[False, False] | {"gated": 1}
    path.write_text(json.dumps({"format": 1, "gpu": H200.name, "rows": [row]}))
    with pytest.raises(ValueError, match=r"row 0, has gated, aux, gate_gradient that are not true or false\.$"):
        gemmx.load_table(path)


@pytest.mark.usefixtures("user_tables")
def test_a_row_of_silu_serves_other_gates(tmp_path: Path) -> None:
    plain = problem_of(64, gated=True)
    plans = every_plan(plain, H200)
    if not plans:
        pytest.skip("no kernel of the form")
    row = tables.row_dict(plain, plans[0].plan, 1.0)
    assert row["epilogue"] == "silu"
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"format": 1, "gpu": H200.name, "rows": [row]}))
    gemmx.load_table(path)
    assert len(tables.tables().find(problem_of(64, gated=True, activation="gelu", bias="bf16"), H200)) == 1
