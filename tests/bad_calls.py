"""Wrong calls of gemm and gemm_out: what each gets to read.

One table for every path: `_C.check_gemm`, the CPU op and the fakes (test_checks.py) and CUDA (gpu/test_bad_calls.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
M, N, K = 3, 4, 5


def rand(*shape: int, device: str, dtype: torch.dtype = BF16) -> Tensor:
    """Ones, since torch has no random numbers of some dtypes that a wrong call can have."""
    return torch.ones(shape, device=device).to(dtype)


@dataclass(frozen=True)
class Call:
    """A call with bfloat16 a (3, 5) and b (5, 4), but for what is named. `out` makes it a gemm_out."""

    kwargs: dict[str, Any]
    a: Tensor
    b: Tensor

    @property
    def is_out(self) -> bool:
        return "out" in self.kwargs


def call(device: str, **kwargs: Any) -> Call:
    a = kwargs.pop("a", None)
    b = kwargs.pop("b", None)
    return Call(
        kwargs,
        rand(M, K, device=device) if a is None else a,
        rand(K, N, device=device) if b is None else b,
    )


@dataclass(frozen=True)
class BadCall:
    """`sentence` is the whole message; "…" in it stands for text that differs between builds."""

    id: str
    sentence: str
    build: Callable[[str], dict[str, Any]]
    error: type[Exception] = ValueError
    needs_memory: bool = field(default=False)  # decided by addresses, which a fake tensor does not have

    def make(self, device: str) -> Call:
        return call(device, **self.build(device))

    def matches(self, message: str, device: str) -> bool:
        sentence = self.sentence.replace("{device}", "cuda:0" if device == "cuda" else device)
        return re.fullmatch(".+".join(map(re.escape, sentence.split("…"))), message) is not None


SHAPES = "a is (M, K) or (batch, M, K) and b is (K, N) or (batch, K, N)"
INPUTS = "but gemm takes float32, float16 and bfloat16; convert a and b to one of them"
SELF_OVERLAP = (
    "out: its strides put several elements, or cannot be shown not to put them, at one address; "
    "give an out whose elements are distinct, not an expanded one"
)


def shares(name: str) -> str:
    return (
        f"out: shares memory with {name}, or cannot be shown not to; out may be exactly c and otherwise "
        "must not overlap an input: give it memory of its own"
    )


def tensor(name: str, *shape: int, dtype: torch.dtype = BF16) -> Callable[[str], dict[str, Any]]:
    return lambda device: {name: rand(*shape, device=device, dtype=dtype)}


def value(**kwargs: Any) -> Callable[[str], dict[str, Any]]:
    return lambda device: kwargs


def both(dtype: torch.dtype) -> Callable[[str], dict[str, Any]]:
    return lambda device: {"a": rand(M, K, device=device, dtype=dtype), "b": rand(K, N, device=device, dtype=dtype)}


def with_c(**kwargs: Any) -> Callable[[str], dict[str, Any]]:
    return lambda device: {"c": rand(M, N, device=device), **kwargs}


def float32_inputs(**kwargs: Any) -> Callable[[str], dict[str, Any]]:
    return lambda device: {**both(F32)(device), **kwargs}


def huge(device: str) -> dict[str, Any]:
    one = rand(1, 1, device=device)
    return {"a": one.expand(2**31, 2**30), "b": one.expand(2**30, 2)}


def out_is_a(device: str) -> dict[str, Any]:
    a = rand(M, M, device=device)
    return {"a": a, "b": rand(M, M, device=device), "out": a}


def out_is_b(device: str) -> dict[str, Any]:
    b = rand(M, M, device=device)
    return {"a": rand(M, M, device=device), "b": b.t(), "out": b}


def out_is_half_a(device: str) -> dict[str, Any]:
    storage = rand(2 * M, M, device=device)
    return {"a": storage[:M], "b": rand(M, M, device=device), "out": storage[1 : M + 1]}


def out_is_shifted_c(device: str) -> dict[str, Any]:
    storage = rand(M * N + 1, device=device)
    return {"c": storage[: M * N].view(M, N), "out": storage[1:].view(M, N)}


def out_is_transposed_c(device: str) -> dict[str, Any]:
    c = rand(M, M, device=device)
    return {"a": rand(M, K, device=device), "b": rand(K, M, device=device), "c": c, "out": c.t()}


def out_is_row_of_c(device: str) -> dict[str, Any]:
    """C is one row of out, broadcast: rows of D would be read after they are written."""
    out = rand(M, N, device=device)
    return {"c": out[0], "out": out}


def out_holds_bias(device: str) -> dict[str, Any]:
    out = rand(M, N, device=device)
    return {"bias": out[1], "out": out}


def out_is_undecidable(device: str) -> dict[str, Any]:
    """Columns of two different row strides: here apart, but not by a rule that always holds."""
    storage = rand(200, device=device)
    return {"a": storage.as_strided((M, K), (20, 1)), "out": storage.as_strided((M, N), (23, 1), 8)}


def overlapping_windows(device: str) -> dict[str, Any]:
    return {"out": rand(20, device=device).as_strided((M, N), (2, 1))}


BAD_CALLS: tuple[BadCall, ...] = (
    # a and b: dimensions
    BadCall(
        "a-scalar",
        f"a: is 0-D, shape (), but {SHAPES}; unsqueeze a vector to a matrix",
        tensor("a"),
    ),
    BadCall(
        "a-vector",
        f"a: is 1-D, shape (5,), but {SHAPES}; unsqueeze a vector to a matrix",
        tensor("a", K),
    ),
    BadCall(
        "b-vector",
        f"b: is 1-D, shape (5,), but {SHAPES}; unsqueeze a vector to a matrix",
        tensor("b", K),
    ),
    BadCall(
        "a-4d",
        f"a: is 4-D, shape (2, 2, 3, 5), but {SHAPES}; gemmx.gemm folds leading dimensions",
        tensor("a", 2, 2, M, K),
    ),
    BadCall(
        "b-4d",
        f"b: is 4-D, shape (1, 1, 5, 4), but {SHAPES}; gemmx.gemm folds leading dimensions",
        tensor("b", 1, 1, K, N),
    ),
    BadCall(
        "weight-not-transposed",
        f"b: K is 4 but a has K = 5: {SHAPES}; for a weight stored (N, K) pass weight.t()",
        tensor("b", N, K),
    ),
    BadCall(
        "k-differs-batched",
        f"b: K is 6 but a has K = 5: {SHAPES}; for a weight stored (N, K) pass weight.t()",
        lambda d: {"a": rand(2, M, K, device=d), "b": rand(2, 6, N, device=d)},
    ),
    BadCall(
        "k-differs-empty",
        f"b: K is 5 but a has K = 0: {SHAPES}; for a weight stored (N, K) pass weight.t()",
        tensor("a", M, 0),
    ),
    BadCall(
        "batch-differs",
        f"b: batch is 3 but a has batch = 2: {SHAPES}; pass a 2-D operand to share it between batches",
        lambda d: {"a": rand(2, M, K, device=d), "b": rand(3, K, N, device=d)},
    ),
    BadCall(
        "batch-of-one-does-not-broadcast",
        f"b: batch is 1 but a has batch = 2: {SHAPES}; pass a 2-D operand to share it between batches",
        lambda d: {"a": rand(2, M, K, device=d), "b": rand(1, K, N, device=d)},
    ),
    BadCall(
        "too-large",
        "a, b: batch = 1, M = 2147483648, N = 2, K = 1073741824 make an operand of more than 2^63 bytes; "
        "split the call",
        huge,
    ),
    # a and b: dtypes
    *(
        BadCall(f"a-{name}", f"a: dtype is {printed} {INPUTS}", both(dtype), RuntimeError)
        for name, printed, dtype in (
            ("float64", "float64", torch.float64),
            ("float8_e4m3fn", "float8_e4m3fn", torch.float8_e4m3fn),
            ("float8_e5m2", "float8_e5m2", torch.float8_e5m2),
            ("uint8", "uint8", torch.uint8),
            ("int8", "int8", torch.int8),
            ("int16", "int16", torch.int16),
            ("int32", "int32", torch.int32),
            ("int64", "int64", torch.int64),
            ("bool", "bool", torch.bool),
            ("complex64", "complex64", torch.complex64),
            ("complex128", "of a type unknown to gemmx", torch.complex128),
        )
    ),
    BadCall("b-int8", f"b: dtype is int8 {INPUTS}", tensor("b", K, N, dtype=torch.int8), RuntimeError),
    BadCall(
        "dtypes-differ",
        "b: dtype is float16 but a's is bfloat16: both must be the same; convert one with .to(dtype)",
        tensor("b", K, N, dtype=F16),
    ),
    # devices
    *(
        BadCall(
            f"{name}-elsewhere",
            f"{name}: is on meta but a is on {{device}}: all tensors of a call must be on one device; "
            f"move {name} with .to(a.device)",
            lambda device, name=name, shape=shape: tensor(name, *shape)("meta"),  # type: ignore[misc]
        )
        for name, shape in (("b", (K, N)), ("c", (M, N)), ("bias", (N,)), ("out", (M, N)))
    ),
    # D's dtype
    BadCall(
        "out_dtype-float16-of-bfloat16",
        "out_dtype: is float16 but bfloat16 inputs give bfloat16 or float32; convert D after the call",
        value(out_dtype=F16),
        RuntimeError,
    ),
    BadCall(
        "out_dtype-float64",
        "out_dtype: is float64 but bfloat16 inputs give bfloat16 or float32; convert D after the call",
        value(out_dtype=torch.float64),
        RuntimeError,
    ),
    BadCall(
        "out_dtype-int8",
        "out_dtype: is int8 but bfloat16 inputs give bfloat16 or float32; convert D after the call",
        value(out_dtype=torch.int8),
        RuntimeError,
    ),
    BadCall(
        "out_dtype-narrower",
        "out_dtype: is bfloat16 but float32 inputs give float32; convert D after the call",
        float32_inputs(out_dtype=BF16),
        RuntimeError,
    ),
    BadCall(
        "out-float64",
        "out: dtype is float64 but float32 inputs give float32; convert D after the call",
        lambda d: {**both(F32)(d), "out": rand(M, N, device=d, dtype=torch.float64)},
        RuntimeError,
    ),
    # c and beta
    BadCall(
        "c-other-shape",
        "c: shape is (7,) but it must broadcast to D's shape (3, 4) without enlarging it",
        tensor("c", 7),
    ),
    BadCall(
        "c-other-shape-unread",
        "c: shape is (7,) but it must broadcast to D's shape (3, 4) without enlarging it",
        lambda d: {"c": rand(7, device=d), "beta": 0.0},
    ),
    BadCall(
        "c-enlarges-rows",
        "c: shape is (500, 1) but it must broadcast to D's shape (1, 1) without enlarging it",
        lambda d: {"a": rand(1, K, device=d), "b": rand(K, 1, device=d), "c": rand(500, 1, device=d)},
    ),
    BadCall(
        "c-more-dimensions",
        "c: shape is (1, 3, 4) but it must broadcast to D's shape (3, 4) without enlarging it",
        tensor("c", 1, M, N),
    ),
    BadCall(
        "c-other-batch",
        "c: shape is (3, 3, 4) but it must broadcast to D's shape (2, 3, 4) without enlarging it",
        lambda d: {"a": rand(2, M, K, device=d), "c": rand(3, M, N, device=d)},
    ),
    BadCall(
        "c-float16",
        "c: dtype is float16 but for a D of bfloat16 it takes bfloat16 or float32; convert it with .to(dtype)",
        tensor("c", M, N, dtype=F16),
    ),
    BadCall(
        "c-narrower-than-D",
        "c: dtype is bfloat16 but for a D of float32 it takes float32; convert it with .to(dtype)",
        with_c(out_dtype=F32),
    ),
    BadCall(
        "beta-without-c", "beta: is 0.5 but there is no c for it to scale; pass c, or leave beta at 1", value(beta=0.5)
    ),
    BadCall(
        "beta-0-without-c", "beta: is 0 but there is no c for it to scale; pass c, or leave beta at 1", value(beta=0.0)
    ),
    BadCall(
        "beta-beyond-float32",
        "beta: is 1e+300, beyond float32, in which it is applied; its magnitude must be at most 3.4e38",
        with_c(beta=1e300),
    ),
    BadCall(
        "alpha-beyond-float32",
        "alpha: is -1e+39, beyond float32, in which it is applied; its magnitude must be at most 3.4e38",
        value(alpha=-1e39),
    ),
    # bias
    BadCall(
        "bias-matrix",
        "bias: shape is (1, 4) but it must be (N,) = (4,): one value a column of D; pass another shape as c",
        tensor("bias", 1, N),
    ),
    BadCall(
        "bias-a-value-a-row",
        "bias: shape is (3,) but it must be (N,) = (4,): one value a column of D; pass another shape as c",
        tensor("bias", M),
    ),
    BadCall(
        "bias-scalar",
        "bias: shape is () but it must be (N,) = (4,): one value a column of D; pass another shape as c",
        tensor("bias"),
    ),
    BadCall(
        "bias-float16",
        "bias: dtype is float16 but for an a of bfloat16 it takes bfloat16 or float32; convert it with .to(dtype)",
        tensor("bias", N, dtype=F16),
    ),
    # activation
    BadCall(
        "activation-unknown",
        "activation: 'swish' is unknown; it is one of none, relu, gelu, gelu_tanh, silu, sigmoid, tanh, hardswish, "
        "leaky_relu, clamp",
        value(activation="swish"),
    ),
    BadCall(
        "activation-capitals",
        "activation: 'ReLU' is unknown; it is one of none, relu, gelu, gelu_tanh, silu, sigmoid, tanh, hardswish, "
        "leaky_relu, clamp",
        value(activation="ReLU"),
    ),
    BadCall(
        "args-without-activation",
        "activation_args: has 1 value but activation 'none' takes none",
        value(activation_args=[0.5]),
    ),
    BadCall(
        "args-of-relu",
        "activation_args: has 2 values but activation 'relu' takes none",
        value(activation="relu", activation_args=[0.0, 6.0]),
    ),
    BadCall(
        "leaky_relu-two-args",
        "activation_args: has 2 values but activation 'leaky_relu' takes at most one, the slope",
        value(activation="leaky_relu", activation_args=[0.1, 0.2]),
    ),
    BadCall(
        "clamp-no-args",
        "activation_args: has 0 values but activation 'clamp' takes exactly two, lo and hi",
        value(activation="clamp"),
    ),
    BadCall(
        "clamp-one-arg",
        "activation_args: has 1 value but activation 'clamp' takes exactly two, lo and hi",
        value(activation="clamp", activation_args=[1.0]),
    ),
    BadCall(
        "clamp-reversed",
        "activation_args: lo = 1 and hi = -1 but clamp needs lo <= hi and no NaN",
        value(activation="clamp", activation_args=[1.0, -1.0]),
    ),
    BadCall(
        "clamp-nan",
        "activation_args: lo = nan and hi = 1 but clamp needs lo <= hi and no NaN",
        value(activation="clamp", activation_args=[math.nan, 1.0]),
    ),
    BadCall(
        "clamp-beyond-float32",
        "activation_args: is 1e+300, beyond float32, in which it is applied; its magnitude must be at most 3.4e38",
        value(activation="clamp", activation_args=[0.0, 1e300]),
    ),
    # precision, numerics
    BadCall(
        "precision-unknown", "precision: 'fp32' is unknown; it is one of ieee, tf32", float32_inputs(precision="fp32")
    ),
    BadCall(
        "tf32-of-bfloat16",
        "precision: 'tf32' is for float32 inputs but a is bfloat16; leave precision None",
        value(precision="tf32"),
    ),
    BadCall(
        "3xtf32",
        "precision: '3xtf32' is not supported; use ieee for float32 accuracy or tf32 for speed",
        float32_inputs(precision="3xtf32"),
        RuntimeError,
    ),
    BadCall(
        "numerics-unknown",
        "numerics: 'exact' is unknown; it is one of deterministic, batch_invariant",
        value(numerics="exact"),
    ),
    BadCall(
        "batch_invariant-float32",
        "numerics: 'batch_invariant' takes float16 and bfloat16 but a is float32, whose kernels promise no order of "
        "summing that holds for every M; convert a and b, or leave numerics None",
        float32_inputs(numerics="batch_invariant"),
        RuntimeError,
    ),
    BadCall(
        "batch_invariant-stream_k",
        "schedule: is 'stream_k', which cuts K where the number of tiles says, but numerics 'batch_invariant' takes "
        "cuts that do not depend on M; leave schedule None",
        value(numerics="batch_invariant", schedule="stream_k"),
    ),
    BadCall(
        "batch_invariant-splits",
        "splits: is 2 but numerics 'batch_invariant' cuts this K into 1 for every M; leave splits 0",
        value(numerics="batch_invariant", splits=2),
    ),
    # schedule, splits, kernel
    BadCall(
        "schedule-unknown",
        "schedule: 'splitk' is unknown; it is one of auto, data_parallel, split_k, stream_k",
        value(schedule="splitk"),
    ),
    BadCall(
        "splits-negative",
        "splits: is -1 but must be from 0, the selector's choice, to 2147483647",
        value(splits=-1),
    ),
    BadCall(
        "splits-too-many",
        "splits: is 2147483648 but must be from 0, the selector's choice, to 2147483647",
        value(splits=2**31),
    ),
    BadCall(
        "splits-of-data_parallel",
        "splits: is 4 but schedule 'data_parallel' does not split K that way; leave splits 0, or ask for schedule "
        "'split_k'",
        value(splits=4, schedule="data_parallel"),
    ),
    BadCall(
        "splits-of-stream_k",
        "splits: is 2 but schedule 'stream_k' does not split K that way; leave splits 0, or ask for schedule 'split_k'",
        value(splits=2, schedule="stream_k"),
    ),
    BadCall("kernel-unknown", "kernel: there is no 'fastest'; `gemmx kernels` lists all", value(kernel="fastest")),
    BadCall(
        "kernel-misspelt",
        "kernel: there is no 'sm80_gemm_oops'; closest: sm80_gemm_…; `gemmx kernels` lists all",
        value(kernel="sm80_gemm_oops"),
    ),
    # scales
    *(
        BadCall(
            f"scale_{x}",
            f"scale_{x}: scale tensors are not supported; pass one number as alpha, or scale {x} before the call",
            tensor(f"scale_{x}", 1, dtype=F32),
            RuntimeError,
        )
        for x in "ab"
    ),
    BadCall(
        "scale_d",
        "scale_d: scale tensors are not supported; multiply D after the call",
        tensor("scale_d", 1, dtype=F32),
        RuntimeError,
    ),
    # out
    BadCall("out-other-shape", "out: shape is (4, 3) but D is (3, 4)", tensor("out", N, M)),
    BadCall("out-fewer-dimensions", "out: shape is (12,) but D is (3, 4)", tensor("out", M * N)),
    BadCall(
        "out-lacks-batch",
        "out: shape is (6, 4) but D is (2, 3, 4)",
        lambda d: {"a": rand(2, M, K, device=d), "out": rand(2 * M, N, device=d)},
    ),
    BadCall("out-expanded", SELF_OVERLAP, lambda d: {"out": rand(M, 1, device=d).expand(M, N)}),
    BadCall("out-windows-overlap", SELF_OVERLAP, overlapping_windows),
    BadCall("out-is-a", shares("a"), out_is_a, needs_memory=True),
    BadCall("out-is-b", shares("b"), out_is_b, needs_memory=True),
    BadCall("out-is-half-a", shares("a"), out_is_half_a, needs_memory=True),
    BadCall("out-is-shifted-c", shares("c"), out_is_shifted_c, needs_memory=True),
    BadCall("out-is-transposed-c", shares("c"), out_is_transposed_c, needs_memory=True),
    BadCall("out-is-row-of-c", shares("c"), out_is_row_of_c, needs_memory=True),
    BadCall("out-holds-bias", shares("bias"), out_holds_bias, needs_memory=True),
    BadCall("out-undecidable", shares("a"), out_is_undecidable, needs_memory=True),
)
