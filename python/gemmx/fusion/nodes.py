"""Facts about nodes of the graphs that Inductor has after autograd: aten ops without views of their own or mutation."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

aten = torch.ops.aten
CONVERT = torch.ops.prims.convert_element_type.default
# Other shapes of the same elements in the same order.
VIEWS = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
        aten.detach.default,
    }
)
# What torch.export puts beside a conversion; Inductor takes it out after this pass.
METADATA_ASSERT = aten._assert_tensor_metadata.default
SIZED_VIEWS = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


class UnfusedError(Exception):
    """A match that may not be rewritten; the message is the reason."""


def value(node: Node) -> Tensor | None:
    """What the node computes, as a fake tensor; None where it is no tensor or nothing is known."""
    val = node.meta.get("val")
    return val if isinstance(val, Tensor) else None


def peel(x: Any, nodes: set[Node]) -> Any:
    """The node behind views and conversions between float types, which are put into nodes."""
    while isinstance(x, Node) and (x.target in VIEWS or _converts_floats(x)):
        nodes.add(x)
        x = x.args[0]
    return x


def _converts_floats(node: Node) -> bool:
    if node.target is not CONVERT:
        return False
    source = value(node.args[0]) if isinstance(node.args[0], Node) else None
    return source is not None and source.dtype in _FLOATS and node.args[1] in _FLOATS


def widens(node: Node) -> bool:
    """Whether the node only converts to float32."""
    return _converts_floats(node) and node.args[1] is torch.float32


def same(x: Any, y: Any) -> bool:
    """Whether two sizes, or symbols of sizes, are known to be equal; no guard is added."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(x == y))


def same_shape(x: Sequence[Any], y: Sequence[Any]) -> bool:
    return len(x) == len(y) and all(map(same, x, y))


def is_contiguous(x: Tensor) -> bool:
    """Whether x is known to be row-major and packed."""
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if not same(size, 1) and not same(stride, expected):
            return False
        expected = expected * size
    return True


def is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def name_of(node: Node) -> str:
    """The op's name without namespace and overload, as a reader of the model knows it."""
    if node.op == "output":
        return "output"
    if node.target is operator.getitem:
        return "getitem"
    target = node.target
    return target._opname if isinstance(target, torch._ops.OpOverload) else str(target)


def mutation_regions(nodes: Iterable[Node]) -> dict[Node, int]:
    """For each node the number of nodes before it that write to an argument: values don't move across one."""
    regions, region = {}, 0
    for node in nodes:
        regions[node] = region
        region += is_mutable(node)
    return regions
