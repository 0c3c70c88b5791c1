"""check_gemm of gemm_gated, of forms with aux and of a gate's gradient, check_activation_backward, and two steps."""

from __future__ import annotations

from typing import Any

import pytest

from gemmx import _C


def desc(*sizes: int, strides: tuple[int, ...] = (), dtype: str = "bf16", device: str = "cuda") -> _C.TensorDesc:
    packed = [1] * len(sizes)
    for i in reversed(range(len(sizes) - 1)):
        packed[i] = packed[i + 1] * sizes[i + 1]
    return _C.TensorDesc(dtype, device, 0, sizes, strides or packed, 0)


A = desc(8, 64)
WEIGHT = desc(64, 48, strides=(1, 64))  # (K, 2 N), K-major: a weight stored (2 N, K)
H200 = _C.Device(
    name="test",
    capability=90,
    sm_count=132,
    smem_per_block=232448,
    smem_per_sm=233472,
    l2_bytes=60 << 20,
    clock_ghz=1.98,
    dram_gbps=4800.0,
)


def strides_of(matrix: _C.Matrix) -> tuple[int, int, int]:
    return matrix.batch_stride, matrix.row_stride, matrix.col_stride


# ---- gemm_gated -----------------------------------------------------------------------------------------------------


def test_gated_problem() -> None:
    checked = _C.check_gemm(A, WEIGHT, bias=desc(48), gated=True)
    problem = checked.problem
    assert (problem.m, problem.n, problem.k, problem.b_columns) == (8, 24, 64, 48)
    assert (problem.gated, problem.aux, problem.activation) == (True, False, "silu")
    assert (problem.b.major, strides_of(problem.b)) == ("k", (0, 1, 64))
    assert (problem.d.major, strides_of(problem.d)) == ("n", (0, 24, 1))
    assert (checked.d_sizes, checked.z_sizes) == ((8, 24), (8, 48))
    assert str(problem) == "M=8 N=24 K=64 bf16 kk -> bf16, bias, gated silu"


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "sigmoid", "tanh", "hardswish"])
def test_gated_takes_every_activation(activation: str) -> None:
    assert _C.check_gemm(A, WEIGHT, gated=True, activation=activation).problem.activation == activation


@pytest.mark.parametrize(
    ("b", "major", "strides"),
    [
        (desc(64, 48), "n", (0, 48, 1)),
        (desc(64, 48, strides=(56, 1)), "n", (0, 56, 1)),
        (desc(64, 48, strides=(1, 80)), "k", (0, 1, 80)),
        (desc(64, 48, strides=(128, 2)), "none", (0, 128, 2)),
        (desc(64, 2), "n", (0, 2, 1)),
        (desc(64, 2, strides=(1, 64)), "k", (0, 1, 64)),
    ],
)
def test_layout_of_a_gated_b(b: _C.TensorDesc, major: str, strides: tuple[int, int, int]) -> None:
    problem = _C.check_gemm(A, b, gated=True).problem
    assert (problem.b.major, strides_of(problem.b)) == (major, strides)
    assert 2 * problem.n == problem.b_columns


@pytest.mark.parametrize(
    ("a", "m"),
    [
        (desc(2, 8, 64), 16),
        (desc(2, 8, 64, strides=(800, 100, 1)), 16),
        (desc(5, 1, 64, strides=(96, 3, 1)), 5),
        (desc(1, 8, 64, strides=(7, 64, 1)), 8),
    ],
)
def test_gated_folds_a_batch(a: _C.TensorDesc, m: int) -> None:
    checked = _C.check_gemm(a, WEIGHT, gated=True, aux=True)
    assert (checked.problem.batch, checked.problem.m) == (1, m)
    assert (checked.d_sizes[-1], checked.z_sizes[-1]) == (24, 48)
    assert len(checked.d_sizes) == len(checked.z_sizes) == 3


@pytest.mark.parametrize(("m", "columns"), [(0, 48), (8, 0), (0, 0)])
def test_gated_of_nothing(m: int, columns: int) -> None:
    checked = _C.check_gemm(desc(m, 64), desc(64, columns), gated=True, aux=True)
    assert checked.empty
    assert (checked.d_sizes, checked.z_sizes) == ((m, columns // 2), (m, columns))


def test_gated_without_k_reads_only_the_bias() -> None:
    problem = _C.check_gemm(desc(8, 0), desc(0, 48), bias=desc(48), gated=True).problem
    assert (problem.k, problem.alpha, problem.n) == (0, "zero", 24)


@pytest.mark.parametrize(
    ("kwargs", "error", "sentence"),
    [
        ({"b": desc(64, 47)}, ValueError, "b: has 47 columns, an odd number, but a is"),
        ({"b": desc(2, 64, 48)}, ValueError, "b: is 3-D, shape (2, 64, 48), but a is"),
        ({"b": desc(64)}, ValueError, "b: is 1-D, shape (64,), but a is"),
        ({"a": desc(2, 2, 8, 64)}, ValueError, "a: is 4-D, shape (2, 2, 8, 64), but a is"),
        ({"a": desc(8, 63)}, ValueError, "b: K is 64 but a has K = 63"),
        ({"a": desc(2, 8, 64, strides=(2000, 64, 1))}, RuntimeError, "a: shape (2, 8, 64) has strides (2000, 64, 1)"),
        ({"bias": desc(24)}, ValueError, "bias: shape is (24,) but it must be (2 N,) = (48,)"),
        ({"bias": desc(48, dtype="f16")}, ValueError, "bias: dtype is float16"),
        ({"c": desc(8, 24)}, ValueError, "c: gemm_gated takes none"),
        ({"out": desc(8, 24)}, ValueError, "out: gemm_gated takes none"),
        ({"beta": 0.5}, ValueError, "beta: is 0.5 but there is no c"),
        ({"scale_a": desc(1, dtype="f32")}, RuntimeError, "scale_a: scale tensors are not supported"),
        ({"activation": "swiglu"}, ValueError, "activation: 'swiglu' is unknown"),
        ({"activation": "clamp"}, ValueError, "activation_args: has 0 values"),
        ({"out_dtype": "f16"}, RuntimeError, "out_dtype: is float16"),
        ({"kernel": "none_such"}, ValueError, "kernel: there is no 'none_such'"),
    ],
)
def test_gated_refuses(kwargs: dict[str, Any], error: type[Exception], sentence: str) -> None:
    arguments = {"a": A, "b": WEIGHT} | kwargs
    with pytest.raises(error) as raised:
        _C.check_gemm(**arguments, gated=True)
    text = str(raised.value)
    assert type(raised.value) is error
    assert text.startswith(sentence)
    assert ". " not in text  # one sentence


# ---- the pre-activation ---------------------------------------------------------------------------------------------


def test_aux_problem() -> None:
    checked = _C.check_gemm(desc(2, 8, 64), desc(2, 64, 48), aux=True, activation="gelu")
    assert (checked.problem.batch, checked.problem.aux, checked.problem.gated) == (2, True, False)
    assert checked.z_sizes == checked.d_sizes == (2, 8, 48)
    assert str(checked.problem).endswith("gelu, aux")
    assert _C.check_gemm(A, WEIGHT, c=desc(8, 48), beta=0.5, aux=True).problem.beta == "other"


def test_aux_takes_no_out() -> None:
    with pytest.raises(ValueError, match="out: gemm_aux takes none"):
        _C.check_gemm(A, WEIGHT, out=desc(8, 48), aux=True)


def test_forms_are_different_problems() -> None:
    problems = {
        _C.check_gemm(A, WEIGHT, activation="silu", gated=gated, aux=aux).problem
        for gated in (False, True)
        for aux in (False, True)
    }
    assert len(problems) == len({str(p) for p in problems}) == 4


# ---- two steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gated", "aux"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize(("columns", "pitch"), [(2, 2), (6, 8), (48, 48), (50, 52)])
def test_plain_problem(gated: bool, aux: bool, columns: int, pitch: int) -> None:
    b = desc(64, columns)
    terms: dict[str, Any] = {"bias": desc(columns), "alpha": 0.5, "numerics": "batch_invariant"}
    if not gated:
        terms |= {"c": desc(8, columns), "beta": 0.25}
    outer = _C.check_gemm(A, b, **terms, activation="gelu", gated=gated, aux=aux).problem
    plain = _C.plain_problem(outer)
    assert (plain.m, plain.n, plain.k, plain.activation) == (8, columns, 64, "none")
    assert not (plain.gated or plain.aux or plain.accumulate_in_place)
    assert (plain.d.dtype, plain.d.major, strides_of(plain.d)) == ("f32", "n", (0, pitch, 1))
    assert (plain.alpha, plain.beta, plain.numerics) == (outer.alpha, outer.beta, "batch_invariant")
    assert (plain.bias_dtype, plain.c.dtype, plain.b.major) == (outer.bias_dtype, outer.c.dtype, outer.b.major)


def test_plain_problem_of_a_batch() -> None:
    plain = _C.plain_problem(_C.check_gemm(desc(3, 8, 64), desc(3, 64, 50), aux=True).problem)
    assert strides_of(plain.d) == (8 * 52, 52, 1)


def test_plain_kernels_do_not_have_the_forms() -> None:
    for spec in _C.kernels():
        if spec.has_form:
            continue
        for gated, aux in ((True, False), (False, True)):
            dtype = spec.dtype_a if spec.dtype_a in ("f32", "f16", "bf16") else "bf16"
            a, b = desc(8, 64, dtype=dtype), desc(64, 48, dtype=dtype)
            problem = _C.check_gemm(a, b, gated=gated, aux=aux, kernel=spec.name).problem
            assert _C.supports(spec.name, problem, H200)
            assert not _C.form_supported(problem, H200)  # a plain kernel that is named takes two steps


def test_plain_products_take_one_step() -> None:
    assert _C.form_supported(_C.check_gemm(A, WEIGHT).problem, H200)


def test_kernels_of_a_form_stay_one_step() -> None:
    for spec in _C.kernels():
        if not spec.has_form:
            continue
        a, b = desc(8, 64, dtype=spec.dtype_a), desc(64, 48, dtype=spec.dtype_b)
        for gated, aux in ((True, False), (True, True), (False, True)):
            problem = _C.check_gemm(a, b, gated=gated, aux=aux, kernel=spec.name).problem
            assert _C.form_supported(problem, H200)
            if spec.gate_gradient or (gated, aux) != (spec.gated, spec.aux):
                assert _C.supports(spec.name, problem, H200)


# ---- the gradient of a gate -----------------------------------------------------------------------------------------

DOWN = desc(64, 48)  # (H, F) as a weight is stored
Z = desc(8, 96)


def test_gate_gradient_problem() -> None:
    checked = _C.check_gemm(A, DOWN, Z, gate_gradient=True, alpha=0.5)
    problem = checked.problem
    assert (problem.m, problem.n, problem.k, problem.b_columns, problem.d_columns) == (8, 48, 64, 48, 96)
    assert (checked.d_sizes, checked.d_dtype, problem.activation) == ((8, 96), "bf16", "silu")
    assert strides_of(problem.c) == strides_of(problem.d) == (0, 96, 1)
    assert str(problem) == "M=8 N=48 K=64 bf16 kn -> bf16, alpha, gradient of gate silu"
    padded = _C.check_gemm(A, DOWN, desc(8, 96, strides=(104, 1)), gate_gradient=True).problem
    assert "z[ld 104]" in str(padded)
    assert padded != problem
    assert _C.check_gemm(desc(8, 0), desc(0, 48), Z, gate_gradient=True).problem.k == 0


@pytest.mark.parametrize(
    ("a", "b", "z", "options", "sentence"),
    [
        (
            A,
            DOWN,
            None,
            {},
            "z: is missing, but the gradient of a gate is taken from it; pass what gemm_gated_aux kept",
        ),
        (
            A,
            DOWN,
            desc(8, 95),
            {},
            r"z: shape is \(8, 95\) but it must be \(M, 2 N\) = \(8, 96\), the columns gate | up",
        ),
        (A, DOWN, desc(7, 96), {}, r"z: shape is \(7, 96\) but it must be"),
        (A, DOWN, desc(8, 96, dtype="f32"), {}, "z: dtype is float32 but a's is bfloat16: both must be the same"),
        (A, DOWN, desc(2, 8, 96), {}, r"z: is 3-D, but the gradient of a gate takes a \(M, K\), b \(K, N\) and z"),
        (desc(2, 8, 64), DOWN, Z, {}, "a: is 3-D, but the gradient of a gate takes"),
        (A, DOWN, Z, {"beta": 0.0}, "gate_gradient: goes with no beta, bias, out, out_dtype, gated or aux"),
        (A, DOWN, Z, {"bias": desc(48)}, "gate_gradient: goes with no beta, bias"),
        (A, DOWN, Z, {"out_dtype": "f32"}, "gate_gradient: goes with no beta, bias"),
        (A, desc(63, 48), Z, {}, "b: K is 63 but a has K = 64"),
    ],
)
def test_wrong_gate_gradients(a: Any, b: Any, z: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("|", r"\|")):
        _C.check_gemm(a, b, z, gate_gradient=True, **options)


def kernels_of_gradients(dtype: str = "bf16") -> list[str]:
    return [spec.name for spec in _C.kernels() if spec.gate_gradient and spec.dtype_a == dtype]


def taken(problem: _C.Problem) -> set[bool]:
    return {_C.supports(name, problem, H200) == "" for name in kernels_of_gradients(problem.a.dtype)}


def test_gates_that_tma_moves_are_taken_and_no_others() -> None:
    for dtype in ("bf16", "f16"):
        a, b = desc(8, 64, dtype=dtype), desc(64, 48, dtype=dtype)
        for z, takes in (
            (desc(8, 96, dtype=dtype), True),
            (desc(8, 96, strides=(104, 1), dtype=dtype), True),
            (desc(8, 96, strides=(100, 1), dtype=dtype), False),
            (desc(8, 96, strides=(1, 8), dtype=dtype), False),
            (desc(8, 96, strides=(0, 1), dtype=dtype), False),
            (_C.TensorDesc(dtype, "cuda", 0, [8, 96], [96, 1], (1 << 40) + 8), False),
        ):
            assert taken(_C.check_gemm(a, b, z, gate_gradient=True).problem) == {takes}
    assert taken(_C.check_gemm(A, desc(64, 52), desc(8, 104), gate_gradient=True).problem) == {False}
    assert taken(_C.check_gemm(A, WEIGHT, Z, gate_gradient=True).problem) == {False}  # K-major
    assert taken(_C.check_gemm(A, DOWN).problem) == {False}
    reason = _C.supports(kernels_of_gradients()[0], _C.check_gemm(A, DOWN).problem, H200)
    assert reason == "computes the gradient of a gate only"


def test_plain_problem_of_a_gate_gradient() -> None:
    """What gemm and gated_backward would do: dH in D's dtype, in rows that start on 16 bytes."""
    for n, pitch in ((48, 48), (50, 56), (3, 3)):
        outer = _C.check_gemm(A, desc(64, n), desc(8, 2 * n), gate_gradient=True, alpha=0.5, activation="gelu").problem
        plain = _C.plain_problem(outer)
        assert (plain.m, plain.n, plain.k, plain.activation, plain.alpha) == (8, n, 64, "none", "other")
        assert (plain.c.dtype, plain.beta, plain.gate_gradient) == ("none", "zero", False)
        assert (plain.d.dtype, plain.d.major, strides_of(plain.d)) == ("bf16", "n", (0, pitch, 1))
    same = _C.plain_problem(_C.check_gemm(A, DOWN, Z, gate_gradient=True).problem)
    assert same == _C.check_gemm(A, DOWN).problem


# ---- backward ops ---------------------------------------------------------------------------------------------------


def test_backward_sizes() -> None:
    checked = _C.check_activation_backward(desc(8, 24), desc(8, 48), gated=True)
    assert (checked.dz_sizes, checked.columns, checked.dtype, checked.activation) == ((8, 48), 48, "bf16", "silu")
    checked = _C.check_activation_backward(desc(2, 8, 24, dtype="f32"), desc(2, 8, 24, dtype="f32"), activation="gelu")
    assert (checked.dz_sizes, checked.columns, checked.dtype, checked.activation) == ((2, 8, 24), 24, "f32", "gelu")
    assert _C.check_activation_backward(A, A, activation="leaky_relu").activation_args[0] == pytest.approx(0.01)


@pytest.mark.parametrize(
    "grad",
    [
        desc(2, 8, 24),
        desc(2, 8, 24, strides=(0, 0, 0)),
        desc(2, 8, 24, strides=(1, 2, 16)),
        desc(2, 8, 24, strides=(500, 30, 1)),
    ],
)
def test_backward_takes_any_strides(grad: _C.TensorDesc) -> None:
    assert _C.check_activation_backward(grad, desc(2, 8, 48), gated=True).dz_sizes == (2, 8, 48)


@pytest.mark.parametrize(
    ("grad", "saved", "kwargs", "error", "sentence"),
    [
        (desc(8, 63), A, {}, ValueError, "grad: shape is (8, 63) but saved's is (8, 64)"),
        (desc(8, 64), A, {"gated": True}, ValueError, "grad: shape is (8, 64) but z's is (8, 64)"),
        (desc(8, 23), desc(8, 47), {"gated": True}, ValueError, "z: has 47 columns, an odd number"),
        (desc(64), desc(64), {}, ValueError, "saved: is 1-D, shape (64,)"),
        (desc(1, 8, 64), A, {}, ValueError, "grad: shape is (1, 8, 64)"),
        (desc(8, 64, dtype="f32"), A, {}, ValueError, "grad: dtype is float32 but saved's is bfloat16"),
        (desc(8, 64, dtype="f64"), desc(8, 64, dtype="f64"), {}, RuntimeError, "saved: dtype is float64"),
        (desc(8, 64, device="cpu"), A, {}, ValueError, "grad: is on cpu but saved is on cuda:0"),
        (A, A, {"activation": "swish"}, ValueError, "activation: 'swish' is unknown"),
        (A, A, {"activation": "clamp"}, ValueError, "activation_args: has 0 values"),
        (A, A, {"activation": "relu", "activation_args": [1.0]}, ValueError, "activation_args: has 1 value"),
    ],
)
def test_backward_refuses(
    grad: _C.TensorDesc, saved: _C.TensorDesc, kwargs: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        _C.check_activation_backward(grad, saved, **kwargs)
    assert type(raised.value) is error
    assert str(raised.value).startswith(sentence)


# ---- errors of nested ops -------------------------------------------------------------------------------------------


def test_only_exceptions_are_kept() -> None:
    with pytest.raises(TypeError, match="error: must be an exception"):
        _C.keep_error("no exception")  # type: ignore[arg-type]
    _C.keep_error(ValueError("nobody waits for it"))
