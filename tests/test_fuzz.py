"""Random problems on the CPU: the reference within its bound, selection and plans for every GPU model.

The examples are the same in every run. `make fuzz` runs tens of thousands of other ones on a GPU.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

import problems
from fuzz_cases import RandomDraw, cases, draw_case, is_legal, refusal_of_numerics, rows_to_compare, shrink
from gemmx import _C
from gemmx.select.profiles import profile
from gemmx.select.selector import WORKSPACE_LIMIT, decide
from problems import Case, Layout, Placed, differing_bits

SMALL = {"largest": 40, "elements": 1 << 10, "depth": 64}
REPEATABLE = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@REPEATABLE
@given(cases(**SMALL))
def test_reference_keeps_its_bound_on_random_problems(found: tuple[Case, str]) -> None:
    case, dtype = found
    assert is_legal(case)
    inst = problems.instance.__wrapped__(case, dtype, "cpu")
    out = inst.new_out()
    refused = case.splits or case.schedule not in (None, "auto") or refusal_of_numerics(case, dtype)
    if refused:
        with pytest.raises((RuntimeError, ValueError), match=r"^(splits|schedule|numerics): "):
            inst.run(out)
        assert inst.faults(inst.exact.to(inst.d_dtype)) == []
    else:
        d = inst.run(out)
        assert inst.faults(d, out) == [], f"{case}, {dtype}"
        for rows in rows_to_compare(case):
            assert differing_bits(inst.of_rows(rows), d[..., rows, :]) == 0, f"{case}, {dtype}, rows {rows}"


def described(placed: Placed, number: int) -> _C.TensorDesc:
    """At an address of its own, as aligned as the view's."""
    view = placed.view
    address = (number << 40) + view.storage_offset() * view.element_size()
    dtype = {2: "bf16", 4: "f32"}[view.element_size()]
    return _C.TensorDesc(dtype, "cuda", 0, tuple(view.shape), view.stride(), address)


def problem_of(case: Case) -> _C.Problem:
    """The Problem of a bf16 case on CUDA, for which no CUDA is needed."""
    batches = [None if case.shared == x else case.batch for x in "ab"]
    a = Placed(case.a, (batches[0], case.m, case.k), problems.DTYPES["bf16"], "cpu")
    b = Placed(case.b, (batches[1], case.k, case.n), problems.DTYPES["bf16"], "cpu")
    options = {"alpha": case.alpha, "activation": case.activation, "activation_args": case.activation_args or None}
    if case.out is not None:
        dtype = problems.DTYPES[case.out_dtype or "bf16"]
        out = described(Placed(case.out, (case.batch, case.m, case.n), dtype, "cpu"), 3)
        return _C.check_gemm(described(a, 1), described(b, 2), out=out, **options).problem
    return _C.check_gemm(described(a, 1), described(b, 2), out_dtype=case.out_dtype, **options).problem


@settings(REPEATABLE, max_examples=25)
@given(cases())
def test_every_problem_has_a_legal_plan_on_every_gpu(found: tuple[Case, str]) -> None:
    """Whatever the layout; the plan passes the check that C++ makes, within the workspace that a plan may take."""
    case, _ = found
    problem = problem_of(case)
    if not (problem.m and problem.n and problem.batch):
        return
    for model in ("h200", "a100", "rtx4090", "b200"):
        device = profile(model)
        decision = decide(problem, device, only_built=False)
        for candidate in decision.candidates:
            assert _C.check_plan(candidate.plan, problem, device) == "", f"{candidate.plan} for {problem}"
        plan = decision.chosen.plan
        assert 0 <= _C.workspace_size(plan.kernel, problem, plan, device) <= WORKSPACE_LIMIT
        assert decide(problem, device, only_built=False).chosen.plan == plan


def test_seeds_repeat_and_cover_the_distribution() -> None:
    draws = [draw_case(RandomDraw(seed)) for seed in range(2000)]
    assert draws == [draw_case(RandomDraw(seed)) for seed in range(2000)]
    assert all(is_legal(case) for case, _ in draws)
    seen = [case for case, _ in draws]
    for name in ("m", "n", "k"):
        assert {0, 1, 63, 64, 65} <= {getattr(case, name) for case in seen}
    for name in ("batch", "shared", "out", "out_dtype", "c", "bias", "activation", "schedule", "precision", "special"):
        assert len({getattr(case, name) for case in seen}) > 1, name
    invariant = [(case, dtype) for case, dtype in draws if case.numerics == "batch_invariant"]
    assert 20 < sum(not refusal_of_numerics(case, dtype) for case, dtype in invariant) < len(invariant)
    assert {dtype for _, dtype in draws} == set(problems.DTYPES)
    assert any(case.a.expand for case in seen)


def test_shrinking_keeps_the_failure_and_drops_the_rest() -> None:
    case, _ = draw_case(RandomDraw(1))
    case = Case(129, 65, 300, a=Layout(ld_pad=5, offset=1), out=Layout(step=2), bias="a", activation="gelu")
    assert shrink(case, lambda x: x.m > 16 and x.a.offset == 1) == Case(17, 0, 0, a=Layout(offset=1))
