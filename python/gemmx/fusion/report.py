"""What gemmx.compile_pass rewrote and what it left, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


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
