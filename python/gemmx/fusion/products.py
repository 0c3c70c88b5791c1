"""Products of matrices in a graph, what is scaled and added to them, and gates: all that one gemmx op computes."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gemmx.fusion.activations import Activation, activations
from gemmx.fusion.nodes import CONVERT, aten, peel, same, value, widens

_PRODUCTS = frozenset({aten.mm.default, aten.mm.dtype, aten.bmm.default, aten.bmm.dtype})
_SUMS = frozenset({aten.addmm.default, aten.addmm.dtype, aten.baddbmm.default, aten.baddbmm.dtype})
_END = 2**63 - 1  # a slice's end where it has none


@dataclass(frozen=True)
class Addend:
    """What is added to a product, scaled by a number, and the shape in which it is added."""

    node: Node
    scale: float
    shape: torch.Size


@dataclass(frozen=True)
class Linear:
    """alpha * (a @ b) + c + bias, of one node mm, bmm, addmm or baddbmm and of the nodes after it."""

    product: Node
    a: Node
    b: Node
    alpha: float = 1.0
    c: Addend | None = None
    bias: Node | None = None
    nodes: frozenset[Node] = frozenset()  # all of it, the product included

    @property
    def added(self) -> bool:
        return self.c is not None or self.bias is not None


@dataclass(frozen=True)
class Match:
    """What one op of gemmx may compute: a linear, then an activation or a gate. D is the tail's value."""

    tail: Node
    linear: Linear
    nodes: frozenset[Node] = field(repr=False)
    activation: Activation | None = None
    gated: bool = False
    refusal: str = ""  # why it is no match after all


def is_product(node: Node) -> bool:
    return node.target in _PRODUCTS or node.target in _SUMS


def matches(tail: Node, order: dict[Node, int]) -> Iterator[Match]:
    """All that ends in tail, the largest first. order: the nodes' places in the graph."""
    if tail.target is CONVERT and widens(tail):
        return  # D as it was is what gemmx writes; whoever reads it widens it
    yield from _gates(tail, order)
    for activation in activations(tail):
        for linear in linears(activation.x, order):
            nodes = linear.nodes | activation.nodes
            yield Match(tail, linear, nodes, activation)
    for linear in linears(tail, order):
        if linear.added:
            yield Match(tail, linear, linear.nodes)


def plain(product: Node) -> Match | None:
    """The product alone; None where its operands or scalars are not known."""
    linear = next(_roots(product), None)
    return None if linear is None else Match(product, linear, linear.nodes)


# ---- sums ---------------------------------------------------------------------------------------------------------


def linears(root: Any, order: dict[Node, int], depth: int = 3) -> Iterator[Linear]:
    """The linears that end in root; of two products that are added the later one first.

    Behind depth sums and scalings no product is looked for: a linear has room for two sums, of c and of the bias.
    """
    nodes: set[Node] = set()
    node = peel(root, nodes)
    if not isinstance(node, Node):
        return
    found: Iterator[Linear] = iter(())
    if is_product(node):
        found = _roots(node)
    elif depth and node.target is aten.add.Tensor and all(isinstance(x, Node) for x in node.args):
        found = _sums(node, order, depth - 1)
    elif depth and node.target is aten.mul.Tensor:
        found = _scaled(node, order, depth - 1)
    for linear in found:
        yield replace(linear, nodes=linear.nodes | nodes | {node})


def _roots(node: Node) -> Iterator[Linear]:
    """The product itself with what addmm adds."""
    operands = [x for x in node.args[: 2 if node.target in _PRODUCTS else 3] if isinstance(x, Node)]
    if node.target in _PRODUCTS:
        if len(operands) == 2:
            yield Linear(node, operands[0], operands[1], nodes=frozenset({node}))
        return
    if len(operands) != 3:
        return
    c, a, b = operands
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if isinstance(alpha, (int, float)) and isinstance(beta, (int, float)):
        shape = value(node)
        linear = Linear(node, a, b, float(alpha), nodes=frozenset({node}))
        added = None if shape is None else _add(linear, Addend(c, float(beta), shape.shape))
        if added is not None:
            yield added


def _two(args: Any) -> tuple[Node, Node]:
    a, b = args
    assert isinstance(a, Node) and isinstance(b, Node)
    return a, b


def _sums(node: Node, order: dict[Node, int], depth: int) -> Iterator[Linear]:
    x, y = _two(node.args)
    scale, d = node.kwargs.get("alpha", 1), value(node)
    if x is y or d is None or not isinstance(scale, (int, float)):
        return
    sides = [(x, 1.0, y, float(scale)), (y, float(scale), x, 1.0)]
    for product, product_scale, other, other_scale in sorted(sides, key=lambda s: -order.get(peel(s[0], set()), -1)):
        for linear in linears(product, order, depth):
            if product_scale != 1.0 and linear.added:
                continue
            scaled = replace(linear, alpha=linear.alpha * product_scale)
            added = _add(scaled, Addend(other, other_scale, d.shape))
            if added is not None:
                yield added


def _scaled(node: Node, order: dict[Node, int], depth: int) -> Iterator[Linear]:
    scales = [x for x in node.args if isinstance(x, (int, float)) and not isinstance(x, bool)]
    nodes = [x for x in node.args if isinstance(x, Node)]
    if len(scales) == len(nodes) == 1:
        for linear in linears(nodes[0], order, depth):
            if not linear.added:
                yield replace(linear, alpha=linear.alpha * scales[0])


def _add(linear: Linear, addend: Addend) -> Linear | None:
    """The linear with one more addend, as bias where it is one value a column; None where both places are taken."""
    x = value(addend.node)
    if x is None:
        return None
    row = x.dim() == 1 and same(x.shape[0], addend.shape[-1])
    if row and addend.scale == 1.0 and linear.bias is None:
        return replace(linear, bias=addend.node)
    if linear.c is None:
        return replace(linear, c=addend)
    return None


# ---- gates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Half:
    source: Node
    second: bool
    nodes: frozenset[Node]


def _gates(tail: Node, order: dict[Node, int]) -> Iterator[Match]:
    """act(gate) * up, of two halves of a product's columns. Gates that gemmx does not compute come with a refusal."""
    nodes: set[Node] = set()
    root = peel(tail, nodes)
    if not isinstance(root, Node):
        return
    if root.target is aten.glu.default:
        for linear in linears(root.args[0], order):
            yield Match(tail, linear, linear.nodes, refusal=_SECOND.format("glu"))
    if root.target is not aten.mul.Tensor or not all(isinstance(x, Node) for x in root.args):
        return
    first, second = _two(root.args)
    for gate, up in ((first, second), (second, first)):
        for activation in activations(gate):
            around = activation.nodes | nodes | {root}
            yield from _halves(tail, activation, up, around, order)
            yield from _two_weights(tail, activation, up, around, order)


_SECOND = "{} gates with the second half of the columns, gemm_gated with the first: store the weight as gate | up"


def _halves(
    tail: Node, activation: Activation, up: Node, around: frozenset[Node], order: dict[Node, int]
) -> Iterator[Match]:
    gate_half, up_half = half(activation.x), half(up)
    if gate_half is None or up_half is None or gate_half.second == up_half.second:
        return
    for linear in linears(gate_half.source, order):
        # Both halves of all of it: what is added to one half alone, or halves of a view's columns, is another product.
        bare = replace(linear, nodes=frozenset())
        other = next((x for x in linears(up_half.source, order) if replace(x, nodes=frozenset()) == bare), None)
        if other is not None and all(_is_as_wide(x.source, linear.product) for x in (gate_half, up_half)):
            nodes = around | gate_half.nodes | up_half.nodes | linear.nodes | other.nodes
            refusal = _SECOND.format(activation.name) if gate_half.second else ""
            yield Match(tail, linear, nodes, activation, gated=True, refusal=refusal)


def _is_as_wide(node: Node, product: Node) -> bool:
    x, of = value(node), value(product)
    return x is not None and of is not None and same(x.shape[-1], of.shape[-1])


def half(root: Node) -> _Half | None:
    """The half of the last dimension that root is, by split, chunk or slice."""
    nodes: set[Node] = set()
    node = peel(root, nodes)
    if not isinstance(node, Node):
        return None
    nodes.add(node)
    place: Any = None
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        split = node.args[0]
        nodes.add(split)
        place, source = _split_place(split, node.args[1]), split.args[0]
    elif node.target is aten.slice.Tensor:
        place, source = _slice_place(node), node.args[0]
    if place is None or not isinstance(source, Node):
        return None
    return _Half(source, place == 1, frozenset(nodes))


def _split_place(split: Node, index: Any) -> int | None:
    """Which half output number index of the split is."""
    if split.target not in {aten.split.Tensor, aten.split_with_sizes.default}:
        return None
    x = value(split.args[0]) if isinstance(split.args[0], Node) else None
    outputs = split.meta.get("val")
    if x is None or not isinstance(outputs, (list, tuple)) or len(outputs) != 2:
        return None
    if not _is_last(x, split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)):
        return None
    return index if same(outputs[0].shape[-1], outputs[1].shape[-1]) else None


def _slice_place(node: Node) -> int | None:
    source, dim, start, end, step = (*node.args, *(None,) * 4)[:5]
    x = value(source) if isinstance(source, Node) else None
    d = value(node)
    if x is None or d is None or node.kwargs or not _is_last(x, dim or 0) or step not in {None, 1}:
        return None
    columns, width = x.shape[-1], d.shape[-1]
    if not isinstance(start, (int, type(None))) or not same(2 * width, columns):
        return None
    if not start:
        return 0
    whole = end is None or (isinstance(end, int) and (end == _END or same(end, columns)))
    return 1 if same(start, width) and whole else None


def _is_last(x: Tensor, dim: Any) -> bool:
    return dim in {-1, x.dim() - 1}


def _two_weights(
    tail: Node, activation: Activation, up: Node, around: frozenset[Node], order: dict[Node, int]
) -> Iterator[Match]:
    for linear in linears(activation.x, order):
        for other in linears(up, order):
            if peel(linear.a, set()) is peel(other.a, set()) and linear.product is not other.product:
                reason = (
                    f"{linear.product} and {other.product} are gate and up of two weights: gemm_gated takes one, "
                    f"gate | up; gemmx.convert makes it once, here it would be a copy a call"
                )
                yield Match(tail, linear, around | linear.nodes, activation, refusal=reason)
                yield Match(tail, other, around | other.nodes, activation, refusal=reason)
