"""The error of a result over its bound, on a sample of rows, so that a 16384-cube is checked in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmx import reference
from gemmx.bench.cases import GATED_ACTIVATION, Case
from gemmx.bench.manifest import PRECISIONS, Row

SAMPLE_ROWS = 64
SAMPLE_BATCHES = 4


def spread(size: int, count: int) -> list[int]:
    """Up to count indices below size, evenly spread, the first and the last among them."""
    if size <= count:
        return list(range(size))
    return [i * (size - 1) // (count - 1) for i in range(count)]


def error_over_bound(case: Case, d: Tensor) -> float:
    """The greatest |D - D64| / bound over sampled rows and all columns, for D of input set 0.

    D64 and the bound are gemmx.reference's, in float64 on D's device. inf where D is NaN or infinite: the
    inputs are such that no right D is.
    """
    row, inputs = case.row, case.inputs[0]
    rows = torch.tensor(spread(row.M, SAMPLE_ROWS), device=d.device)
    worst = 0.0
    for batch in spread(row.batch, SAMPLE_BATCHES):

        def part(x: Tensor, batch: int = batch) -> Tensor:
            return x[batch] if x.ndim == 3 else x

        a, b = part(inputs.a)[rows], part(inputs.b)
        c = None if inputs.c is None else part(inputs.c)[rows]
        exact, bound = (
            exact_and_bound_gated(row, a, b, inputs.bias, d.dtype)
            if row.gated
            else exact_and_bound(row, a, b, c, inputs.bias, d.dtype)
        )
        ratio = ((part(d)[rows].double() - exact).abs() / bound).nan_to_num(nan=torch.inf)
        worst = max(worst, float(ratio.max()))
    return round(worst, 4)


def exact_and_bound(  # noqa: PLR0917, the order of the op's schema
    row: Row, a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"alpha": row.alpha, "beta": row.beta, "activation": row.activation}
    exact = reference.gemm(a, b, c, bias, out_dtype=torch.float64, **options)
    precision = PRECISIONS[row.compute]
    return exact, reference.error_bound(a, b, c, bias, out_dtype=out_dtype, precision=precision, **options)


def exact_and_bound_gated(
    row: Row, a: Tensor, b: Tensor, bias: Tensor | None, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Of D = act(gate) * up: the bounds of both halves of Z, through the activation and the product, in float32.

    |D - D64| <= (u_out + 2^-22) |D64| + |up| E + |act| e_up + E e_up + tiny
    E = L e_gate + 2^-21 (|gate| + |act|), the error of act(gate)
    """
    options: dict[str, Any] = {"alpha": row.alpha}
    z = reference.pre_activation(a, b, bias=bias, **options)
    z_bound = reference.error_bound(a, b, None, bias, out_dtype=torch.float32, **options)
    (gate, up), (e_gate, e_up) = z.chunk(2, dim=-1), z_bound.chunk(2, dim=-1)
    activated = reference.activate(gate, GATED_ACTIVATION)
    exact = activated * up
    e_act = reference.LIPSCHITZ[GATED_ACTIVATION] * e_gate + 2.0**-21 * (gate.abs() + activated.abs())
    bound = (reference.UNIT_ROUNDOFF[out_dtype] + 2.0**-22) * exact.abs() + up.abs() * e_act
    bound += activated.abs() * e_up + e_act * e_up
    return exact, bound + reference.tiny(out_dtype, a.shape[-1], row.alpha)
