"""From matches to gemmx's ops: which matches are kept, why others are not, and the new nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from gemmx._dtypes import dtype_name
from gemmx._library import NAMESPACE
from gemmx.fusion.nodes import (
    METADATA_ASSERT,
    SIZED_VIEWS,
    VIEWS,
    UnfusedError,
    aten,
    is_contiguous,
    mutation_regions,
    name_of,
    same,
    same_shape,
    value,
    widens,
)
from gemmx.fusion.products import Addend, Linear, Match, is_product, matches, plain
from gemmx.fusion.report import Left, Report, Rewritten

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "seq_nr", "from_node")


@dataclass(frozen=True)
class Options:
    """What gemmx.compile_pass was told."""

    everything: bool = False
    devices: tuple[str, ...] = ("cuda",)
    numerics: str | None = None


class Rewriter:
    """One graph's rewrite."""

    def __init__(self, graph: Graph, options: Options, report: Report, keep_dtype: bool) -> None:
        self.graph, self.options, self.report, self.keep_dtype = graph, options, report, keep_dtype
        nodes = list(graph.nodes)
        self.order = {node: i for i, node in enumerate(nodes)}
        self.regions = mutation_regions(nodes)
        self.gone: set[Node] = set()  # nodes that a rewrite took over
        self.reasons: dict[Node, str] = {}  # product -> why its largest match was not kept
        self.refused: set[Node] = set()  # products that no smaller match may take: their reason says what to do
        self.notes: dict[Node, str] = {}

    def run(self) -> None:
        nodes = list(self.graph.nodes)
        products = [node for node in nodes if is_product(node)]
        problems = {node: problem_of(plain(node)) for node in products}  # before anything is rewritten
        done: dict[Node, str] = {}
        for tail in reversed(nodes):  # from the end: the largest match comes first
            if tail.op == "call_function" and tail not in self.gone and tail.target not in VIEWS:
                self._fuse_into(tail, done)
        for product in products:
            if product in done:
                note = self.notes.get(product, "")
                self.report.rewritten.append(Rewritten(product.name, problems[product], done[product], note))
            else:
                self.report.left.append(Left(product.name, problems[product], self._why_left(product)))

    def _fuse_into(self, tail: Node, done: dict[Node, str]) -> None:
        found = list(matches(tail, self.order))
        alone = plain(tail) if self.options.everything and is_product(tail) else None
        if alone is not None:
            found.append(alone)
        for match in found:
            product = match.linear.product
            if product in self.gone or (product in self.refused and not self.options.everything):
                continue
            try:
                if match.refusal:
                    self.refused.add(product)
                    raise UnfusedError(match.refusal)
                done[product] = self._rewrite(match)
                return
            except UnfusedError as reason:
                self.reasons.setdefault(product, str(reason))
                if match.activation is not None:
                    kind = f"{match.activation.name} gate" if match.gated else match.activation.name
                    self.notes.setdefault(product, f"without the {kind}: {reason}")

    def _why_left(self, product: Node) -> str:
        if product in self.reasons:
            return self.reasons[product]
        alone = plain(product)
        if alone is None:
            return "its operands or scalars are not known"
        try:
            self._check_product(alone.linear)
        except UnfusedError as reason:
            return str(reason)
        users = sorted({name_of(user) for user in _users_behind_views(product)})
        if users == ["slice"] and any(name_of(x) == "constant_pad_nd" for x in product.all_input_nodes):
            return "Inductor padded it: set torch._inductor.config.shape_padding = False, gemmx needs no padding"
        return f"nothing to fuse: its result goes to {', '.join(users) or 'nothing'}"

    def _place(self, node: Node) -> int:
        return self.order[node]

    # ---- checks ---------------------------------------------------------------------------------------------------

    def _check(self, match: Match) -> torch.dtype:
        """D's dtype; UnfusedError where the match may not be rewritten."""
        a = self._check_product(match.linear)
        d = value(match.tail)
        if d is None or d.dtype not in {a.dtype, torch.float32}:
            raise UnfusedError(f"{match.tail} has dtype {'?' if d is None else d.dtype} but D's is a's or float32")
        if not is_contiguous(d):
            raise UnfusedError(f"{match.tail} is not row-major contiguous, as D is")
        if d.dtype != a.dtype:
            if self.keep_dtype:
                raise UnfusedError("AOTInductor of this version of torch misreads an op's out_dtype")
            self._check_float32(match)
        region = self.regions[match.tail]
        for node in sorted(match.nodes, key=self._place):
            if node is not match.tail:
                self._check_users(node, match.nodes)
            if self.regions[node] != region:
                raise UnfusedError(f"memory is written between {node} and {match.tail}")
            self._check_elements(node, match, a.dtype)
        return d.dtype

    def _check_product(self, linear: Linear) -> Tensor:
        """The fake tensor a."""
        a, b, d = value(linear.a), value(linear.b), value(linear.product)
        if a is None or b is None or d is None:
            raise UnfusedError("its shapes are not known")
        if a.device.type not in self.options.devices:
            raise UnfusedError(f"it is on {a.device.type}; the pass takes {', '.join(self.options.devices)}")
        if a.dtype not in _DTYPES or b.dtype != a.dtype:
            raise UnfusedError(f"its operands are {dtype_name(a.dtype)} and {dtype_name(b.dtype)}")
        if a.dtype == torch.float32 and a.is_cuda and torch.backends.cuda.matmul.fp32_precision not in {"none", "ieee"}:
            raise UnfusedError("torch computes float32 products in tf32 here; the pass takes ieee precision only")
        return a

    def _check_float32(self, match: Match) -> None:
        """A 16-bit product whose float32 D only other pointwise nodes read is better written as it was, in 16 bits."""
        product, c = value(match.linear.product), match.linear.c
        addend = None if c is None else value(_narrow(c.node, torch.float32))
        wanted = all(user.op == "output" for user in match.tail.users)
        if not wanted and all(x is None or x.dtype != torch.float32 for x in (product, addend)):
            raise UnfusedError(f"{match.tail} is float32 and read on: fused, it would be written as float32")

    def _check_users(self, node: Node, nodes: frozenset[Node]) -> None:
        for user in node.users:
            if user.op == "output":
                raise UnfusedError(f"{node} is an output of the graph too, or kept for the backward pass")
            if user not in nodes and user.target is not METADATA_ASSERT:
                raise UnfusedError(f"{node} is used by {user} too")

    def _check_elements(self, node: Node, match: Match, dtype: torch.dtype) -> None:
        """That the node computes element by element, in float32 or the product's dtype."""
        x = value(node)
        if x is None and name_of(node).startswith("split"):
            return  # its outputs are checked one by one
        if x is None:
            raise UnfusedError(f"nothing is known of {node}")
        if x.dtype not in {dtype, torch.float32, torch.bool}:
            raise UnfusedError(f"{node} has dtype {x.dtype}")
        if node is match.linear.product or node.target in VIEWS or name_of(node) in {"slice", "getitem"}:
            return
        for source in node.all_input_nodes:
            y = value(source)
            if source in match.nodes and (y is None or not same_shape(x.shape, y.shape)):
                raise UnfusedError(f"{node} broadcasts {source}")

    # ---- the new nodes --------------------------------------------------------------------------------------------

    def _rewrite(self, match: Match) -> str:
        """What the match is now."""
        d_dtype = self._check(match)
        new: list[Node] = []
        try:
            with self.graph.inserting_before(match.tail):
                d, op = self._gated(match, d_dtype, new) if match.gated else self._gemm(match, d_dtype, new)
                d = self._reshape(d, match, new)
        except UnfusedError:
            for node in reversed(new):
                self.graph.erase_node(node)
            raise
        match.tail.replace_all_uses_with(d)
        self.gone |= match.nodes
        added = {match.linear.bias, None if match.linear.c is None else match.linear.c.node}
        unread = {node for node in added if node is not None and widens(node)}  # only their sources are
        unread |= {user for node in match.nodes for user in node.users if user.target is METADATA_ASSERT}
        for node in sorted(match.nodes | unread, key=self._place, reverse=True):
            if not node.users:
                self.gone.add(node)
                self.graph.erase_node(node)
        return op

    def _call(self, new: list[Node], like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A node whose value is what the op makes of its arguments' fakes, or its refusal."""
        node = self.graph.call_function(target, args, kwargs)
        new.append(node)
        mode = getattr(value(like), "fake_mode", None)
        if mode is None:
            raise UnfusedError("the graph has no fake tensors")
        fakes = map_arg((args, kwargs), lambda x: x.meta["val"])
        try:
            with mode, torch.no_grad():
                node.meta["val"] = target(*fakes[0], **fakes[1])
        except (ValueError, RuntimeError) as error:
            raise UnfusedError(f"{name_of(node)} refuses: {str(error).splitlines()[0]}") from error
        node.meta.update({key: like.meta[key] for key in _KEPT_META if key in like.meta})
        return node

    def _gemm(self, match: Match, d_dtype: torch.dtype, new: list[Node]) -> tuple[Node, str]:
        linear, product = match.linear, value(match.linear.product)
        assert product is not None
        a, c = linear.a, None
        options = self._options(match, d_dtype)
        if linear.c is not None:
            a, c = self._place_c(linear, linear.c, match, d_dtype, new)
            if linear.c.scale != 1.0:
                options["beta"] = linear.c.scale
        bias = None if linear.bias is None else _narrow(linear.bias, d_dtype)
        args = [a, linear.b, c, bias]
        while args[-1] is None:
            args.pop()
        op = getattr(torch.ops, NAMESPACE).gemm.default
        text = "gemm" + (" + c" if c is not None else "") + (" + bias" if bias is not None else "")
        return self._call(new, match.tail, op, *args, **options), text + _activation_text(match)

    def _gated(self, match: Match, d_dtype: torch.dtype, new: list[Node]) -> tuple[Node, str]:
        linear = match.linear
        if linear.c is not None:
            raise UnfusedError("gemm_gated takes no C")
        bias = () if linear.bias is None else (_narrow(linear.bias, d_dtype),)
        op = getattr(torch.ops, NAMESPACE).gemm_gated.default
        d = self._call(new, match.tail, op, linear.a, linear.b, *bias, **self._options(match, d_dtype))
        return d, "gemm_gated" + (" + bias" if bias else "") + _activation_text(match)

    def _options(self, match: Match, d_dtype: torch.dtype) -> dict[str, Any]:
        """The op's keyword arguments, without those that are their defaults.

        But for splits: AOTInductor (torch 2.11 and 2.14) passes an int whether it is given or not, and its runtime
        then fails where the node has none.
        """
        a = value(match.linear.a)
        options: dict[str, Any] = {"splits": 0}
        if match.linear.alpha != 1.0:
            options["alpha"] = match.linear.alpha
        if match.activation is not None:
            options["activation"] = match.activation.name
            if match.activation.args:
                options["activation_args"] = [_finite(x, d_dtype) for x in match.activation.args]
        if a is not None and d_dtype != a.dtype:
            options["out_dtype"] = d_dtype
        if self.options.numerics is not None:
            options["numerics"] = self.options.numerics
        return options

    def _place_c(
        self, linear: Linear, addend: Addend, match: Match, d_dtype: torch.dtype, new: list[Node]
    ) -> tuple[Node, Node]:
        """The operands a and c; views of them where c is added in another shape than the product has."""
        product, c_node = value(linear.product), _narrow(addend.node, d_dtype)
        c = value(c_node)
        assert product is not None and c is not None
        if c.dim() <= 1 or same_shape(addend.shape, product.shape):
            return linear.a, c_node
        if not same(addend.shape[-1], product.shape[-1]):
            raise UnfusedError(f"{c_node} is added where the product's columns are split over dimensions")
        rows = product.shape[1:]
        if same_shape(c.shape, addend.shape) and is_contiguous(c) and all(isinstance(x, int) for x in rows):
            return linear.a, self._call(new, match.tail, aten.view.default, c_node, [-1, *rows])
        # A c that is broadcast, or has other strides: the product in its shape, if gemm takes as many dimensions.
        sizes = _sizes_of(addend.shape, match)
        a = value(linear.a)
        k = None if a is None else a.shape[-1]
        if len(addend.shape) != 3 or product.dim() != 2 or sizes is None or not isinstance(k, int):
            raise UnfusedError(
                f"{c_node} of shape {tuple(c.shape)} is added in another shape than the product's, by no view"
            )
        return self._call(new, match.tail, aten.view.default, linear.a, [*sizes[:-1], k]), c_node

    def _reshape(self, d: Node, match: Match, new: list[Node]) -> Node:
        """D in the shape of the match's tail: the views between the product and the tail again, on D."""
        tail, val = value(match.tail), value(d)
        assert tail is not None and val is not None
        if same_shape(val.shape, tail.shape):
            return d
        views, halved = _views(match)
        first = max((i for i, view in enumerate(views) if view.target in SIZED_VIEWS), default=0)
        for i, view in enumerate(views[first:], start=first):
            args = list(view.args[1:])
            if match.gated and i < halved and view.target in SIZED_VIEWS:
                args[0] = [*args[0][:-1], val.shape[-1]]  # type: ignore[index,misc]
                if not isinstance(val.shape[-1], int):
                    raise UnfusedError("the number of columns is not known")
            d = self._call(new, match.tail, view.target, d, *args, **view.kwargs)
        result = value(d)
        if result is None or not same_shape(result.shape, tail.shape):
            raise UnfusedError(f"D is not a view of the shape of {match.tail}")
        return d


def fuse(graph: Graph, options: Options, report: Report, keep_dtype: bool = False) -> None:
    """Rewrites the graph in place. keep_dtype: no op may be given an out_dtype."""
    report.graphs += 1
    Rewriter(graph, options, report, keep_dtype).run()


def leave_all(graph: Graph, reason: str, report: Report) -> None:
    report.graphs += 1
    for node in graph.nodes:
        if is_product(node):
            report.left.append(Left(node.name, problem_of(plain(node)), reason))


def problem_of(alone: Match | None) -> str:
    """The product's M x N x K with the batch before it, symbols as they are, and the dtypes."""
    if alone is None:
        return "?"
    a, d = value(alone.linear.a), value(alone.linear.product)
    if a is None or d is None:
        return "?"
    dtypes = dtype_name(a.dtype) if a.dtype == d.dtype else f"{dtype_name(a.dtype)} to {dtype_name(d.dtype)}"
    return " x ".join(map(str, [*d.shape, a.shape[-1]])) + " " + dtypes


def _activation_text(match: Match) -> str:
    if match.activation is None:
        return ""
    arguments = ", ".join(f"{x:g}" for x in match.activation.args)
    return f" + {match.activation.name}" + (f"({arguments})" if arguments else "")


def _finite(x: float, d_dtype: torch.dtype) -> float:
    """A bound of clamp that AOTInductor can store, which has no infinity."""
    if math.isfinite(x):
        return x
    if d_dtype == torch.float32:
        raise UnfusedError("gemm's clamp has two bounds; with one it is fused for a 16-bit D only")
    return math.copysign(torch.finfo(torch.float32).max, x)  # which a 16-bit D rounds to infinity again


def _narrow(node: Node, d_dtype: torch.dtype) -> Node:
    """The node before it was widened to float32, where gemmx takes it so: the conversion is exact and costs a pass."""
    source = node.args[0] if widens(node) else None
    x = value(source) if isinstance(source, Node) else None
    return source if isinstance(source, Node) and x is not None and x.dtype == d_dtype else node


def _users_behind_views(node: Node) -> Iterable[Node]:
    for user in node.users:
        if user.target in VIEWS:
            yield from _users_behind_views(user)
        else:
            yield user


def _path(match: Match) -> list[Node]:
    """Nodes of the match from the product to its tail; where ways part they meet again, and any will do."""
    path = [match.tail]
    while path[-1] is not match.linear.product:
        path.append(next(x for x in path[-1].all_input_nodes if x in match.nodes))
    return path[::-1]


def _views(match: Match) -> tuple[list[Node], int]:
    """The views on the path and how many of them come before a gate takes halves."""
    path = _path(match)
    views = [i for i, node in enumerate(path) if node.target in VIEWS]
    halves = next((i for i, node in enumerate(path) if name_of(node) in {"slice", "getitem"}), len(path))
    return [path[i] for i in views], sum(i < halves for i in views)


def _sizes_of(shape: torch.Size, match: Match) -> list[Any] | None:
    """The sizes argument of the view on the path that made this shape; symbols are nodes there."""
    for view in _views(match)[0]:
        x = value(view)
        if view.target in SIZED_VIEWS and x is not None and same_shape(x.shape, shape):
            return list(view.args[1])  # type: ignore[arg-type]
    return None
