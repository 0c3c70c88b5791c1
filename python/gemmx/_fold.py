"""Leading dimensions of A: (..., M, K) @ (K, N) as one batched GEMM, by views."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gemmx._strict import strict_is_on


class Folded(NamedTuple):
    a: Tensor  # (batch, M, K)
    c: Tensor | None  # (batch, M, N)
    out: Tensor | None  # (batch, M, N)
    d_shape: torch.Size  # (..., M, N), the shape of D before folding


def fold_leading(a: Tensor, b: Tensor, c: Tensor | None, out: Tensor | None) -> Folded:
    """The 3-D operands of a call whose a has more than three dimensions and whose b has two.

    Leading dimensions go into the batch or, from some dimension on, into the rows: the first such split that is a
    view of all three tensors. Where there is none a and c are copied, out never is.
    """
    lead, m, n = a.shape[:-2], a.shape[-2], b.shape[-1]
    d_shape = torch.Size((*lead, m, n))
    if b.dim() != 2:
        raise ValueError(
            f"a: has {a.dim()} dimensions, which fold only with a 2-D b, but b has {b.dim()}; "
            f"pass a as (batch, M, K) and b as (batch, K, N)"
        )
    if out is not None and out.shape != d_shape:
        raise ValueError(f"out: shape is {tuple(out.shape)} but D is {tuple(d_shape)}")
    if c is not None:
        if not _broadcasts(c.shape, d_shape):
            raise ValueError(
                f"c: shape is {tuple(c.shape)} but it must broadcast to D's shape {tuple(d_shape)} without enlarging it"
            )
        c = c.expand(d_shape)

    split = _split(len(lead), [x for x in (a, c, out) if x is not None])
    if split is None:
        if strict_is_on():
            raise RuntimeError(
                "strict: the strides of a, c and out keep a's leading dimensions from folding into one, so that a and "
                "c would be copied; make them contiguous"
            )
        split = _split(len(lead), [] if out is None else [out])
    if split is None:
        raise ValueError(
            "out: its strides keep its leading dimensions from folding into one; give an out that is contiguous"
        )
    shape = (math.prod(lead[:split]), math.prod(lead[split:]) * m)
    a = a.reshape(*shape, a.shape[-1])
    c, out = (None if x is None else x.reshape(*shape, n) for x in (c, out))
    return Folded(a, c, out, d_shape)


def fold_rows(a: Tensor) -> Tensor:
    """(rows, K) of a (..., M, K): a view where its strides let it be, else a copy."""
    if strict_is_on() and not _collapses(a, 0, a.dim() - 1):
        raise RuntimeError(
            "strict: a's strides keep its leading dimensions from folding into its rows, so that it would be copied; "
            "make it contiguous"
        )
    return a.flatten(0, -2)


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether the shape broadcasts to another without enlarging it."""
    if len(shape) > len(to):
        return False
    return all(x in (1, y) for x, y in zip(reversed(shape), reversed(to), strict=False))


def _split(leading: int, tensors: list[Tensor]) -> int | None:
    """How many leading dimensions become the batch, the others the rows, so that every fold is a view."""
    for split in range(leading, -1, -1):
        if all(_collapses(x, 0, split) and _collapses(x, split, leading + 1) for x in tensors):
            return split
    return None


def _collapses(x: Tensor, begin: int, end: int) -> bool:
    """Whether the dimensions begin..end-1 of x are one dimension with one stride."""
    stride: int | None = None
    for i in reversed(range(begin, end)):
        if x.shape[i] != 1:
            if stride is not None and x.stride(i) != stride:
                return False
            stride = x.stride(i) * x.shape[i]
    return True
