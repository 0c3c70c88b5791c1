"""numerics="batch_invariant": the bits of a row are those that it has in the largest batch, whatever M, place and tile.

The reference is D of 8192 rows at once by the selector's choice. Everything else computes some of these rows:
neighbours from any place, or any rows in any order. Bits are compared as integers, so that zeros must have one sign,
too. What was compared goes to tests/gpu_record/invariant_bits.json.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmx
from gemmx import _C
from gemmx._dtypes import dtype_name
from gemmx.ops import check
from gemmx.select.selector import choose
from problems import ACTIVATIONS, bits
from test_determinism import Load

pytestmark = pytest.mark.gpu

ROWS = 8192
EVERY_M = (*range(1, 131), 257, 1000, 2048, ROWS)
EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 257, 1000)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
dtypes = pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
Record = Callable[[str, object], None]


@dataclass
class Comparison:
    """Elements compared and elements that differed, by what computed them. The GPU counts; nothing waits for it."""

    compared: Counter[str] = field(default_factory=Counter)
    differing: dict[str, Tensor] = field(default_factory=dict)

    def add(self, what: str, d: Tensor, expected: Tensor) -> None:
        different = (bits(d) != bits(expected)) & ~(d.isnan() & expected.isnan())  # a NaN is a NaN
        self.compared[what] += d.numel()
        self.differing[what] = self.differing.get(what, 0) + different.sum()

    def close(self, record_property: Record, **facts: object) -> None:
        wrong = {what: int(count) for what, count in self.differing.items() if count}
        total = sum(self.compared.values())
        counts = {"elements compared": total, "elements differing": sum(wrong.values())}
        record_property("invariant_bits", counts | {"computed by": len(self.compared)} | facts)
        assert total > 0
        assert not wrong, f"{len(wrong)} of {len(self.compared)}: " + ", ".join(
            f"{what} in {count} of {self.compared[what]}" for what, count in wrong.items()
        )


class Layer:
    """The rows of a, a weight in both majors, an epilogue, and D of all rows."""

    def __init__(
        self,
        n: int,
        k: int,
        dtype: torch.dtype,
        *,
        out_dtype: torch.dtype | None = None,
        c: bool = False,
        bias: bool = False,
        activation: str | None = None,
        activation_args: tuple[float, ...] = (),
        rows: int = ROWS,
        place: str = "cuda",
    ) -> None:
        generator = torch.Generator(place).manual_seed(n * 1009 + k)
        normal = lambda *shape: torch.randn(shape, generator=generator, device=place)  # noqa: E731
        self.random = random.Random(n * 1009 + k)
        self.dtype, self.n, self.k = dtype, n, k
        weight = (normal(n, k) * k**-0.5).to(dtype)
        self.a = normal(rows, k).to(dtype)
        self.b = {"k": weight.t(), "n": weight.t().contiguous()}
        self.c = normal(rows, n).to(out_dtype or dtype) if c else None
        self.options: dict[str, Any] = {"out_dtype": out_dtype, "numerics": "batch_invariant"}
        if c:
            self.options["beta"] = 0.5
        if bias:
            self.options["bias"] = normal(n).to(dtype)
        if activation:
            self.options |= {"activation": activation, "activation_args": list(activation_args) or None}
        self.expected = self.call(self.a, self.c)

    def call(self, a: Tensor, c: Tensor | None, major_b: str = "k", **request: Any) -> Tensor:
        return gemmx.gemm(a, self.b[major_b], c, **self.options | request)

    def rows(self, m: int) -> slice | Tensor:
        """Which m rows: neighbours, or any in any order."""
        first = self.random.randint(0, len(self.a) - m)
        if self.random.random() < 0.5:
            return torch.tensor([self.random.randrange(len(self.a)) for _ in range(m)], device=self.a.device)
        return slice(first, first + m)

    def some(self, m: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """(a, c, expected D) of m rows."""
        rows = self.rows(m)
        return self.a[rows], None if self.c is None else self.c[rows], self.expected[rows]


def along_m(a: Tensor) -> Tensor:
    """The same matrix M-major; every other M with 16-byte aligned rows."""
    m, k = a.shape
    padded = -(-m // 8) * 8 if m % 2 == 0 else m
    return a.new_empty(k, padded)[:, :m].copy_(a.t()).t()


def members(dtype: torch.dtype, device: _C.Device) -> list[_C.KernelSpec]:
    """The registered kernels of this GPU that take a batch_invariant problem of their own majors."""
    found = []
    for spec in _C.kernels():
        if spec.dtype_a != dtype_name(dtype) or not _C.built_for(spec.name, device.capability):
            continue
        a = torch.empty(64, 64, dtype=dtype, device="meta")
        b = torch.empty(64, 64, dtype=dtype, device="meta")
        a, b = a.t() if spec.major_a == "m" else a, b if spec.major_b == "n" else b.t()
        if not _C.supports(spec.name, check(a, b, numerics="batch_invariant").problem, device):
            found.append(spec)
    return found


def takes(spec: _C.KernelSpec, m: int) -> bool:
    """A single row counts as K-major, whatever its strides."""
    return m > 1 or spec.major_a != "m"


def by_kernel(layer: Layer, spec: _C.KernelSpec, m: int, found: Comparison, **request: Any) -> None:
    if not takes(spec, m):
        return
    a, c, expected = layer.some(m)
    if spec.major_a == "m":
        a = along_m(a)
    major_b = "n" if spec.major_b == "n" else "k"
    found.add(spec.name, layer.call(a, c, major_b, kernel=spec.name, **request), expected)


# (N, K), epilogue, D, every M or those at the edges of tiles. N = 264: D leaves by TMA; 131: by rows, and what float32
# D takes instead; K = 301: operands are packed.
SWEEPS: tuple[tuple[int, int, dict[str, Any], bool, tuple[int, ...]], ...] = (
    (264, 520, {}, True, EVERY_M),
    (264, 520, {"c": True, "bias": True, "activation": "gelu"}, False, EDGES),
    (131, 301, {"c": True, "bias": True, "activation": "silu"}, True, EDGES),
    (131, 301, {}, False, EDGES),
)


@dtypes
def test_every_kernel_of_the_class_gives_a_row_the_same_bits(
    dtype: torch.dtype, device: _C.Device, record_property: Record
) -> None:
    kernels = members(dtype, device)
    assert kernels
    assert {spec.numerics for spec in kernels} == {_C.batch_invariant_class(device.capability)}
    found = Comparison()
    before = _C.launch_counts()
    for n, k, epilogue, wide, sizes in SWEEPS:
        layer = Layer(n, k, dtype, out_dtype=F32 if wide else None, **epilogue)
        for spec in kernels:
            for m in sizes:
                by_kernel(layer, spec, m, found)
    after = _C.launch_counts()
    calls = {spec.name: sum(takes(spec, m) for *_, sizes in SWEEPS for m in sizes) for spec in kernels}
    assert all(after[name] - before[name] >= count > 100 for name, count in calls.items())
    found.close(record_property, kernels=len(kernels), calls=sum(calls.values()))


# (N, K), epilogue, D, rows: K that batch_invariant cuts into 2, 3 and 4, whole units and not; tiles fewer than SMs, and
# many more, so that each consumer keeps the sums of several.
CUT_SWEEPS: tuple[tuple[int, int, dict[str, Any], bool, tuple[int, ...]], ...] = (
    (264, 8456, {}, True, (1, 3, 17, 64, 65, 130, 257, 1000)),
    (131, 16389, {"c": True, "bias": True, "activation": "silu"}, True, (1, 33, 130)),
    (264, 24840, {"bias": True, "activation": "gelu"}, False, (5, 129)),
    (4096, 8704, {"c": True}, False, (2, 48, 1500)),
)


@dtypes
def test_every_kernel_adds_up_cuts_in_one_order(dtype: torch.dtype, device: _C.Device, record_property: Record) -> None:
    """By split-K, in a cluster or through the workspace, and one after the other in a CTA."""
    kernels, found = members(dtype, device), Comparison()
    plain = next(spec for spec in kernels if (spec.major_a, spec.major_b) == ("k", "k"))
    cuts = set()
    for n, k, epilogue, wide, sizes in CUT_SWEEPS:
        cuts.add(_C.splits_for(n, k, 2))
        layer = Layer(n, k, dtype, out_dtype=F32 if wide else None, rows=1500, **epilogue)
        # Not another order that all of them share: split-K with the same cuts by the default numerics.
        default = {"numerics": None, "kernel": plain.name, "splits": _C.splits_for(n, k, 2)}
        found.add("default split-K", layer.call(layer.a, layer.c, **default), layer.expected)
        for spec in kernels:
            for schedule in ("split_k", "data_parallel") if spec.adds_cuts_itself else ("split_k",):
                for m in sizes:
                    by_kernel(layer, spec, m, found, schedule=schedule)
    assert cuts == {2, 3, 4}
    found.close(record_property, kernels=len(kernels))


def test_cuts_without_a_selector(device: _C.Device, record_property: Record) -> None:
    layer, found = Layer(4096, 14336, BF16, rows=300), Comparison()
    _C.set_selector(None)
    try:
        for m in (1, 65, 300):
            a, c, expected = layer.some(m)
            found.add("by priority", layer.call(a, c), expected)
    finally:
        _C.set_selector(choose)
    found.close(record_property)


@dtypes
def test_every_activation_has_the_same_bits_in_every_kernel(
    dtype: torch.dtype, device: _C.Device, record_property: Record
) -> None:
    """Its code is compiled once for each kernel and way of storing D."""
    kernels, found = members(dtype, device), Comparison()
    for activation, args in ACTIVATIONS:
        for n, wide in ((72, True), (72, False), (67, False)):
            options: dict[str, Any] = {"out_dtype": F32 if wide else None, "bias": True}
            layer = Layer(n, 136, dtype, activation=activation, activation_args=args, rows=130, **options)
            for spec in kernels:
                for m in (3, 130) if wide else (70,):
                    by_kernel(layer, spec, m, found)
    found.close(record_property, kernels=len(kernels), activations=len(ACTIVATIONS))


@dtypes
def test_zeros_infinities_and_nans_are_those_of_the_row_alone(
    dtype: torch.dtype, device: _C.Device, record_property: Record
) -> None:
    """Tiles differ in how many zeros they add behind the end of K, and a neighbour's NaN is the neighbour's."""
    kernels, found = members(dtype, device), Comparison()
    for k in (16, 64, 72, 128, 200, 256, 520):
        layer = Layer(72, k, dtype, out_dtype=F32, rows=130)
        layer.a[0::7], layer.a[1::7] = 0.0, -0.0
        layer.a[2::7, 3], layer.a[3::7, 5], layer.a[4::7, k - 1] = torch.inf, torch.nan, -torch.inf
        layer.expected = layer.call(layer.a, None)
        for spec in kernels:
            for m in (1, 17, 130):
                by_kernel(layer, spec, m, found)
    found.close(record_property, kernels=len(kernels))


@dtypes
def test_where_nothing_is_summed_every_kernel_gives_the_epilogues_bits(
    dtype: torch.dtype, device: _C.Device, record_property: Record
) -> None:
    found = Comparison()
    for wide in (True, False):
        options: dict[str, Any] = {"out_dtype": F32 if wide else None, "activation": "gelu_tanh"}
        layer = Layer(67, 64, dtype, c=True, bias=True, rows=257, **options)
        layer.options["alpha"] = 0.0
        layer.expected = layer.call(layer.a, layer.c)
        for spec in _C.kernels():
            if spec.dtype_a == dtype_name(dtype) and _C.built_for(spec.name, device.capability):
                problem = check(layer.a, layer.b["k"], layer.c, **layer.options).problem
                if not _C.supports(spec.name, problem, device):
                    for m in (1, 17, 130, 257):
                        by_kernel(layer, spec, m, found)
        for m in EDGES[:-1]:
            a, c, expected = layer.some(m)
            found.add("the selector", layer.call(a, c), expected)
    assert len(found.compared) > 1
    found.close(record_property)


# ---- the selector's choice -------------------------------------------------------------------------------------------

LAYERS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (4096, 4096, {"out_dtype": F32}),
    (4096, 14336, {"c": True}),  # K in two cuts
    (3584, 18944, {"bias": True}),  # and here
    (6144, 4096, {"bias": True, "activation": "silu"}),
    (28672, 4096, {"bias": True}),
    (2056, 4104, {"out_dtype": F32, "c": True, "bias": True, "activation": "gelu"}),
    (1023, 2049, {"bias": True, "activation": "relu"}),
)


@pytest.mark.parametrize(("n", "k", "epilogue"), LAYERS, ids=lambda x: str(x) if isinstance(x, int) else "-".join(x))
def test_the_op_gives_a_row_the_same_bits_for_every_m(
    n: int, k: int, epilogue: dict[str, Any], device: _C.Device, record_property: Record
) -> None:
    layer, found = Layer(n, k, BF16, **epilogue), Comparison()
    before = _C.launch_counts()
    for m in EVERY_M:
        a, c, expected = layer.some(m)
        found.add("weight (N, K)", layer.call(a, c), expected)
        if m in EDGES:
            found.add("weight (K, N)", layer.call(a, c, "n"), expected)
            found.add("a along M", layer.call(along_m(a), c), expected)
    after = _C.launch_counts()
    found.close(record_property, kernels=sum(after[name] > before[name] for name in after))


def test_f16_by_the_op(device: _C.Device, record_property: Record) -> None:
    layer, found = Layer(4096, 4096, F16, bias=True, activation="gelu"), Comparison()
    for m in (*EDGES, ROWS):
        a, c, expected = layer.some(m)
        found.add("weight (N, K)", layer.call(a, c), expected)
        found.add("weight (K, N)", layer.call(a, c, "n"), expected)
    found.close(record_property)


def compare_gradients(layer: Layer, call: Callable[[Tensor], Tensor], sizes: Iterable[int], found: Comparison) -> None:
    """The gradient of some rows of A beside that of all rows; dD is the same for a row wherever it stands."""

    def gradient(rows: slice | Tensor) -> Tensor:
        a = layer.a[rows].clone().requires_grad_()
        return torch.autograd.grad(call(a), a, dd[rows])[0]

    every = slice(0, len(layer.a))
    with torch.no_grad():
        dd = torch.randn_like(call(layer.a))
    expected = gradient(every)
    for m in sizes:
        rows = layer.rows(m)
        found.add(f"dA of {layer.n}x{layer.k}", gradient(rows), expected[rows])


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (6144, 4096), (4096, 14336), (14336, 4096), (1023, 2049)])
def test_the_gradient_of_a_row(n: int, k: int, record_property: Record) -> None:
    """dgrad: of its product N is K, so that 14336 columns of D are cut in two."""
    found = Comparison()
    layer = Layer(n, k, BF16, bias=True, activation="silu")
    compare_gradients(layer, lambda a: layer.call(a, None), EVERY_M, found)
    found.close(record_property)


@pytest.mark.parametrize(("n", "k"), [(2 * 14336, 4096), (2 * 1024, 2048)])
def test_the_gradient_of_a_gated_row(n: int, k: int, record_property: Record) -> None:
    found = Comparison()
    layer = Layer(n, k, BF16)
    gated = lambda a: gemmx.gemm_gated(a, layer.b["k"], activation="silu", numerics="batch_invariant")  # noqa: E731
    compare_gradients(layer, gated, EDGES, found)
    found.close(record_property)


def test_batches_of_a(device: _C.Device, record_property: Record) -> None:
    """3-D and 4-D a: folded into one product, or a batch of them where the strides do not collapse."""
    layer, found = Layer(4096, 4096, BF16, bias=True, activation="silu"), Comparison()
    x, d = layer.a[:256], layer.expected[:256]
    for shape in ((64, 1), (1, 64), (8, 16), (2, 128), (256, 1), (2, 4, 32)):
        rows = torch.Size(shape).numel()
        found.add(f"{len(shape) + 1}-D", layer.call(x[:rows].view(*shape, -1), None).view(rows, -1), d[:rows])
    apart = x.view(4, 64, -1)[:, ::2]
    found.add("a with a gap", layer.call(apart, None), d.view(4, 64, -1)[:, ::2])
    shared = layer.b["k"].expand(4, -1, -1)
    found.add("b shared", gemmx.gemm(x.view(4, 64, -1), shared, **layer.options), d.view(4, 64, -1))
    found.close(record_property)


def test_cuda_graphs(device: _C.Device, record_property: Record) -> None:
    layer, found = Layer(6144, 4096, BF16, bias=True, activation="gelu"), Comparison()
    taken = [layer.some(m) for m in (1, 3, 16, 64, 65, 130, 1000)]
    for a, c, _ in taken:
        layer.call(a, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [layer.call(a, c) for a, c, _ in taken]
    for _ in range(3):
        for d in results:
            d.fill_(torch.nan)
        graph.replay()
        for d, (*_, expected) in zip(results, taken, strict=True):
            found.add("a graph", d, expected)
    found.close(record_property)


def test_torch_compile(device: _C.Device, record_property: Record) -> None:
    layer, found = Layer(4096, 4096, BF16, bias=True, activation="relu"), Comparison()
    for dynamic in (False, True):
        compiled = torch.compile(
            lambda a: gemmx.gemm(a, layer.b["k"], **layer.options),
            fullgraph=True, dynamic=dynamic, backend="aot_eager",
        )  # fmt: skip
        for m in (2, 17, 130, 1000):
            a, _, expected = layer.some(m)
            found.add("dynamic" if dynamic else "static", compiled(a), expected)
    found.close(record_property)


def test_under_load_on_another_stream(device: _C.Device, record_property: Record) -> None:
    layer, found, load = Layer(4096, 14336, BF16), Comparison(), Load()
    taken = [layer.some(m) for m in (1, 8, 16, 33, 64, 128, 257, 1000)]
    torch.cuda.synchronize()
    for _ in range(8):
        load.add()
        for a, c, expected in taken:
            torch.full((1 << 21,), torch.nan, device="cuda")  # the allocator's next D and workspace
            found.add("under load", layer.call(a, c), expected)
    torch.cuda.synchronize()
    found.close(record_property)


def test_out_of_any_layout(device: _C.Device, record_property: Record) -> None:
    layer, found = Layer(264, 520, BF16, bias=True, activation="gelu"), Comparison()
    options = {name: value for name, value in layer.options.items() if name != "out_dtype"}
    for m in EDGES:
        a, _, expected = layer.some(m)
        for what, out in outs(m, layer.n):
            found.add(what, gemmx.gemm(a, layer.b["k"], out=out, **options), expected)
    found.close(record_property)


def outs(m: int, n: int) -> Iterator[tuple[str, Tensor]]:
    empty = lambda *shape: torch.empty(shape, device="cuda", dtype=BF16)  # noqa: E731
    yield "packed", empty(m, n)
    yield "padded", empty(m, n + 8)[:, :n]
    yield "odd rows", empty(m, n + 1)[:, :n]
    yield "offset", empty(m * n + 1)[1:].view(m, n)
    yield "along M", empty(n, m).t()
    yield "every other", empty(m, 2 * n)[:, ::2]
