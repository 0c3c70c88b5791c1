"""Wrong calls of the forms of gemm and of the backward ops, as bad_calls.py has them of gemm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bad_calls import F16, F32, K, M, N, rand

RULE = "a is (M, K) or (batch, M, K) and b is (K, 2 N), the columns gate | up"


@dataclass(frozen=True)
class BadForm:
    """`args` by device; the call is right but for what it names."""

    id: str
    op: str
    sentence: str
    args: Callable[[str], dict[str, Any]]
    error: type[Exception] = ValueError

    def run(self, device: str) -> None:
        rest = self.args(device)
        if self.op.endswith("backward"):
            second = "z" if self.op == "gated_backward" else "saved"
            columns = 2 * N if self.op == "gated_backward" else N
            tensors = {"grad": rand(M, N, device=device), second: rand(M, columns, device=device)}
            rest = {"activation": "silu"} | rest
        elif self.op == "_gated_dgrad":
            sizes = {"grad": (M, K), "b": (K, N), "z": (M, 2 * N)}
            tensors = {name: rand(*size, device=device) for name, size in sizes.items()}
        else:
            columns = 2 * N if "gated" in self.op else N
            tensors = {"a": rand(M, K, device=device), "b": rand(K, columns, device=device)}
        getattr(torch.ops.gemmx, self.op)(**(tensors | rest))


def odd(device: str) -> dict[str, Any]:
    return {"b": rand(K, 7, device=device)}


BAD_FORMS = (
    *(
        BadForm(
            f"{op}-odd",
            op,
            f"b: has 7 columns, an odd number, but {RULE}, as many of gate as of up; "
            "concatenate both along the columns",
            odd,
        )
        for op in ("gemm_gated", "gemm_gated_aux")
    ),
    BadForm(
        "gated-weight",
        "gemm_gated",
        f"b: K is 8 but a has K = 5: {RULE}; for a weight stored (2 N, K) pass weight.t()",
        lambda d: {"b": rand(2 * N, K, device=d)},
    ),
    BadForm(
        "gated-b-3d",
        "gemm_gated",
        f"b: is 3-D, shape (2, 5, 8), but {RULE}; call gemm_gated once for each matrix of b",
        lambda d: {"b": rand(2, K, 2 * N, device=d)},
    ),
    BadForm(
        "gated-bias",
        "gemm_gated",
        "bias: shape is (4,) but it must be (2 N,) = (8,): one value a column of b; concatenate gate's and up's",
        lambda d: {"bias": rand(N, device=d)},
    ),
    BadForm(
        "gated-strides",
        "gemm_gated",
        "a: shape (2, 3, 5) has strides (20, 5, 1), so that batch and M are not one dimension, as gemm_gated needs "
        "them; pass a.contiguous()",
        lambda d: {"a": rand(2, 4, K, device=d)[:, :M]},
        RuntimeError,
    ),
    BadForm(
        "gated-scale",
        "gemm_gated",
        "scale_a: scale tensors are not supported; pass one number as alpha, or scale a before the call",
        lambda d: {"scale_a": rand(1, device=d, dtype=F32)},
        RuntimeError,
    ),
    BadForm(
        "aux-kernel",
        "gemm_aux",
        "kernel: there is no 'fastest'; `gemmx kernels` lists all",
        lambda d: {"kernel_name": "fastest"},
    ),
    BadForm(
        "backward-shape",
        "activation_backward",
        "grad: shape is (4, 3) but saved's is (3, 4): grad has the same shape; expand or reshape it",
        lambda d: {"grad": rand(N, M, device=d)},
    ),
    BadForm(
        "gated-backward-shape",
        "gated_backward",
        "grad: shape is (3, 8) but z's is (3, 8): grad has D's shape, with half as many columns; expand or reshape it",
        lambda d: {"grad": rand(M, 2 * N, device=d)},
    ),
    BadForm(
        "backward-dtype",
        "activation_backward",
        "grad: dtype is float16 but saved's is bfloat16: both must be the same; convert grad with .to(saved.dtype)",
        lambda d: {"grad": rand(M, N, device=d, dtype=F16)},
    ),
    BadForm(
        "backward-args",
        "gated_backward",
        "activation_args: has 1 value but activation 'silu' takes none",
        lambda d: {"activation_args": [1.0]},
    ),
    BadForm(
        "gate-gradient-z",
        "_gated_dgrad",
        "z: shape is (3, 4) but it must be (M, 2 N) = (3, 8), the columns gate | up; pass what gemm_gated_aux kept",
        lambda d: {"z": rand(M, N, device=d)},
    ),
    BadForm(
        "backward-float64",
        "activation_backward",
        "saved: dtype is float64 but the backward of an activation takes float32, float16 and bfloat16; convert "
        "grad and saved",
        lambda d: {x: rand(M, N, device=d, dtype=torch.float64) for x in ("grad", "saved")},
        RuntimeError,
    ),
)
