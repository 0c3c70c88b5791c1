"""check_gemm: every wrong call gets its sentence on every path, every legal call the Problem it means."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from bad_calls import BAD_CALLS, BadCall, Call, call
from bad_forms import BAD_FORMS, BadForm
from gemmx import _C
from gemmx.ops import check, op_arguments

bad_calls = pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.id)


def run_op(c: Call) -> None:
    op = torch.ops.gemmx.gemm_out if c.is_out else torch.ops.gemmx.gemm
    op(c.a, c.b, **op_arguments(c.kwargs))


def expect(bad: BadCall, run: Any, c: Call, device: str = "cpu") -> None:
    with pytest.raises(bad.error) as raised:
        run(c)
    assert type(raised.value) is bad.error
    assert bad.matches(str(raised.value), device), f"{raised.value}\nexpected: {bad.sentence}"


# ---- wrong calls ----------------------------------------------------------------------------------------------------


def test_table_covers_every_argument() -> None:
    named = {bad.sentence.split(":")[0] for bad in BAD_CALLS}
    arguments = {argument.name for argument in torch.ops.gemmx.gemm_out.default._schema.arguments} | {"out_dtype"}
    assert arguments <= {*op_arguments(dict.fromkeys(named)), "a", "b"}
    assert len({bad.id for bad in BAD_CALLS}) == len(BAD_CALLS)


@bad_calls
def test_check_refuses(bad: BadCall) -> None:
    expect(bad, lambda c: check(c.a, c.b, **c.kwargs), bad.make("cpu"))


@bad_calls
def test_cpu_op_refuses(bad: BadCall) -> None:
    out = bad.make("cpu")
    before = out.kwargs["out"].clone() if out.is_out and not out.kwargs["out"].is_meta else None
    expect(bad, run_op, out)
    if before is not None:
        assert torch.equal(out.kwargs["out"].contiguous().view(torch.uint8), before.contiguous().view(torch.uint8))


@bad_calls
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_refuses(bad: BadCall, device: str) -> None:
    if bad.needs_memory:
        pytest.skip("a fake tensor has no address")
    with FakeTensorMode():
        expect(bad, run_op, bad.make(device), device)


@pytest.mark.parametrize("bad", BAD_FORMS, ids=lambda bad: bad.id)
@pytest.mark.parametrize("way", ["cpu", "fake cpu", "fake cuda", "grad mode"])
def test_forms_refuse(bad: BadForm, way: str) -> None:
    context = FakeTensorMode() if "fake" in way else torch.set_grad_enabled(way == "grad mode")
    with context, pytest.raises(bad.error) as raised:
        bad.run(way.removeprefix("fake ") if "fake" in way else "cpu")
    assert str(raised.value) == bad.sentence


def test_first_mistake_is_named_whatever_beta_is() -> None:
    sentences = set()
    for beta in (0.0, 0.5, 1.0):
        with pytest.raises(ValueError, match="must broadcast to D's shape") as raised:
            run_op(call("cpu", c=torch.ones(3, 5, dtype=torch.bfloat16), beta=beta))
        sentences.add(str(raised.value))
    assert len(sentences) == 1


# ---- legal oddities and the Problem they mean -----------------------------------------------------------------------


def desc(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str = "bf16", data: int = 0) -> _C.TensorDesc:
    return _C.TensorDesc(dtype, "cuda", 0, sizes, strides, data)


def strides_of(matrix: _C.Matrix) -> tuple[int, int, int]:
    return matrix.batch_stride, matrix.row_stride, matrix.col_stride


WEIGHT = desc((64, 32), (1, 64))  # (K, N), K-major: a linear layer's weight.t()


@pytest.mark.parametrize(
    ("a", "major", "strides"),
    [
        (desc((8, 64), (64, 1)), "k", (0, 64, 1)),
        (desc((8, 64), (70, 1)), "k", (0, 70, 1)),  # padded
        (desc((8, 64), (0, 1)), "k", (0, 0, 1)),  # expanded rows
        (desc((8, 64), (1, 8)), "m", (0, 1, 8)),
        (desc((8, 64), (1, 0)), "m", (0, 1, 0)),  # expanded columns
        (desc((8, 64), (0, 0)), "none", (0, 0, 0)),  # one element
        (desc((8, 64), (128, 2)), "none", (0, 128, 2)),  # every second column
        (desc((8, 64), (1, 1)), "k", (0, 1, 1)),  # sliding windows
        # M = 1: the row stride decides nothing, and none that costs alignment is taken
        (desc((1, 64), (64, 1)), "k", (0, 64, 1)),
        (desc((1, 64), (3, 1)), "k", (0, 64, 1)),
        (desc((1, 64), (0, 1)), "k", (0, 64, 1)),
        (desc((1, 64), (1, 1)), "k", (0, 64, 1)),
        (desc((1, 64), (7, 16)), "m", (0, 1, 16)),
        # one batch: nor does the batch stride
        (desc((1, 8, 64), (7, 64, 1)), "k", (0, 64, 1)),
        (desc((1, 8, 64), (1, 1, 8)), "m", (0, 1, 8)),
        # folded: batch and rows are one dimension
        (desc((4, 2, 64), (128, 64, 1)), "k", (0, 64, 1)),
        (desc((4, 2, 64), (200, 100, 1)), "k", (0, 100, 1)),
        (desc((8, 1, 64), (64, 64, 1)), "k", (0, 64, 1)),
        (desc((8, 1, 64), (96, 5, 1)), "k", (0, 96, 1)),
        (desc((8, 1, 64), (0, 5, 1)), "k", (0, 0, 1)),
        (desc((4, 2, 64), (2, 1, 8)), "m", (0, 1, 8)),
    ],
)
def test_layout_of_a(a: _C.TensorDesc, major: str, strides: tuple[int, int, int]) -> None:
    problem = _C.check_gemm(a, WEIGHT).problem
    assert (problem.a.major, strides_of(problem.a)) == (major, strides)
    assert (problem.batch, problem.n, problem.k) == (1, 32, 64)
    assert problem.b.major == "k"


@pytest.mark.parametrize(
    ("b", "major", "strides"),
    [
        (desc((64, 32), (32, 1)), "n", (0, 32, 1)),
        (desc((64, 32), (1, 64)), "k", (0, 1, 64)),
        (desc((64, 32), (1, 1)), "k", (0, 1, 1)),
        # N = 1: a vector along K
        (desc((64, 1), (1, 1)), "k", (0, 1, 64)),
        (desc((64, 1), (1, 9999)), "k", (0, 1, 64)),
        (desc((64, 1), (24, 1)), "n", (0, 24, 1)),
    ],
)
def test_layout_of_b(b: _C.TensorDesc, major: str, strides: tuple[int, int, int]) -> None:
    problem = _C.check_gemm(desc((8, 64), (64, 1)), b).problem
    assert (problem.b.major, strides_of(problem.b)) == (major, strides)


def test_k_of_one_decides_no_layout() -> None:
    row = desc((1, 24), (1, 5))
    assert _C.check_gemm(desc((61, 1), (1, 5)), row).problem.a.major == "m"
    problem = _C.check_gemm(desc((61, 1), (8, 5)), row).problem
    assert (problem.a.major, strides_of(problem.a)) == ("k", (0, 8, 1))
    assert problem.a.vector_bytes == 16
    assert (problem.b.major, strides_of(problem.b)) == ("k", (0, 1, 5))
    assert _C.check_gemm(desc((1, 1), (5, 9)), desc((1, 1), (3, 4))).problem.a.vector_bytes == 16


def test_m_of_one_costs_no_alignment() -> None:
    """A (1, K) view with an odd row stride is as aligned as its pointer is; so is D where N is odd."""
    problem = _C.check_gemm(desc((1, 33), (3, 1), data=1 << 12), desc((33, 7), (1, 40))).problem
    assert (problem.a.row_stride, problem.a.vector_bytes, problem.a.pointer_align) == (40, 16, 16)
    assert (problem.d.row_stride, problem.d.vector_bytes) == (8, 16)


def test_pointer_alignment() -> None:
    for offset, align in ((0, 16), (2, 2), (4, 4), (6, 2), (8, 8), (24, 8), (32, 16)):
        problem = _C.check_gemm(desc((8, 64), (64, 1), data=4096 + offset), WEIGHT).problem
        assert problem.a.pointer_align == problem.a.vector_bytes == align


def test_batches() -> None:
    a, b = desc((3, 8, 64), (512, 64, 1)), desc((3, 64, 32), (2048, 32, 1))
    problem = _C.check_gemm(a, b).problem
    assert (problem.batch, problem.m, problem.a.batch_stride, problem.b.batch_stride) == (3, 8, 512, 2048)
    shared_a = _C.check_gemm(desc((8, 64), (64, 1)), b)
    assert (shared_a.problem.batch, shared_a.problem.a.batch_stride, shared_a.d_sizes) == (3, 0, (3, 8, 32))
    folded = _C.check_gemm(a, WEIGHT)
    assert (folded.problem.batch, folded.problem.m, folded.d_sizes) == (1, 24, (3, 8, 32))
    gap = _C.check_gemm(desc((3, 8, 64), (600, 64, 1)), WEIGHT)
    assert (gap.problem.batch, gap.problem.m, gap.problem.b.batch_stride) == (3, 8, 0)
    expanded = _C.check_gemm(desc((3, 8, 64), (0, 64, 1)), WEIGHT)
    assert (expanded.problem.batch, expanded.problem.a.batch_stride) == (3, 0)


def test_fold_waits_for_c_and_out() -> None:
    a = desc((3, 8, 64), (512, 64, 1))
    for c, batch in (
        (desc((3, 8, 32), (256, 32, 1)), 1),
        (desc((32,), (1,)), 1),
        (desc((), ()), 1),
        (desc((8, 32), (32, 1)), 3),  # the same matrix for each batch
        (desc((3, 1, 32), (32, 32, 1)), 3),
    ):
        assert _C.check_gemm(a, WEIGHT, c).problem.batch == batch
    assert _C.check_gemm(a, WEIGHT, out=desc((3, 8, 32), (256, 32, 1))).problem.batch == 1
    assert _C.check_gemm(a, WEIGHT, out=desc((3, 8, 32), (1024, 32, 1))).problem.batch == 3


@pytest.mark.parametrize(
    ("sizes", "strides", "expected"),
    [
        ((), (), (0, 0, 0)),
        ((1,), (9,), (0, 0, 0)),
        ((32,), (1,), (0, 0, 1)),
        ((1, 32), (7, 1), (0, 0, 1)),
        ((8, 1), (1, 9), (0, 1, 0)),
        ((8, 1), (5, 9), (0, 5, 0)),
        ((8, 32), (32, 1), (0, 32, 1)),
        ((8, 32), (1, 8), (0, 1, 8)),
        ((1, 1), (3, 3), (0, 0, 0)),
    ],
)
def test_c_broadcasts(sizes: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    problem = _C.check_gemm(desc((8, 64), (64, 1)), WEIGHT, desc(sizes, strides, "f32")).problem
    assert (problem.c.dtype, problem.beta, strides_of(problem.c)) == ("f32", "one", expected)


def test_scalars() -> None:
    a, c = desc((8, 64), (64, 1)), desc((8, 32), (32, 1))
    plain = _C.check_gemm(a, WEIGHT)
    assert (plain.alpha, plain.beta, plain.problem.alpha, plain.problem.beta) == (1.0, 0.0, "one", "zero")
    unread_c = _C.check_gemm(a, WEIGHT, c, beta=0.0)
    assert (unread_c.problem.c.dtype, unread_c.problem == plain.problem) == ("none", True)
    no_product = _C.check_gemm(a, WEIGHT, c, alpha=0.0, beta=2.0)
    assert (no_product.problem.k, no_product.alpha, no_product.problem.beta) == (0, 0.0, "other")
    # Rounded to float32 before they are classified.
    assert _C.check_gemm(a, WEIGHT, alpha=1 + 1e-12).problem.alpha == "one"
    assert _C.check_gemm(a, WEIGHT, alpha=1e-60).problem.k == 0
    assert _C.check_gemm(a, WEIGHT, alpha=float("inf")).problem.alpha == "other"


def test_empty_sum_ignores_alpha_and_layouts() -> None:
    """K = 0, with a NaN alpha at that: A and B decide nothing, so all such calls are one Problem."""
    problems = [
        _C.check_gemm(desc((8, 0), strides, data=data), desc((0, 32), (32, 1)), alpha=alpha)
        for strides, data, alpha in (((1, 1), 0, 1.0), ((0, 1), 4098, float("nan")), ((77, 3), 4, 0.0))
    ]
    assert all(checked.alpha == 0.0 and checked.problem == problems[0].problem for checked in problems)
    assert (problems[0].problem.a.vector_bytes, problems[0].empty) == (16, False)
    f32 = [
        _C.check_gemm(desc((8, 0), (1, 1), "f32"), desc((0, 3), (3, 1), "f32"), precision=x) for x in ("ieee", "tf32")
    ]
    assert f32[0].problem == f32[1].problem  # nothing is multiplied in any precision
    unread = _C.check_gemm(desc((8, 64), (129, 2), data=4098), WEIGHT, alpha=0.0)
    assert (unread.problem.a.vector_bytes, unread.problem.k) == (16, 0)


@pytest.mark.parametrize(("batch", "m", "n"), [(None, 0, 4), (None, 4, 0), (0, 4, 4), (2, 0, 4), (2, 4, 0), (0, 0, 0)])
def test_empty_d(batch: int | None, m: int, n: int) -> None:
    lead = () if batch is None else (batch,)
    a, b = torch.ones(*lead, m, 5), torch.ones(*lead, 5, n)
    checked = check(a, b)
    assert checked.empty
    assert checked.d_sizes == (*lead, m, n)
    out = torch.ones(*lead, m, n)
    assert check(a, b, out=out, c=out).empty


def test_requests_enter_the_problem() -> None:
    a = desc((8, 64), (64, 1))
    assert _C.check_gemm(a, WEIGHT, splits=3).problem.schedule == "split_k"
    assert _C.check_gemm(a, WEIGHT, splits=1).problem.schedule == "auto"
    assert _C.check_gemm(a, WEIGHT, splits=3) is not None
    split_k = _C.check_gemm(a, WEIGHT, schedule="split_k").problem
    assert (split_k.schedule, split_k.splits) == ("split_k", 0)
    assert _C.check_gemm(a, WEIGHT, splits=1, schedule="stream_k").problem.schedule == "stream_k"
    kernel = _C.kernels()[0].name
    assert _C.check_gemm(a, WEIGHT, kernel=kernel).problem.kernel == kernel


def test_defaults_spelt_out_are_the_same_problem() -> None:
    a = desc((8, 64), (64, 1))
    spelt = _C.check_gemm(
        a, WEIGHT, activation="none", activation_args=[], precision="ieee", numerics="deterministic", schedule="auto",
        out_dtype="bf16",
    )  # fmt: skip
    assert spelt.problem == _C.check_gemm(a, WEIGHT).problem
    assert hash(spelt.problem) == hash(_C.check_gemm(a, WEIGHT).problem)


def test_activation_arguments() -> None:
    a = desc((8, 64), (64, 1))
    assert _C.check_gemm(a, WEIGHT, activation="leaky_relu").activation_args[0] == pytest.approx(0.01)
    assert _C.check_gemm(a, WEIGHT, activation="leaky_relu", activation_args=[0.5]).activation_args[0] == 0.5
    assert _C.check_gemm(a, WEIGHT, activation="clamp", activation_args=[-1, 2]).activation_args == (-1, 2)
    assert _C.check_gemm(a, WEIGHT, activation="clamp", activation_args=[3, 3]).activation_args == (3, 3)


def test_bias() -> None:
    a = desc((8, 64), (64, 1))
    for dtype in ("bf16", "f32"):
        problem = _C.check_gemm(a, WEIGHT, bias=desc((32,), (1,), dtype, data=4100)).problem
        assert (problem.bias_dtype, problem.bias_stride, problem.bias_align) == (dtype, 1, 4)
    assert _C.check_gemm(a, WEIGHT, bias=desc((32,), (0,))).problem.bias_stride == 0
    assert _C.check_gemm(a, WEIGHT, bias=desc((32,), (5,)), out_dtype="f32").problem.bias_stride == 5
    assert _C.check_gemm(a, desc((64, 1), (1, 1)), bias=desc((1,), (99,))).problem.bias_stride == 1


@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16", "f64", "e4m3", "e5m2", "i8", "i32", "u8"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "e4m3", "e5m2", "i8", "i32", "u8"])
def test_every_dtype_pair_is_supported_or_refused(dtype: str, out_dtype: str) -> None:
    a, b = desc((8, 64), (64, 1), dtype), desc((64, 32), (1, 64), dtype)
    if dtype in ("f32", "f16", "bf16") and out_dtype in (dtype, "f32"):
        assert _C.check_gemm(a, b, out_dtype=out_dtype).d_dtype == out_dtype
    else:
        with pytest.raises(RuntimeError, match="dtype"):
            _C.check_gemm(a, b, out_dtype=out_dtype)


def test_problem_prints_what_decides() -> None:
    a = desc((8, 64), (64, 1))
    bias = desc((32,), (1,))
    assert str(_C.check_gemm(a, WEIGHT).problem) == "M=8 N=32 K=64 bf16 kk -> bf16"
    assert str(_C.check_gemm(a, WEIGHT, bias=bias, activation="silu", out_dtype="f32").problem) == (
        "M=8 N=32 K=64 bf16 kk -> f32, bias bf16, silu"
    )
    kernel = _C.kernels()[0].name
    strided = _C.check_gemm(
        desc((3, 8, 64), (999, 70, 1), data=4098), desc((64, 32), (64, 2)), desc((), ()), beta=0.5, alpha=2.0,
        splits=2, kernel=kernel,
    )  # fmt: skip
    assert str(strided.problem) == (
        "batch=3 M=8 N=32 K=64 bf16 kx -> bf16, a[ld 70 batch 999 align 2], b[strides 64x2], d[batch 256], alpha, "
        f"beta*c, c[strides 0x0], split_k, splits=2, kernel={kernel}"
    )


# ---- out and what it may share --------------------------------------------------------------------------------------


def test_out_layouts() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 4)
    column_major = check(a, b, out=torch.empty(4, 3).t()).problem
    assert (column_major.d.major, strides_of(column_major.d)) == ("m", (0, 1, 3))
    every_second = check(a, b, out=torch.empty(3, 8)[:, ::2]).problem
    assert (every_second.d.major, strides_of(every_second.d)) == ("none", (0, 8, 2))
    single_column = check(a, b[:, :1], out=torch.empty(3, 1)).problem
    assert (single_column.d.major, strides_of(single_column.d)) == ("n", (0, 1, 1))
    row = check(a[:1], b, out=torch.empty(1, 8)[:, ::2]).problem
    assert (row.d.major, strides_of(row.d)) == ("m", (0, 1, 2))


def test_out_may_be_c() -> None:
    a, b, out = torch.ones(3, 5), torch.ones(5, 4), torch.ones(3, 4)
    assert check(a, b, out=out, c=out).problem.accumulate_in_place
    assert check(a, b, out=out, c=out, beta=0.5).problem.accumulate_in_place
    assert not check(a, b, out=out, c=out, beta=0.0).problem.accumulate_in_place
    assert not check(a, b, out=out, c=out.clone()).problem.accumulate_in_place
    row = torch.ones(1, 4)
    assert check(a[:1], b, out=row, c=row[0]).problem.accumulate_in_place  # one element of C for each of D
    with pytest.raises(ValueError, match="out: shares memory with c"):
        check(a.bfloat16(), b.bfloat16(), out=out.bfloat16(), c=None)
        check(a, b, out=out, c=out[:1])


def test_views_that_share_no_element_are_legal() -> None:
    qkv = torch.ones(6, 24)
    weight = torch.ones(8, 8)
    assert check(qkv[:, :8], weight, out=qkv[:, 8:16])
    assert check(qkv[:, 16:], weight, out=qkv[:, 8:16], c=qkv[:, :8])
    assert check(qkv[:, 1::3], weight, out=qkv[:, 2::3])  # interleaved columns
    assert check(qkv[::2, :8], weight[:, :4], out=qkv[1::2, 4:8])  # rows apart
    batches = torch.ones(3, 8, 24)
    assert check(batches[:, :, :8], weight, out=batches[:, :, 8:16])
    assert check(batches[:, :4, :8], weight, out=batches[:, 4:, :8])  # the halves of every batch
    with pytest.raises(ValueError, match="out: shares memory with a"):
        check(qkv[:, :8], weight, out=qkv[:, 7:15])
    with pytest.raises(ValueError, match="out: shares memory with a"):
        check(qkv[:, :8], weight, out=qkv.view(3, 48)[:, :40].as_strided((6, 8), (20, 1), 8))


# ---- properties -----------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 4)
STRIDES = st.integers(0, 9)


def addresses(sizes: tuple[int, ...], strides: tuple[int, ...], data: int = 0) -> list[int]:
    return [
        data + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, sizes))
    ]


@given(batch=SIZES, m=SIZES, k=SIZES, strides=st.tuples(STRIDES, STRIDES, STRIDES), shared_b=st.booleans())
def test_canonical_strides_reach_the_same_elements(
    batch: int, m: int, k: int, strides: tuple[int, int, int], *, shared_b: bool
) -> None:
    b = desc((k, 3), (3, 1)) if shared_b else desc((batch, k, 3), (3 * k, 3, 1))
    checked = _C.check_gemm(desc((batch, m, k), strides), b)
    problem = checked.problem
    if checked.empty or problem.k == 0:
        return
    assert problem.batch * problem.m == batch * m
    expected = addresses((batch, m, k), strides)
    assert addresses((problem.batch, problem.m, problem.k), strides_of(problem.a)) == expected
    assert addresses((problem.batch, problem.m, problem.n), strides_of(problem.d)) == list(range(batch * m * 3))
    along = {"k": problem.a.col_stride, "m": problem.a.row_stride, "none": 1}
    assert along[problem.a.major] == 1
    assert (problem.a.major != "none") == (1 in (problem.a.row_stride, problem.a.col_stride))


@given(m=SIZES, n=SIZES, k=SIZES, strides=st.tuples(STRIDES, STRIDES))
def test_strides_of_size_one_dimensions_decide_nothing(m: int, n: int, k: int, strides: tuple[int, int]) -> None:
    def problem(a: tuple[int, int], b: tuple[int, int]) -> _C.Problem:
        return _C.check_gemm(desc((m, k), a), desc((k, n), b)).problem

    def replaced(sizes: tuple[int, int], by: int) -> tuple[int, int]:
        rows, cols = sizes
        return by if rows == 1 else strides[0], by if cols == 1 else strides[1]

    assume(1 in (m, n, k))
    problems = [problem(replaced((m, k), by), replaced((k, n), by)) for by in (0, 1, 7, 64)]
    assert all(p == problems[0] and hash(p) == hash(problems[0]) for p in problems)


@given(
    out_strides=st.tuples(STRIDES, st.integers(1, 4)),
    a_strides=st.tuples(STRIDES, STRIDES),
    sizes=st.tuples(*[st.integers(1, 4)] * 3),
    offset=st.integers(-20, 20),
    a_dtype=st.sampled_from(["f32", "bf16"]),
)
def test_accepted_out_is_disjoint(
    out_strides: tuple[int, int], a_strides: tuple[int, int], sizes: tuple[int, int, int], offset: int, a_dtype: str
) -> None:
    """Bytes of out (float32) and of a, by brute force. Offsets of 2 bytes, so that elements can half overlap."""
    m, n, k = sizes
    base = 1 << 20
    width = {"f32": 4, "bf16": 2}[a_dtype]
    a = desc((m, k), a_strides, a_dtype, base)
    out = desc((m, n), out_strides, "f32", base + 2 * offset)
    try:
        _C.check_gemm(a, desc((k, n), (n, 1), a_dtype, base << 1), out=out)
    except ValueError:
        return
    elements = addresses((m, n), tuple(4 * s for s in out_strides), base + 2 * offset)
    out_bytes = {x + i for x in elements for i in range(4)}
    assert len(out_bytes) == 4 * m * n
    a_bytes = {x + i for x in addresses((m, k), tuple(width * s for s in a_strides), base) for i in range(width)}
    assert not out_bytes & a_bytes


@given(
    row_stride=st.integers(1, 40),
    first=st.integers(0, 39),
    widths=st.tuples(st.integers(1, 8), st.integers(0, 8), st.integers(1, 8)),
    rows=st.integers(1, 5),
)
def test_disjoint_columns_of_one_row_stride_are_accepted(
    row_stride: int, first: int, widths: tuple[int, int, int], rows: int
) -> None:
    width, gap, other = widths
    assume(first + sum(widths) <= row_stride)
    base = 1 << 20
    a = desc((rows, width), (row_stride, 1), "f32", base + 4 * first)
    out = desc((rows, other), (row_stride, 1), "f32", base + 4 * (first + width + gap))
    assert _C.check_gemm(a, desc((width, other), (other, 1), "f32"), out=out)
