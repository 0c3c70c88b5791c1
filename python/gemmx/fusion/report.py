"""What gemmx.compile_pass rewrote and what it left, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch.fx import Node

from gemmx._dtypes import dtype_name
from gemmx.fusion.nodes import value


class Rewritten(NamedTuple):
    node: str  # the product's, in its graph
    problem: str  # M x N x K and dtype
    op: str  # what it is now
    note: str = ""  # what could not be fused into it, and why


class Left(NamedTuple):
    node: str
    problem: str
    reason: str


class Report:
    """Of all graphs that were compiled with one pass, in order."""

    def __init__(self) -> None:
        self.graphs = 0
        self.rewritten: list[Rewritten] = []
        self.left: list[Left] = []

    def __str__(self) -> str:
        total = len(self.rewritten) + len(self.left)
        head = f"{self.graphs} graphs, {total} products: {len(self.rewritten)} rewritten, {len(self.left)} left"
        if not self.graphs:
            return f"{head} (nothing was compiled: Inductor's cache answers without a pass; see cache=False)"
        rows = [("rewritten", x.node, x.problem, x.op + (f"; {x.note}" if x.note else "")) for x in self.rewritten]
        rows += [("left", x.node, x.problem, x.reason) for x in self.left]
        return "\n".join([head, *_aligned(rows)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(x.ljust(width) for x, width in zip(row, widths, strict=True)).rstrip()


def problem_of(product: Node, a: Node, b: Node) -> str:
    """M x N x K with the batch before it, symbols as they are, and the dtype."""
    x, y, d = value(a), value(b), value(product)
    if x is None or y is None or d is None:
        return "?"
    sizes = [*d.shape[:-2], d.shape[-2], d.shape[-1], x.shape[-1]]
    return " x ".join(map(str, sizes)) + " " + _dtypes(x.dtype, d.dtype)


def _dtypes(a: torch.dtype, d: torch.dtype) -> str:
    return dtype_name(a) if a == d else f"{dtype_name(a)} to {dtype_name(d)}"
