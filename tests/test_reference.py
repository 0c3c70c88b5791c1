"""The reference: hand-computed cases, activations against torch's own, and a bound that is neither loose nor tight."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmx import reference

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
NAN, INF = math.nan, math.inf
DTYPES = [F32, F16, BF16]


def full(*shape: int, value: float = 1.0, dtype: torch.dtype = F32) -> Tensor:
    return torch.full(shape, value, dtype=dtype)


def normal(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=F64).to(dtype)


def assert_all(d: Tensor, value: float) -> None:
    assert torch.equal(d, torch.full_like(d, value)), d


# ---- what is computed -------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    b = torch.tensor([[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]])
    c = torch.tensor([[1.0], [-100.0]])
    bias = torch.tensor([0.5, 0.0, -0.5])
    d = reference.gemm(a, b, c, bias, alpha=2.0, beta=3.0, activation="relu")
    # 2 * [[21, 24, 27], [47, 54, 61]] + 3 * c + bias
    assert torch.equal(d, torch.tensor([[45.5, 51.0, 56.5], [0.0, 0.0, 0.0]]))


def test_batches_and_shared_operands() -> None:
    a, b = normal(3, 4, 5), normal(3, 5, 6)
    d = reference.gemm(a, b)
    for i in range(3):
        assert torch.equal(d[i], reference.gemm(a[i], b[i]))
        assert torch.equal(reference.gemm(a, b[0])[i], reference.gemm(a[i], b[0]))
        assert torch.equal(reference.gemm(a[0], b)[i], reference.gemm(a[0], b[i]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_sum_is_zero(dtype: torch.dtype) -> None:
    """K = 0, whatever alpha is (B01, B02)."""
    a, b = torch.empty(10, 1, 0, dtype=dtype), torch.empty(10, 0, 7, dtype=dtype)
    bias = normal(7, dtype=dtype)
    assert_all(reference.gemm(a, b), 0.0)
    assert_all(reference.gemm(a, b, alpha=NAN), 0.0)
    assert torch.equal(reference.gemm(a, b, bias=bias), bias.expand(10, 1, 7))
    assert torch.equal(reference.gemm(a, b, bias=bias, activation="relu"), bias.relu().expand(10, 1, 7))
    c = full(7, value=4.0, dtype=dtype)
    assert_all(reference.gemm(a, b, c, alpha=NAN, beta=0.5), 2.0)
    assert_all(reference.gemm(a, b, full(7, value=NAN, dtype=dtype), beta=0.0), 0.0)
    assert reference.gemm(a[:0], b[:0]).shape == (0, 1, 7)


@pytest.mark.parametrize("value", [NAN, INF])
def test_beta_zero_leaves_c_unread(value: float) -> None:
    """B06."""
    a, b = normal(1, 64, 128, dtype=BF16), normal(1, 128, 96, dtype=BF16)
    d = reference.gemm(a, b, full(1, 1, 1, value=value, dtype=BF16), alpha=0.088, beta=0.0)
    assert torch.equal(d, reference.gemm(a, b, alpha=0.088))


@pytest.mark.parametrize("shape", [(1, 4, 4), (64, 64, 64)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_alpha_zero_leaves_a_and_b_unread(shape: tuple[int, int, int], batch: tuple[int, ...]) -> None:
    """B07."""
    m, n, k = shape
    c = normal(*batch, m, n)
    assert torch.equal(reference.gemm(full(*batch, m, k, value=NAN), full(*batch, k, n, value=INF), c, alpha=0.0), c)


def test_alpha_that_rounds_to_zero_is_zero() -> None:
    """Scalars act as float32, in which 2^-160 is 0."""
    assert_all(reference.gemm(full(2, 2, value=NAN), full(2, 2), alpha=2.0**-160), 0.0)


def test_scalars_act_as_float32() -> None:
    a = b = full(1, 1)
    assert reference.gemm(a, b, alpha=0.1, out_dtype=F64).item() == torch.tensor(0.1, dtype=F32).item()
    assert reference.gemm(a, b, full(1, 1), beta=0.1, alpha=0.0, out_dtype=F64).item() == torch.tensor(0.1).item()


def test_c_broadcasts_but_never_enlarges() -> None:
    """B08."""
    a, b = normal(3, 4), normal(4, 11)
    for shape in ((), (1,), (11,), (3, 1), (1, 11), (3, 11)):
        c = normal(*shape)
        assert torch.allclose(reference.gemm(a, b, c), a @ b + c, atol=1e-5)
    with pytest.raises(RuntimeError):
        reference.gemm(normal(1, 4), normal(4, 1), normal(500, 1))


def test_accumulator_is_not_rounded_before_alpha() -> None:
    """B10: 16 * 8 * 1024 = 131072 is beyond float16."""
    a, b = full(4, 1024, value=16.0, dtype=F16), full(1024, 8, value=8.0, dtype=F16)
    assert_all(reference.gemm(a, b, alpha=1 / 256), 512.0)


def test_slices_of_k_are_not_rounded() -> None:
    """B27 (b): the halves of the sum are +131072 and -131071."""
    a = full(1, 4096, value=8.0, dtype=F16)
    b = torch.cat([full(2048, 1, value=8.0), full(2048, 1, value=-8.0)]).to(F16)
    b[-1] = -7.875
    assert_all(reference.gemm(a, b), 1.0)


def test_subnormal_numbers_survive() -> None:
    """B35."""
    tiny = full(1, 16, value=2.0**-65, dtype=BF16)
    assert reference.gemm(tiny, tiny.t(), out_dtype=F32).item() == 2.0**-126
    assert reference.gemm(full(1, 1, value=2.0**-24, dtype=F16), full(1, 1, dtype=F16)).item() == 2.0**-24


def test_float32_products_are_exact() -> None:
    """B28: tf32 would make half of these wrong."""
    row = torch.arange(8192, dtype=F32).view(1, -1)
    assert torch.equal(reference.gemm(full(1, 1), row), row)


# ---- the last rounding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (BF16, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),  # by way of float32 this is the tie 1 + 2^-8, which goes to 1
        (BF16, 1 + 2.0**-8 - 2.0**-40, 1.0),
        (BF16, 1 + 2.0**-8, 1.0),
        (BF16, -(1 + 3 * 2.0**-8), -(1 + 2.0**-6)),
        (F16, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10),
        (F16, 65520 - 2.0**-20, 65504.0),
        (F16, 65520.0, INF),
        (F16, 2.0**-25 + 2.0**-60, 2.0**-24),
        (F16, 2.0**-25, 0.0),
        (BF16, 1e300, INF),
        (BF16, -INF, -INF),
        (F32, 1 + 2.0**-24, 1.0),
    ],
)
def test_rounds_once(dtype: torch.dtype, value: float, expected: float) -> None:
    assert reference.round_to(torch.tensor([value], dtype=F64), dtype).item() == expected


def test_rounding_keeps_nan() -> None:
    for dtype in DTYPES:
        assert reference.round_to(torch.tensor([NAN, -NAN], dtype=F64), dtype).isnan().all()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_rounding_goes_to_the_nearest(dtype: torch.dtype) -> None:
    exact = normal(4096, dtype=F64)
    rounded = reference.round_to(exact, dtype)
    error = (rounded.double() - exact).abs()
    for toward in (INF, -INF):
        # The neighbours of a 16-bit number, by its bits.
        step = 1 if toward > 0 else -1
        neighbour = (rounded.view(torch.int16) + step).view(dtype).double()
        assert (error <= (neighbour - exact).abs()).all()


# ---- activations ------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[list[float] | None, Any]] = {
    "none": (None, lambda z: z),
    "relu": (None, torch.relu),
    "gelu": (None, torch.nn.functional.gelu),
    "gelu_tanh": (None, lambda z: torch.nn.functional.gelu(z, approximate="tanh")),
    "silu": (None, torch.nn.functional.silu),
    "sigmoid": (None, torch.sigmoid),
    "tanh": (None, torch.tanh),
    "hardswish": (None, torch.nn.functional.hardswish),
    "leaky_relu": ([0.25], lambda z: torch.nn.functional.leaky_relu(z, 0.25)),
    "clamp": ([-0.5, 2.0], lambda z: z.clamp(-0.5, 2.0)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_torchs(name: str) -> None:
    args, torchs = ACTIVATIONS[name]
    z = torch.linspace(-12, 12, 4801, dtype=F64)
    assert torch.allclose(reference.activate(z, name, args), torchs(z), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_nan(name: str) -> None:
    assert reference.activate(torch.tensor([NAN], dtype=F64), name, ACTIVATIONS[name][0]).isnan().all()


def test_default_slope_is_torchs() -> None:
    z = torch.tensor([-3.0], dtype=F64)
    assert reference.activate(z, "leaky_relu").item() == -3 * torch.tensor(0.01, dtype=F32).item()


def test_gelu_is_the_erf_form() -> None:
    """B12: the two forms differ most at -2.699."""
    z = torch.tensor([[-2.699]])
    one = full(1, 1)
    assert reference.gemm(z, one, activation="gelu").item() == pytest.approx(-0.009387, abs=2e-6)
    assert reference.gemm(z, one, activation="gelu_tanh").item() == pytest.approx(-0.008914, abs=2e-6)


def test_unknown_activation() -> None:
    with pytest.raises(ValueError, match=r"^activation: 'swish' is unknown$"):
        reference.activate(full(1), "swish")


# ---- the bound --------------------------------------------------------------------------------------------------


def accumulate(a: Tensor, b: Tensor, accumulator: torch.dtype) -> Tensor:
    """A @ B with products in float32 and sums in the accumulator's type, K ascending."""
    z = torch.zeros(a.shape[0], b.shape[1], dtype=accumulator)
    for k in range(a.shape[1]):
        z = (z.float() + a[:, k : k + 1].float() * b[k : k + 1].float()).to(accumulator)
    return z.float()


def check(a: Tensor, b: Tensor, d: Tensor, **options: Any) -> Tensor:
    exact = reference.gemm(a, b, **options, out_dtype=F64)
    return reference.outside_bound(d, exact, reference.error_bound(a, b, **options, out_dtype=d.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_float32_accumulation_keeps_the_bound(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    a, b = normal(16, 700, dtype=dtype), normal(700, 24, dtype=dtype)
    assert not check(a, b, accumulate(a, b, F32).to(out_dtype)).any()


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_16_bit_accumulation_breaks_the_bound(dtype: torch.dtype) -> None:
    """B27 (a): with a float32 D nearly all elements show it, with a 16-bit one many do."""
    a, b = normal(16, 700, dtype=dtype), normal(700, 24, dtype=dtype)
    d = accumulate(a, b, dtype)
    assert check(a, b, d).float().mean() > 0.5
    assert check(a, b, d.to(dtype)).any()


def test_tf32_breaks_the_ieee_bound_and_keeps_its_own() -> None:
    a, b = normal(16, 64), normal(64, 24)

    def tf32(x: Tensor) -> Tensor:
        return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(F32)

    d = accumulate(tf32(a), tf32(b), F32)
    exact = reference.gemm(a, b, out_dtype=F64)
    assert reference.outside_bound(d, exact, reference.error_bound(a, b, precision="ieee")).any()
    assert not reference.outside_bound(d, exact, reference.error_bound(a, b, precision="tf32")).any()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_float32_epilogue_keeps_the_bound(name: str, out_dtype: torch.dtype) -> None:
    a, b, c, bias = normal(32, 96), normal(96, 40), normal(32, 40), normal(40)
    args, torchs = ACTIVATIONS[name]
    options: dict[str, Any] = {"alpha": 0.3, "beta": -1.7, "activation": name, "activation_args": args}
    z = 0.3 * accumulate(a, b, F32) + -1.7 * c + bias
    exact = reference.gemm(a, b, c, bias, **options, out_dtype=F64)
    bound = reference.error_bound(a, b, c, bias, **options, out_dtype=out_dtype)
    assert not reference.outside_bound(torchs(z).to(out_dtype), exact, bound).any()
    assert reference.outside_bound(torchs(z + 0.5).to(out_dtype), exact, bound).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_wrong_element_is_caught(dtype: torch.dtype) -> None:
    """One product of 4096 left out, in one element, is beyond the bound."""
    a, b = normal(8, 4096, dtype=dtype), normal(4096, 8, dtype=dtype)
    d = reference.gemm(a, b, out_dtype=F32)
    assert not check(a, b, d).any()
    d[3, 5] -= a[3, 17].float() * b[17, 5].float()
    wrong = check(a, b, d)
    assert wrong.sum() == 1
    assert wrong[3, 5]


def test_bound_by_hand() -> None:
    """Every term of the formula once; |A| @ |B| is not |A @ B|."""
    a = torch.tensor([[3.0, -4.0]])
    b = torch.tensor([[2.0], [1.0]])
    c, bias = torch.tensor([[-5.0]]), torch.tensor([0.5])
    d, z = 0.0, 2.0 * 2 + 2 * -5.0 + 0.5
    bound = reference.error_bound(a, b, c, bias, alpha=2.0, beta=2.0, activation="relu", out_dtype=BF16)
    expected = 2.0**-8 * d + (2 * 2.0**-24 + 2.0**-22) * 2 * 10 + 2.0**-22 * (10 + 0.5) + 2.0**-21 * (abs(z) + d)
    assert bound.item() == pytest.approx(expected, rel=1e-12)
    tf32 = reference.error_bound(a, b, precision="tf32", activation="leaky_relu", activation_args=[-3.0])
    expected = 2.0**-24 * 2 + 3 * (2 * 2.0**-24 + 2.0**-22 + 2.0**-9) * 10 + 2.0**-21 * (2 + 2)
    assert tf32.item() == pytest.approx(expected, rel=1e-12)


def test_bound_leaves_out_what_is_not_read() -> None:
    a, b, c = full(2, 3, value=NAN), full(3, 2), full(2, 2, value=NAN)
    assert reference.error_bound(a, b, alpha=0.0).isfinite().all()
    assert reference.error_bound(full(2, 3), b, c, beta=0.0).isfinite().all()
    assert_all(reference.error_bound(a, b, alpha=0.0), reference.tiny(F32, 3, alpha=0.0))


def test_infinities_and_nan_of_d() -> None:
    exact = torch.tensor([70000.0, 65519.9, -70000.0, INF, NAN, NAN, 1.0, 1.0], dtype=F64)
    d = torch.tensor([INF, INF, INF, INF, NAN, 1.0, NAN, INF], dtype=F16)
    bound = torch.full_like(exact, 1.0)
    assert reference.outside_bound(d, exact, bound).tolist() == [False, False, True, False, False, True, True, True]
