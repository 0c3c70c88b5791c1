"""The error of a result over its bound, on a sample of rows, so that a 16384-cube is checked in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemmx import reference
from gemmx.bench.cases import Case
from gemmx.bench.manifest import PRECISIONS

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
        options: dict[str, Any] = {"alpha": row.alpha, "beta": row.beta, "activation": row.activation}
        exact = reference.gemm(a, b, c, inputs.bias, out_dtype=torch.float64, **options)
        bound = reference.error_bound(
            a, b, c, inputs.bias, out_dtype=d.dtype, precision=PRECISIONS[row.compute], **options
        )
        ratio = ((part(d)[rows].double() - exact).abs() / bound).nan_to_num(nan=torch.inf)
        worst = max(worst, float(ratio.max()))
    return round(worst, 4)
