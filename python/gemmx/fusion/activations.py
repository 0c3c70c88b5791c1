"""Activations as they look in graphs after Inductor's decompositions, and as models spell them themselves.

Terms are matched against nodes by structure: ops, constants, and one node X that all of a term's X are. Views and
conversions between float types may stand anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.fx import Node

from gemmx.fusion.nodes import aten, peel


class X(NamedTuple):
    """The activation's argument."""


class Number(NamedTuple):
    """A constant: this number, or with a name any number, which is kept."""

    value: float = 0.0
    name: str = ""


class Op(NamedTuple):
    targets: tuple[Any, ...]
    args: tuple[Any, ...]
    commutes: bool = False


class Found(NamedTuple):
    """A term's occurrence."""

    x: Node | None
    numbers: dict[str, float]
    nodes: frozenset[Node]  # between x and the term's root, without x


class Activation(NamedTuple):
    """An activation of a node."""

    name: str
    args: tuple[float, ...]
    x: Node  # behind views and conversions
    nodes: frozenset[Node]


def _mul(x: Any, y: Any) -> Op:
    return Op((aten.mul.Tensor, aten.mul.Scalar), (x, y), commutes=True)


def _div(x: Any, y: Any) -> Op:
    return Op((aten.div.Tensor, aten.div.Scalar), (x, y))


def _add(x: Any, y: Any) -> Op:
    return Op((aten.add.Tensor, aten.add.Scalar), (x, y), commutes=True)


def _unary(target: Any, x: Any, *args: Any) -> Op:
    return Op((target,), (x, *args))


def _mul3(x: Any, y: Any, z: Any) -> tuple[Op, ...]:
    return _mul(_mul(x, y), z), _mul(_mul(x, z), y), _mul(_mul(y, z), x)


def _clamp(x: Any, lo: Number, hi: Number) -> tuple[Op, ...]:
    return (
        _unary(aten.clamp_max.default, _unary(aten.clamp_min.default, x, lo), hi),
        _unary(aten.clamp_min.default, _unary(aten.clamp_max.default, x, hi), lo),
        _unary(aten.clamp.default, x, lo, hi),
        _unary(aten.hardtanh.default, x, lo, hi),
    )


def _terms() -> Iterator[tuple[str, Op]]:
    x, half, one = X(), Number(0.5), Number(1.0)
    lo, hi = Number(name="lo"), Number(name="hi")
    yield "relu", _unary(aten.relu.default, x)
    yield "relu", _unary(aten.clamp_min.default, x, Number(0.0))
    yield "sigmoid", _unary(aten.sigmoid.default, x)
    yield "tanh", _unary(aten.tanh.default, x)

    yield "silu", _unary(aten.silu.default, x)
    yield "silu", _mul(x, _unary(aten.sigmoid.default, x))
    yield "silu", _div(x, _add(_unary(aten.exp.default, _unary(aten.neg.default, x)), one))

    for scaled in (_mul(x, Number(math.sqrt(0.5))), _div(x, Number(math.sqrt(2.0)))):
        for term in _mul3(x, half, _add(_unary(aten.erf.default, scaled), one)):
            yield "gelu", term
    cubic, scale = Number(0.044715), Number(math.sqrt(2.0 / math.pi))
    cubes = (_mul(_mul(x, x), x), _unary(aten.pow.Tensor_Scalar, x, Number(3.0)))
    insides = [_mul(_add(x, _mul(cube, cubic)), scale) for cube in cubes]
    for square in _mul3(x, x, cubic):
        insides.extend(_mul3(x, scale, _add(square, one)))
    for inside in insides:
        for term in _mul3(x, half, _add(_unary(aten.tanh.default, inside), one)):
            yield "gelu_tanh", term

    for ramp in _clamp(_add(x, Number(3.0)), Number(0.0), Number(6.0)):
        yield "hardswish", _div(_mul(x, ramp), Number(6.0))
        yield "hardswish", _mul(x, _div(ramp, Number(6.0)))

    slope = Number(name="slope")
    yield "leaky_relu", _unary(aten.leaky_relu.default, x, slope)
    yield "leaky_relu", Op((aten.where.self,), (_unary(aten.gt.Scalar, x, Number(0.0)), x, _mul(x, slope)))

    for term in _clamp(x, lo, hi):
        yield "clamp", term
    yield "clamp", _unary(aten.clamp_min.default, x, lo)
    yield "clamp", _unary(aten.clamp_max.default, x, hi)


def _by_target() -> dict[Any, list[tuple[str, Op]]]:
    terms: dict[Any, list[tuple[str, Op]]] = {}
    for name, term in _terms():
        for target in term.targets:
            terms.setdefault(target, []).append((name, term))
    return terms


_TERMS = _by_target()


def activations(root: Node) -> Iterator[Activation]:
    """The activations that end in root, which may be the conversion of their result."""
    nodes: set[Node] = set()
    inner = peel(root, nodes)
    if not isinstance(inner, Node):
        return
    for name, term in _TERMS.get(inner.target, ()):
        for found in _find(term, inner, Found(None, {}, frozenset(nodes))):
            if found.x is not None:
                yield Activation(name, _arguments(name, found.numbers), found.x, found.nodes)


def _arguments(name: str, numbers: dict[str, float]) -> tuple[float, ...]:
    if name == "clamp":
        return numbers.get("lo", -math.inf), numbers.get("hi", math.inf)
    return (numbers["slope"],) if name == "leaky_relu" else ()


def _find(term: Any, x: Any, found: Found) -> Iterator[Found]:
    """All ways in which x is the term, given what is already found."""
    if isinstance(term, Number):
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            if term.name:
                yield found._replace(numbers={**found.numbers, term.name: float(x)})
            elif math.isclose(x, term.value, rel_tol=1e-7):  # float32 has no more
                yield found
        return
    nodes = set(found.nodes)
    x = peel(x, nodes)
    if not isinstance(x, Node):
        return
    if isinstance(term, X):
        if found.x is None or found.x is x:
            yield found._replace(x=x, nodes=frozenset(nodes))
        return
    if x.target not in term.targets or len(x.args) != len(term.args) or x.kwargs:
        return
    nodes.add(x)
    for args in (term.args, term.args[::-1]) if term.commutes else (term.args,):
        yield from _find_all(args, x.args, found._replace(nodes=frozenset(nodes)))


def _find_all(terms: tuple[Any, ...], xs: tuple[Any, ...], found: Found) -> Iterator[Found]:
    if not terms:
        yield found
        return
    for first in _find(terms[0], xs[0], found):
        yield from _find_all(terms[1:], xs[1:], first)
