"""Random problems: one distribution for hypothesis (CPU) and for a seeded generator (GPU, tens of thousands).

Sizes lean to zero, one and the edges of tiles; layouts to padding, odd leading dimensions, unaligned pointers and
broadcast operands; every epilogue, schedule, precision and numerics is asked for, also those that are refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

from gemmx import _C
from problems import ACTIVATIONS, PACKED, Case, Layout

T = TypeVar("T")
EDGES = (8, 16, 32, 64, 128, 256)
# Where exact and rounded arithmetic agree on what an infinity becomes.
CARRIES_INFINITY = (None, "relu", "leaky_relu", "clamp", "sigmoid", "tanh")


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int: ...
    def choice(self, values: Sequence[T]) -> T: ...


class RandomDraw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, values: Sequence[T]) -> T:
        return values[int(self.random.random() * len(values))]


class HypothesisDraw:
    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def choice(self, values: Sequence[T]) -> T:
        found: T = self.draw(st.sampled_from(values))
        return found


def chance(draw: Draw, percent: int) -> bool:
    return draw.integer(0, 99) >= 100 - percent  # hypothesis shrinks to 0, which is no


def size(draw: Draw, limit: int) -> int:
    kind = draw.integer(0, 19)
    if kind < 6:
        found = draw.integer(1, 40)
    elif kind < 13:
        found = draw.choice(EDGES) + draw.integer(-3, 3)
    elif kind < 16:
        found = draw.integer(1, 300)
    elif kind < 19:
        found = 1
    else:
        found = 0
    return min(found, limit)


def layout(draw: Draw, *, out: bool = False) -> Layout:
    if not out and chance(draw, 25):
        return Layout(along=draw.choice(("rows", "cols")))
    return Layout(
        along=draw.choice(("rows", "cols")),
        ld_multiple=draw.choice((8, 8, 1, 4)),
        ld_pad=draw.choice((0, 0, 1, 5, 8, 24)),
        offset=draw.choice((0, 0, 0, 8, 1, 2, 4)),
        step=draw.choice((1,) * 12 + (2, 3)),
        expand="" if out or not chance(draw, 6) else draw.choice(("major", "minor", "both")),
    )


def draw_case(draw: Draw, *, largest: int = 300, elements: int = 1 << 17, depth: int = 4096) -> tuple[Case, str]:
    """A case and the dtype of its inputs: "f32", "f16" or "bf16". At most `elements` in D."""
    dtype = draw.choice(("bf16", "f16", "f32"))
    m, n, k = (size(draw, largest) for _ in range(3))
    if chance(draw, 12):
        k = min(draw.choice((512, 1000, 1024, 1536, 2056, 4096)), depth)
    batch = draw.choice((0, 1, 2, 3, 5)) if chance(draw, 25) else None
    # What kernels with 16-byte accesses take, and then what TMA takes: else they would hardly ever run.
    aligned = chance(draw, 45)
    if aligned and chance(draw, 65):
        m, n, k = (-(-x // 8) * 8 for x in (m, n, k))
    m = min(m, elements // max(n * (batch or 1), 1))
    if aligned:
        a, b = (Layout(draw.choice(("rows", "cols")), 8, draw.choice((0, 0, 8, 24))) for _ in range(2))
    else:
        a, b = layout(draw), layout(draw)
    case = Case(m, n, k, batch, a=a, b=b)
    if batch is not None:
        case = replace(case, shared=draw.choice(("", "", "a", "b")))
    if chance(draw, 50):
        case = replace(case, out=Layout(ld_multiple=8) if aligned else layout(draw, out=True))
    case = replace(case, out_dtype=draw.choice((None, None, "f32")))
    if chance(draw, 40):
        kinds = ("full", "aligned", "shared", "row", "column", "scalar", "f32") + (("out",) if case.out else ())
        case = replace(case, c=draw.choice(kinds), beta=draw.choice((1.0, 0.5, 0.0, -2.0)))
    if chance(draw, 30):
        case = replace(case, bias=draw.choice(("a", "f32", "strided", "offset")))
    if chance(draw, 30):
        case = replace(case, alpha=draw.choice((0.5, -0.75, 0.0, 2.0**-10, 3e4)))
    if chance(draw, 40):
        activation, args = draw.choice(ACTIVATIONS)
        case = replace(case, activation=activation, activation_args=args)
    case = replace(case, scale=draw.choice((1.0,) * 6 + (30.0, 2.0**-12)))
    if chance(draw, 6):
        special = draw.choice(("nan", "inf")) if case.activation in CARRIES_INFINITY else "nan"
        case = replace(case, special=special)
    return ask(draw, case, dtype), dtype


def ask(draw: Draw, case: Case, dtype: str) -> Case:
    """Requests, also such as nothing honours."""
    if dtype == "f32" and chance(draw, 30):
        case = replace(case, precision=draw.choice(("ieee", "tf32")))
    if chance(draw, 20):
        case = replace(case, splits=draw.choice((1, 2, 3, 5, 8)))
    elif chance(draw, 20):
        case = replace(case, schedule=draw.choice(("data_parallel", "split_k", "stream_k", "auto")))
    if chance(draw, 12):
        case = replace(case, numerics=draw.choice(("deterministic", "batch_invariant", "batch_invariant")))
    return case


def refusal_of_numerics(case: Case, dtype: str) -> str:
    """How the sentence begins that refuses what batch_invariant does not take; "" where it takes the case."""
    if case.numerics != "batch_invariant":
        return ""
    if dtype == "f32":
        return "numerics: 'batch_invariant' takes float16 and bfloat16"
    if case.k and case.alpha:
        if case.schedule == "stream_k":
            return "schedule: is 'stream_k', which cuts K"
        prescribed = _C.splits_for(case.n, case.k, 2)
        if case.splits not in (0, prescribed):
            return f"splits: is {case.splits} but numerics 'batch_invariant'"
    return ""


def rows_to_compare(case: Case) -> Iterator[slice | list[int]]:
    """Rows of D to which a call on them alone must give the same bits: neighbours, and any rows in any order."""
    if case.numerics == "batch_invariant" and case.m:
        draw = RandomDraw(case.m * 1_000_003 + case.n * 1009 + case.k)
        first = draw.integer(0, case.m - 1)
        yield slice(first, draw.integer(first + 1, case.m))
        yield [draw.integer(0, case.m - 1) for _ in range(draw.choice((1, 7, 33, 2 * case.m + 1)))]


@st.composite
def cases(draw: Callable[[Any], Any], **limits: int) -> tuple[Case, str]:
    return draw_case(HypothesisDraw(draw), **limits)


# ---- shrinking what the seeded generator found -----------------------------------------------------------------------


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less: a field at its default, a plainer layout, a smaller size."""
    default = Case(0, 0, 0)
    for field in fields(Case):
        value = getattr(case, field.name)
        if field.name not in ("m", "n", "k") and value != getattr(default, field.name):
            yield replace(case, **{field.name: getattr(default, field.name)})
    for name in ("a", "b", "out"):
        at = getattr(case, name)
        for field in fields(Layout):
            if at is not None and getattr(at, field.name) != getattr(PACKED, field.name):
                yield replace(case, **{name: replace(at, **{field.name: getattr(PACKED, field.name)})})
    for name in ("m", "n", "k"):
        value = getattr(case, name)
        for smaller in (0, 1, value // 2, value - 1):
            if 0 <= smaller < value:
                yield replace(case, **{name: smaller})


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 300) -> Case:
    """The simplest case found that still fails."""
    for _ in range(tries):
        for candidate in simpler(case):
            if is_legal(candidate) and fails(candidate):
                case = candidate
                break
        else:
            break
    return case


def is_legal(case: Case) -> bool:
    """Whether the fields go together."""
    clamp = case.activation == "clamp"
    return (
        not (case.c == "out" and case.out is None)
        and not (case.shared and case.batch is None)
        and (len(case.activation_args) == 2) == clamp
        and (not case.activation_args or clamp or case.activation == "leaky_relu")
    )
