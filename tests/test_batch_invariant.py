"""numerics="batch_invariant" without a GPU: which kernels and plans serve it, for every GPU model; the CPU reference.

tests/gpu/test_batch_invariant.py compares the bits of the kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import gemmx
from fuzz_cases import RandomDraw, draw_case, refusal_of_numerics
from gemmx import _C
from gemmx.select import tables
from gemmx.select.explain import check_shape, explain
from gemmx.select.model import kernel_infos, machine_of, predict, shape_of
from gemmx.select.profiles import PROFILES, profile
from gemmx.select.selector import WORKSPACE_LIMIT, choose, decide, every_plan
from problems import ACTIVATIONS, bits
from test_select_tables import table_text

SPECS = {spec.name: spec for spec in _C.kernels()}
INVARIANT: dict[str, Any] = {"numerics": "batch_invariant"}
MODELS = sorted(PROFILES)
OWN_FAMILIES = {"simt", "sm80", "sm90"}


def problem(m: int, n: int, k: int, dtype: str = "bf16", **options: Any) -> _C.Problem:
    return check_shape(m, n, k, dtype, **INVARIANT | options).problem


# Whose K is cut, in two.
CUT = (4096, 14336)


def faults(plan: _C.Plan, p: _C.Problem, device: _C.Device) -> list[str]:
    """Why the plan would break the promise."""
    spec = SPECS[plan.kernel]
    found = [_C.check_plan(plan, p, device)]
    if plan.schedule == "stream_k" or plan.splits != _C.splits_for(p.n, p.k, 2):
        found.append(f"cuts K by {plan.schedule} into {plan.splits}")
    if p.k and spec.numerics != _C.batch_invariant_class(device.capability):
        found.append(f"is of class {spec.numerics}")
    if spec.teaching or spec.family not in OWN_FAMILIES:
        found.append(f"is of family {spec.family}")
    return [fault for fault in found if fault]


# ---- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_one_class_serves_an_architecture_and_its_members_are_our_own(model: str) -> None:
    device = profile(model)
    serving = _C.batch_invariant_class(device.capability)
    assert serving == ("wgmma" if device.capability == 90 else "mma_sync")
    members = set()
    for spec in SPECS.values():
        for dtype in ("bf16", "f16"):
            majors = {f"major_{x}": getattr(spec, f"major_{x}") for x in "ab"}
            p = problem(256, 256, 256, dtype, **{x: major for x, major in majors.items() if major != "none"})
            if not _C.supports(spec.name, p, device):
                members.add(spec.name)
    expected = {
        spec.name
        for spec in SPECS.values()
        if spec.family == ("sm90" if device.capability == 90 else "sm80")
        and spec.smem_bytes <= device.smem_per_block
        and not spec.has_form  # which take no plain problem
    }
    assert members == expected
    assert {SPECS[name].numerics for name in members} == {serving}


def test_kernels_outside_are_refused_by_name_with_the_reason() -> None:
    device = profile("h200")
    for kernel, reason in {
        "sm80_gemm_bf16_bf16_f32_any_kk_64x64x64_w32x32_s4": "is of numerics class mma_sync, and batch_invariant on",
        "simt_gemm_bf16_bf16_f32_any_64x64x16": "is of numerics class simt, and batch_invariant on",
        "cublaslt_gemm_bf16_bf16_f32_any": "is of numerics class library, and batch_invariant on",
        "cutlass_sm90_gemm_bf16_bf16_f32_bf16_kk_128x128x64_2x1_pingpong_s6": "is of numerics class library, and",
        "ladder_7_warp_specialized": "is a teaching kernel, which does not serve batch_invariant",
    }.items():
        with pytest.raises(RuntimeError, match=f"^kernel: {kernel} can't run .*: it {reason}"):
            decide(problem(256, 256, 256, kernel=kernel), device, only_built=False)


def test_no_plan_passes_that_cuts_k_otherwise() -> None:
    """Whoever made it: a table, a selector of the caller's."""
    device, p = profile("h200"), problem(64, 4096, 4096)
    kernel, splits = choose(p, device, only_built=False).kernel, _C.splits_for(p.n, p.k, 2)
    reason = _C.check_plan(_C.Plan(kernel, "split_k", splits + 1), p, device)
    assert f"cuts K into {splits} with batch_invariant, whatever M is, and not into {splits + 1}" in reason
    assert "cuts K under stream_k where the number" in _C.check_plan(_C.Plan(kernel, "stream_k"), p, device)
    assert _C.check_plan(_C.Plan(kernel, "split_k", splits), p, device) == ""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_prescribed_cuts_are_split_k_s_or_a_cta_s_own(dtype: str) -> None:
    for device in (profile("h200"), profile("a100")):
        p = problem(64, *CUT, dtype)
        members = [spec for spec in SPECS.values() if not _C.supports(spec.name, p, device)]
        assert members and _C.splits_for(p.n, p.k, 2) == 2
        for spec in members:
            assert spec.adds_cuts_itself == (spec.family == "sm90")
            assert _C.check_plan(_C.Plan(spec.name, "split_k", 2), p, device) == ""
            reason = _C.check_plan(_C.Plan(spec.name, "data_parallel", 2), p, device)
            assert reason == ("" if spec.adds_cuts_itself else "has 2 splits without schedule split_k")
            for schedule, splits in (("data_parallel", 1), ("data_parallel", 3), ("split_k", 1), ("split_k", 3)):
                assert _C.check_plan(_C.Plan(spec.name, schedule, splits), p, device) != "", (spec.name, schedule)
            default = check_shape(64, *CUT, dtype).problem
            reason = _C.check_plan(_C.Plan(spec.name, "data_parallel", 2), default, device)
            assert reason == "has 2 splits without schedule split_k"


def test_a_cta_s_own_sums_take_no_partials() -> None:
    """What it keeps does not grow with M; with swapped operands it is in registers."""
    device = profile("h200")
    for spec in (spec for spec in SPECS.values() if spec.adds_cuts_itself and not spec.teaching):
        form = {"gated": spec.gated, "aux": spec.aux}
        majors = {"major_a": spec.major_a, "major_b": spec.major_b}
        sizes = set()
        for m in (256, 8192, 1 << 20):
            p = problem(m, 512, 14336, spec.dtype_a, **majors, **form)
            plan = _C.Plan(spec.name, "data_parallel", _C.splits_for(p.b_columns, p.k, 2))
            assert plan.splits > 1 and _C.check_plan(plan, p, device) == "", spec.name
            sizes.add(_C.workspace_size(spec.name, p, plan, device))
        tile = 0 if spec.swap_ab else 4 * spec.tile[0] * spec.tile[1]
        assert sizes == {2 * device.sm_count * tile}, spec.name


def test_forms_leave_cuts_to_two_steps() -> None:
    """Their kernels have none: fused and in two steps a row would not have the same bits."""
    device = profile("h200")
    n, k = CUT
    forms = [s for s in SPECS.values() if s.family == "sm90" and (s.gated or s.aux) and not s.teaching]
    assert forms
    for spec in forms:
        form: dict[str, Any] = {"gated": spec.gated, "aux": spec.aux}
        form |= {"major_a": spec.major_a, "major_b": spec.major_b}
        columns = n // 2 if spec.gated else n
        cut = problem(64, columns, k, spec.dtype_a, **form)
        assert _C.splits_for(cut.b_columns, k, 2) == 2
        reason = _C.check_plan(_C.Plan(spec.name, "data_parallel"), cut, device)
        assert "can't add up cuts of K, and batch_invariant cuts this K into 2" in reason, spec.name
        assert _C.check_plan(_C.Plan(spec.name, "data_parallel", 2), cut, device) != "", spec.name
        whole = problem(64, columns, 4096, spec.dtype_a, **form)  # K in one cut
        assert _C.check_plan(_C.Plan(spec.name, "data_parallel"), whole, device) == "", spec.name


def test_data_parallel_can_be_asked_for_where_a_cta_adds_cuts_up() -> None:
    p = problem(64, *CUT, schedule="data_parallel")
    plan = choose(p, profile("h200"), only_built=False)
    assert (plan.schedule, plan.splits) == ("data_parallel", 2) and faults(plan, p, profile("h200")) == []
    assert str(plan).find(", data_parallel 2, ") > 0
    with pytest.raises(RuntimeError, match="can't add up cuts of K under data_parallel, and batch_invariant cuts this"):
        choose(p, profile("a100"), only_built=False)


# ---- selection -------------------------------------------------------------------------------------------------------

extents = st.one_of(st.integers(1, 300), st.sampled_from((512, 1000, 2048, 4096, 6144, 14336, 28672)))


@st.composite
def calls(draw: Any) -> tuple[tuple[int, int, int, str], dict[str, Any]]:
    m = draw(st.one_of(extents, st.sampled_from((8192, 1 << 17))))
    n, k = draw(extents), draw(st.one_of(st.just(0), extents, extents, extents))
    activation, args = draw(st.sampled_from(((None, ()), *ACTIVATIONS)))
    options = {
        "batch": draw(st.sampled_from((1, 1, 1, 3))),
        "major_a": draw(st.sampled_from("km")),
        "major_b": draw(st.sampled_from("kn")),
        "align_bytes": draw(st.sampled_from((16, 16, 8, 4, 2))),
        "out_dtype": draw(st.sampled_from((None, "f32"))),
        "c": draw(st.sampled_from((None, None, "f32"))),
        "bias": draw(st.sampled_from((None, "f32"))),
        "alpha": draw(st.sampled_from((1.0, 1.0, 0.5, 0.0))),
        "schedule": draw(st.sampled_from((None, None, None, "data_parallel", "split_k"))),
        "activation": activation,
        "activation_args": list(args) or None,
    }
    return (m, n, k, draw(st.sampled_from(("bf16", "f16")))), options


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(calls())
def test_every_plan_that_the_selector_considers_keeps_the_promise(
    call: tuple[tuple[int, int, int, str], dict[str, Any]],
) -> None:
    shape, options = call
    p = problem(*shape, **options)
    cut = p.k > 0 and _C.splits_for(p.n, p.k, 2) > 1
    for model in MODELS:
        device = profile(model)
        if cut and p.schedule == "data_parallel" and _C.batch_invariant_class(device.capability) != "wgmma":
            with pytest.raises(RuntimeError, match=r"^no kernel can run .*, data_parallel on "):
                decide(p, device, only_built=False)
            continue
        decision = decide(p, device, only_built=False)
        for plan in (decision.chosen.plan, *(c.plan for c in decision.candidates)):
            assert faults(plan, p, device) == [], f"{plan} for {p} on {model}"
        assert choose(p, device, only_built=False) == decision.chosen.plan


def test_random_problems_of_the_fuzzer_are_served_or_refused_in_words() -> None:
    from test_fuzz import problem_of

    served = 0
    for seed in range(3000):
        case, dtype = draw_case(RandomDraw(seed))
        if case.numerics != "batch_invariant" or refusal_of_numerics(case, dtype) or dtype != "bf16":
            continue
        p = problem_of(case)
        p.numerics = "batch_invariant"
        if p.m and p.n and p.batch:
            for model in ("h200", "a100"):
                assert faults(choose(p, profile(model), only_built=False), p, profile(model)) == [], f"{case}"
            served += 1
    assert served > 20


def test_with_k_of_zero_an_own_kernel_serves_the_epilogue() -> None:
    """The wgmma family can't; nothing is summed, so that any own kernel's bits are the epilogue's."""
    for options in ({"k": 0}, {"k": 64, "alpha": 0.0}, {"k": 14336, "alpha": 0.0}):
        k = options.pop("k")
        decision = decide(problem(16, 64, int(k), bias="bf16", **options), profile("h200"), only_built=False)
        assert {c.kernel.family for c in decision.candidates} == {"simt", "sm80"}


def test_a_packed_copy_beyond_the_workspace_limit_is_taken_rather_than_another_class() -> None:
    """The default goes to another kernel there; batch_invariant has no other, and may not depend on M."""
    device, p = profile("h200"), problem(1 << 17, 64, 4097)
    plan = choose(p, device, only_built=False)
    assert faults(plan, p, device) == []
    assert _C.workspace_size(plan.kernel, p, plan, device) > WORKSPACE_LIMIT
    default = check_shape(1 << 17, 64, 4097).problem
    plan = choose(default, device, only_built=False)
    assert _C.workspace_size(plan.kernel, default, plan, device) <= WORKSPACE_LIMIT


# ---- tables ----------------------------------------------------------------------------------------------------------


def load(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(table_text(rows))
    tables.load_table(path)


def test_a_default_row_serves_where_its_plan_keeps_the_promise(tmp_path: Path, user_tables: None) -> None:
    device, p = profile("h200"), problem(16, 6144, 14336)
    default = check_shape(16, 6144, 14336).problem
    ranked = [c.plan for c in decide(p, device, only_built=False).candidates]
    library = next(
        c.plan for c in decide(default, device, only_built=False).candidates if c.kernel.family == "cublaslt"
    )
    outside = [
        library,
        _C.Plan("sm80_gemm_bf16_bf16_f32_any_kk_16x64x128_w16x16_s4"),
        _C.Plan(ranked[0].kernel, "split_k", _C.splits_for(6144, 14336, 2) + 1),
        _C.Plan(ranked[0].kernel, "stream_k"),
    ]
    rows = [tables.row_dict(default, plan, 9.0) for plan in outside]
    load(tmp_path / "t.json", rows)
    assert decide(p, device, only_built=False).table_row is None
    load(tmp_path / "t.json", [*rows, tables.row_dict(default, ranked[-1], 9.0)])
    decision = decide(p, device, only_built=False)
    assert decision.chosen.plan == ranked[-1] and "numerics deterministic measured" in decision.reason
    assert choose(default, device, only_built=False) == library


def test_a_default_row_of_whole_tiles_serves_with_the_prescribed_cuts(tmp_path: Path, user_tables: None) -> None:
    device, p, default = profile("h200"), problem(16, *CUT), check_shape(16, *CUT).problem
    whole = _C.Plan("sm90_gemm_bf16_bf16_f32_any_kk_64x64x64_1x1_pp_s12", "data_parallel", 1, "along_n", 2)
    split = _C.Plan("sm90_gemm_bf16_bf16_f32_any_kk_64x128x64_1x1_pp_s8", "split_k", 2)
    other = _C.Plan(split.kernel, "split_k", 3)
    rows = [tables.row_dict(default, plan, 9.0) for plan in (other, whole, split)]
    load(tmp_path / "t.json", rows)
    decision = decide(p, device, only_built=False)
    assert decision.chosen.plan == _C.Plan(whole.kernel, "data_parallel", 2, "along_n", 2)
    assert "numerics deterministic and K uncut measured at 9.0 us" in decision.reason
    told = explain.shape(16, *CUT, device="h200", **INVARIANT)
    assert told.measured_us is None and told.numerics is not None and not told.numerics.measured
    load(tmp_path / "t.json", rows[::2])
    assert choose(p, device, only_built=False) == split
    assert explain.shape(16, *CUT, device="h200", **INVARIANT).measured_us == 9.0
    with pytest.raises(ValueError, match=r"more than one split needs split_k\.$"):
        load(tmp_path / "t.json", [tables.row_dict(default, decision.chosen.plan, 9.0)])
    load(tmp_path / "t.json", [tables.row_dict(p, decision.chosen.plan, 9.0)])
    assert choose(p, device, only_built=False) == decision.chosen.plan


def test_the_selector_weighs_both_ways_of_cutting() -> None:
    device = profile("h200")
    plans = {(c.plan.schedule, c.plan.splits) for c in every_plan(problem(128, *CUT), device)}
    assert plans <= {("split_k", 2), ("data_parallel", 2)}
    infos = {kernel.name: kernel for kernel in kernel_infos()}
    kernel, shape = infos["sm90_gemm_bf16_bf16_f32_any_kk_128x256x64_2x1_coop_s4"], shape_of(problem(8192, *CUT))
    machine = machine_of(device)
    us = {
        (schedule, splits): predict(kernel, shape, machine, _C.Plan(kernel.name, schedule, splits)).us
        for schedule, splits in (("data_parallel", 1), ("data_parallel", 2), ("split_k", 2))
    }
    assert us["data_parallel", 1] < us["data_parallel", 2] < us["split_k", 2]
    assert us["data_parallel", 2] < 1.04 * us["data_parallel", 1]
    few = shape_of(problem(128, *CUT))  # one tile each for 32 SMs, or half a tile for 64
    assert (
        predict(kernel, few, machine, _C.Plan(kernel.name, "split_k", 2)).us
        < predict(kernel, few, machine, _C.Plan(kernel.name, "data_parallel", 2)).us
    )


def test_rows_of_batch_invariant_go_first_and_serve_nothing_else(tmp_path: Path, user_tables: None) -> None:
    device, p = profile("h200"), problem(16, 6144, 14336)
    default = check_shape(16, 6144, 14336).problem
    first, *_, last = [c.plan for c in decide(p, device, only_built=False).candidates]
    row = tables.row_dict(p, last, 9.0)
    assert row["numerics"] == "batch_invariant" and "numerics" not in tables.row_dict(default, last, 9.0)
    load(tmp_path / "t.json", [row, tables.row_dict(default, first, 8.0)])
    assert choose(p, device, only_built=False) == last
    assert choose(default, device, only_built=False) == first
    decision = decide(problem(20, 6144, 14336, bias="bf16"), device, only_built=False)
    assert decision.chosen.plan == last and "epilogue none" in decision.reason
    load(tmp_path / "t.json", [row])
    tables.reset_tables()
    load(tmp_path / "t.json", [row])
    assert decide(default, device, only_built=False).table_row is None


def test_a_row_of_unknown_numerics_is_no_row(tmp_path: Path, user_tables: None) -> None:
    p = problem(16, 4096, 14336)
    plan = choose(p, profile("h200"), only_built=False)
    with pytest.raises(ValueError, match="has numerics = 'exact', it is one of deterministic, batch_invariant"):
        load(tmp_path / "t.json", [tables.row_dict(p, plan, 9.0) | {"numerics": "exact"}])


# ---- explain ---------------------------------------------------------------------------------------------------------


def test_explain_says_what_numerics_costs(user_tables: None) -> None:
    told = explain.shape(64, 512, 14336, device="h200", **INVARIANT)
    cost = told.numerics
    assert cost is not None and (cost.numerics_class, cost.measured) == ("wgmma", False)
    splits = _C.splits_for(512, 14336, 2)
    assert cost.default_plan["splits"] > 1 or cost.default_plan["kernel"] in cost.rejected
    assert cost.over_default > 1
    assert "cublaslt_gemm_bf16_bf16_f32_any" in cost.rejected
    assert not {name for name in cost.rejected if SPECS[name].family == "sm90"}
    assert f"batch_invariant: class wgmma, K in {splits} for every M" in str(told)
    assert "rejected for it alone: " in str(told)
    assert told.to_dict()["numerics"]["splits"] == cost.splits == splits
    assert explain.shape(64, 512, 14336, device="h200").numerics is None
    empty_sum = explain.shape(16, 64, 0, device="h200", bias="bf16", **INVARIANT).numerics
    assert empty_sum is not None and empty_sum.numerics_class == "any"


def test_explain_divides_measured_rows_of_one_problem(tmp_path: Path, user_tables: None) -> None:
    device, p = profile("h200"), problem(16, 4096, 14336)
    default = check_shape(16, 4096, 14336).problem
    rows = [tables.row_dict(x, choose(x, device, only_built=False), us) for x, us in ((p, 12.0), (default, 8.0))]
    load(tmp_path / "t.json", rows)
    cost = explain.shape(16, 4096, 14336, device="h200", **INVARIANT).numerics
    assert cost is not None and (cost.measured, cost.over_default) == (True, 1.5)
    load(tmp_path / "other.json", [rows[0] | {"m": 17}])  # the default's row is of another M then
    cost = explain.shape(17, 4096, 14336, device="h200", **INVARIANT).numerics
    assert cost is not None and not cost.measured


# ---- the op on the CPU -----------------------------------------------------------------------------------------------


def tensors(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(m + n + k)
    make = lambda *shape: torch.randn(shape, generator=generator).to(dtype)  # noqa: E731
    return make(m, k), make(k, n), make(m, n), make(n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "silu", "tanh"])
def test_rows_on_the_cpu_have_the_bits_that_they_have_alone(dtype: torch.dtype, activation: str) -> None:
    a, b, c, bias = tensors(41, 37, 129, dtype)
    c = c.float()
    options: dict[str, Any] = {"bias": bias, "activation": activation, "beta": 0.5, "alpha": 0.75, **INVARIANT}
    for out_dtype in (dtype, torch.float32):
        d = bits(gemmx.gemm(a, b, c, out_dtype=out_dtype, **options))
        for m in (1, 2, 7, 16, 40):
            for first in {0, 3, 41 - m} if m < 40 else {0, 1}:
                rows = slice(first, first + m)
                alone = bits(gemmx.gemm(a[rows], b, c[rows], out_dtype=out_dtype, **options))
                assert torch.equal(alone, d[rows]), f"M={m} from {first}"
        again = torch.cat([a, a.flip(0)])
        both = bits(gemmx.gemm(again, b, torch.cat([c, c.flip(0)]), out_dtype=out_dtype, **options))
        assert torch.equal(both, torch.cat([d, d.flip(0)]))


def test_layouts_batches_and_out_change_no_bit_on_the_cpu() -> None:
    a, b, _, bias = tensors(24, 20, 70, torch.bfloat16)
    options: dict[str, Any] = {"bias": bias, "activation": "silu", **INVARIANT}
    d = gemmx.gemm(a, b, **options)
    assert torch.equal(gemmx.gemm(a.t().contiguous().t(), b.t().contiguous().t(), **options), d)
    assert torch.equal(gemmx.gemm(a.view(2, 3, 4, 70), b, **options).view(24, 20), d)
    assert torch.equal(gemmx.gemm(a.view(3, 8, 70), b.expand(3, 70, 20), **options).view(24, 20), d)
    out = torch.full((24, 40), torch.nan, dtype=torch.bfloat16)[:, ::2]
    assert torch.equal(gemmx.gemm(a, b, out=out, **options), d)
    compiled = torch.compile(lambda x, y: gemmx.gemm(x, y, **options), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), d)
    assert torch.equal(compiled(a[:5], b), d[:5])  # M becomes a symbol


def test_empty_sums_on_the_cpu() -> None:
    a, b, _, bias = tensors(5, 4, 0, torch.bfloat16)
    assert torch.equal(gemmx.gemm(a, b, bias=bias, **INVARIANT), bias.expand(5, 4))
    a, b, _, bias = tensors(5, 4, 3, torch.bfloat16)
    a[0, 0] = torch.nan
    assert torch.equal(gemmx.gemm(a, b, bias=bias, alpha=0.0, **INVARIANT), bias.expand(5, 4))
    assert gemmx.gemm(a[:0], b, **INVARIANT).shape == (0, 4)
    assert gemmx.gemm(a, b, **INVARIANT)[0].isnan().all() and not gemmx.gemm(a, b, **INVARIANT)[1:].isnan().any()


def test_symbolic_sizes_leave_the_cuts_to_the_real_call() -> None:
    a, b, _, _ = tensors(8, 4, 64, torch.bfloat16)
    compiled = torch.compile(
        lambda x, y: gemmx.gemm(x, y, schedule="stream_k", **INVARIANT), dynamic=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match="which cuts K where the number of tiles says"):
        compiled(a, b)
