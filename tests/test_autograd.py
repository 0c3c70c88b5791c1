"""Gradients of gemm and gemm_gated, on the CPU: against float64, under compile, autocast and torch.func."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, vmap

import gemmx
from gemmx import reference
from problems import ACTIVATIONS

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
# Ends of clamp that no bfloat16 has: torch 2.14 has another derivative there than torch 2.11.
ALL = (("none", ()), *(x for x in ACTIVATIONS if x[0] != "clamp"), ("clamp", (-0.501, 2.005)))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def leaves(*tensors: Tensor | None, dtype: torch.dtype | None = None) -> list[Any]:
    """Copies of the same strides that require grad."""
    return [None if x is None else x.detach().to(dtype or x.dtype, copy=True).requires_grad_() for x in tensors]


def plain(
    a: Tensor, b: Tensor, c: Tensor | None = None, bias: Tensor | None = None, *, gated: bool = False, **options: Any
) -> Tensor:
    """The call in torch's own ops, in the tensors' dtype."""
    z = options.get("alpha", 1.0) * (a @ b)
    z = z if c is None else z + options.get("beta", 1.0) * c
    z = z if bias is None else z + bias
    activation = (options.get("activation"), options.get("activation_args"))
    return reference.gate(z, *activation) if gated else reference.activate(z, *activation)


def call(
    a: Tensor, b: Tensor, c: Tensor | None = None, bias: Tensor | None = None, *, gated: bool = False, **options: Any
) -> Tensor:
    if gated:
        return gemmx.gemm_gated(a, b, bias, **options)
    return gemmx.gemm(a, b, c, bias, **options)


def gradients(function: Callable[..., Tensor], tensors: list[Any], **options: Any) -> list[Tensor]:
    d = function(*tensors, **options)
    weights = normal(*d.shape, seed=5, dtype=d.dtype)
    return list(torch.autograd.grad(d, [x for x in tensors if x is not None], weights))


def error(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm().clamp(min=1e-30))


# ---- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("activation", "args"), ALL)
def test_gradients_against_float64(activation: str, args: tuple[float, ...], gated: bool) -> None:
    """Float32 to rounding; bfloat16 no worse than torch's own, which rounds Z before the activation as well."""
    options: dict[str, Any] = {"activation": activation, "activation_args": list(args) or None, "gated": gated}
    options |= {"alpha": 0.5} if gated else {"alpha": 0.5, "beta": 2.0}
    tensors = [normal(33, 64), normal(48, 64).t() / 4, None if gated else normal(33, 48), normal(48)]
    if activation == "hardswish":  # whose derivative jumps at -3 and 3, which a Z that is rounded may reach: stay below
        tensors = [None if x is None else x / 8 for x in tensors]
    for dtype in (F32, BF16):
        rounded = [None if x is None else x.to(dtype) for x in tensors]
        exact = gradients(plain, leaves(*rounded, dtype=F64), **options)
        own = gradients(call, leaves(*rounded), **options)
        torchs = gradients(plain, leaves(*rounded), **options)
        for x, of_torch, reference_ in zip(own, torchs, exact, strict=True):
            assert x.dtype == dtype
            assert error(x, reference_) <= max(1.1 * error(of_torch, reference_), 1e-6)


CASES: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
    "weight stored (N, K)": (normal(6, 4), normal(5, 4).t(), None),
    "b row-major, a column-major": (normal(4, 6).t(), normal(4, 5), normal(5)),
    "batches": (normal(3, 6, 4), normal(3, 4, 5), normal(3, 6, 5)),
    "transposed batches": (normal(3, 4, 6).mT, normal(3, 5, 4).mT, normal(6, 1)),
    "shared b": (normal(3, 6, 4), normal(5, 4).t(), normal(3, 1, 5)),
    "shared a": (normal(6, 4), normal(3, 4, 5), normal(1, 1)),
    "shared a by columns": (normal(4, 6).t(), normal(3, 4, 5), normal(6, 5)),
    "strides that do not fold": (normal(6, 3, 4).transpose(0, 1), normal(4, 5), None),
    "more dimensions": (normal(2, 3, 6, 4), normal(5, 4).t(), normal(3, 6, 5)),
    "expanded": (normal(1, 4).expand(6, 4), normal(4, 5), normal(1)),
    "padded": (normal(6, 9)[:, :4], normal(4, 8)[:, 1:6], None),
    "one row": (normal(1, 4), normal(5, 4).t(), normal(1, 5)),
    "no rows": (normal(0, 4), normal(4, 5), normal(1, 5)),
    "no k": (normal(6, 0), normal(0, 5), normal(6, 5)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_layouts_and_broadcasts(name: str, activation: str) -> None:
    a, b, c = CASES[name]
    tensors = [a, b, c, normal(5)]
    options: dict[str, Any] = {"alpha": 0.5, "activation": activation} | ({} if c is None else {"beta": 2.0})
    own, exact = (
        gradients(f, [None if x is None else x.to(dtype).requires_grad_() for x in tensors], **options)
        for f, dtype in ((call, F32), (plain, F64))
    )
    inputs = [x for x in tensors if x is not None]
    for x, of, reference_ in zip(own, inputs, exact, strict=True):
        assert x.shape == of.shape
        torch.testing.assert_close(x, reference_.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [gemmx.gemm, gemmx.gemm_gated])
def test_the_gradient_of_a_weight_has_its_layout(function: Any) -> None:
    """So that autograd keeps it as it is; a strided one it would copy."""
    weight, b = leaves(normal(8, 4), normal(4, 8))
    function(normal(3, 4), weight.t()).sum().backward()
    function(normal(3, 4), b).sum().backward()
    assert weight.grad.is_contiguous()
    assert b.grad.is_contiguous()


def test_mixed_dtypes() -> None:
    """C and bias of float32 and D of float32, beside bfloat16 operands."""
    a, b, c, bias = normal(6, 4, dtype=BF16), normal(4, 5, dtype=BF16), normal(5), normal(5)
    for out_dtype in (None, F32):
        tensors = leaves(a, b, c, bias)
        own = gradients(call, tensors, activation="silu", out_dtype=out_dtype)
        assert [x.dtype for x in own] == [BF16, BF16, F32, F32]
        for x, exact in zip(own, gradients(plain, leaves(a, b, c, bias, dtype=F64), activation="silu"), strict=True):
            assert error(x, exact) < 0.02
    a, b, bias = leaves(a, normal(4, 10, dtype=BF16), normal(10))
    assert [x.dtype for x in gradients(call, [a, b, None, bias], gated=True, out_dtype=F32)] == [BF16, BF16, F32]


def test_scalars_of_zero() -> None:
    """What is not read has a gradient of zeros, NaN or not."""
    a, b, c = leaves(normal(6, 4), normal(4, 5), torch.full((5,), torch.nan))
    da, db, dc = gradients(lambda a, b, c: gemmx.gemm(a, b, c, alpha=0.0, beta=0.0), [a, b, c])
    assert not torch.cat([x.flatten() for x in (da, db, dc)]).any()


# ---- what is saved ------------------------------------------------------------------------------------------------


def saved(d: Tensor) -> tuple[Any, ...]:
    assert d.grad_fn is not None
    return d.grad_fn.saved_tensors  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("activation", "args", "what"),
    [
        ("none", None, ""),
        ("relu", None, "d"),
        ("sigmoid", None, "d"),
        ("tanh", None, "d"),
        ("leaky_relu", None, "d"),
        ("leaky_relu", [0.2], "d"),
        ("leaky_relu", [0.0], "z"),
        ("leaky_relu", [-1.0], "z"),
        ("clamp", [0.0, 1.0], "z"),
        ("silu", None, "z"),
    ],
)
def test_only_what_a_gradient_needs_is_saved(activation: Any, args: Any, what: str) -> None:
    tensors = [normal(3, 4), normal(4, 5), normal(3, 5), normal(5)]
    for wanted in range(1, 16):
        inputs = [x.clone().requires_grad_(bool(wanted >> i & 1)) for i, x in enumerate(tensors)]
        d = call(*inputs, activation=activation, activation_args=args)
        a, b, of_activation = saved(d)
        assert (a is not None, b is not None) == (bool(wanted & 2), bool(wanted & 1))
        assert (of_activation is not None) == bool(what)
        if what:
            assert (of_activation.data_ptr() == d.data_ptr()) == (what == "d")
        d.sum().backward()
        assert [x.grad is not None for x in inputs] == [x.requires_grad for x in inputs]


def test_gradients_accumulate_and_repeat_their_bits() -> None:
    grads = []
    for _ in range(2):
        a, b, bias = leaves(normal(3, 4), normal(6, 4), normal(6))
        d = gemmx.gemm_gated(a, b.t(), bias)
        d.sum().backward(retain_graph=True)
        once = b.grad.clone()
        d.sum().backward()
        assert torch.equal(b.grad, 2 * once)
        grads.append((a.grad, b.grad, bias.grad))
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))


def test_batch_invariant_gradients_of_a_row() -> None:
    """A row of dA has the same bits in any batch."""
    a, b = leaves(normal(7, 64, dtype=BF16), normal(16, 64, dtype=BF16))
    for function in (gemmx.gemm, gemmx.gemm_gated):
        full, row = (
            torch.autograd.grad(function(x, b.t(), activation="gelu", numerics="batch_invariant").sum(), x)[0]
            for x in (a, a[2:3].detach().requires_grad_())
        )
        assert torch.equal(full[2:3], row)


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    a, b, out = leaves(normal(3, 4), normal(4, 5), normal(3, 5))
    scale = torch.ones(1, requires_grad=True)
    for run in (
        lambda: gemmx.gemm(a, b, out=torch.empty(3, 5)),
        lambda: gemmx.gemm(a.detach(), b.detach(), out=out),
        lambda: torch.ops.gemmx.activation_backward(out, out, activation="relu"),
        lambda: torch.ops.gemmx.gated_backward(out, torch.cat((out, out), 1), activation="silu"),
    ):
        with pytest.raises(RuntimeError, match=r"^gemmx\..* has no gradient and an argument requires grad; "):
            run()
    for refused in (lambda: gemmx.gemm(a, b, scale_a=scale), lambda: gemmx.gemm_gated(a, a.t(), scale_b=scale)):
        with pytest.raises(RuntimeError, match=r"^scale_[ab]: scale tensors are not supported"):
            refused()
    for function in (gemmx.gemm, gemmx.gemm_aux, lambda a, b: gemmx.gemm_gated(a, b[:, :4])):
        for mode in (nullcontext, torch.no_grad):
            with mode(), pytest.raises(RuntimeError, match=r"^gemmx\.gemm.* has no forward-mode gradient"):
                torch.func.jvp(lambda a, f=function: f(a, b.detach()), (a.detach(),), (a.detach(),))


@pytest.mark.parametrize(("activation", "args"), ALL)
def test_gemm_aux_has_the_gradients_of_both(activation: str, args: tuple[float, ...]) -> None:
    a, b, c, bias = tensors = leaves(normal(3, 4), normal(4, 5), normal(5), normal(5))
    d, z = gemmx.gemm_aux(a, b, c, bias, alpha=0.5, activation=activation, activation_args=list(args) or None)
    x = plain(a, b, c, bias, alpha=0.5)
    expected = reference.activate(x, activation, args)
    for y, of in ((d, expected), (z, x), (d + 2 * z, expected + 2 * x)):
        own, others = (torch.autograd.grad(t.square().sum(), tensors, retain_graph=True) for t in (y, of))
        for g, h in zip(own, others, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-5, atol=1e-5)


# ---- further derivatives, torch.func --------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("activation", "args"), ALL)
def test_second_derivatives(activation: str, args: tuple[float, ...], gated: bool) -> None:
    tensors = [normal(6, 4), normal(8, 4).t(), None if gated else normal(8), normal(8)]
    results = []
    for function, dtype in ((call, F32), (plain, F64)):
        inputs = leaves(*tensors, dtype=dtype)
        of = [x for x in inputs if x is not None]
        d = function(*inputs, activation=activation, activation_args=list(args) or None, gated=gated)
        first = torch.autograd.grad(d.square().sum(), of, create_graph=True)
        results.append(torch.autograd.grad(sum(x.square().sum() for x in first), of))
    for x, exact in zip(*results, strict=True):
        assert error(x, exact) < 1e-4


def transforms() -> Iterator[tuple[str, Callable[[Callable[..., Tensor]], Tensor]]]:
    a, w, bias = normal(3, 4), normal(6, 4), normal(6)
    more = normal(5, 3, 4), normal(5, 6, 4), normal(5, 6)
    yield "grad", lambda f: grad(f, 1)(a, w, bias)
    yield "grad of grad", lambda f: grad(lambda w: grad(f)(a, w, bias).square().sum())(w)
    yield "hessian", lambda f: torch.func.jacrev(torch.func.jacrev(f, 2), 2)(a, w, bias)
    yield "gradients of samples", lambda f: vmap(grad(f, 1), (0, None, None))(more[0], w, bias)
    yield "gradients of an ensemble", lambda f: vmap(grad(f, 1))(*more)
    yield "autograd around grad", lambda f: around(f, a, w, bias)


def around(f: Callable[..., Tensor], a: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    w = w.clone().requires_grad_()
    return torch.autograd.grad(grad(f)(a, w, bias).sum(), w)[0]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", dict(transforms()))
def test_transforms_of_torch_func(name: str, gated: bool) -> None:
    run = dict(transforms())[name]
    own, torchs = (
        run(lambda a, w, bias, f=f: f(a, w.mT, None, bias, activation="gelu", gated=gated).square().sum())
        for f in (call, plain)
    )
    torch.testing.assert_close(own, torchs, rtol=1e-4, atol=1e-4)


# ---- vmap ---------------------------------------------------------------------------------------------------------

A, B, C, BIAS = normal(3, 4), normal(4, 5), normal(3, 5), normal(5)
VMAPS: dict[str, tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]] = {
    "a": ((normal(6, 3, 4), B, C, BIAS), (0, None, None, None)),
    "b": ((A, normal(4, 5, 6), None, BIAS), (None, 2, None, None)),
    "a, b, a row of c": ((normal(3, 6, 4), normal(6, 4, 5), normal(6, 5), None), (1, 0, 0, None)),
    "c": ((A, B, normal(6, 3, 5), BIAS), (None, None, 0, None)),
    "bias": ((A, B, None, normal(5, 6)), (None, None, None, 1)),
    "c and bias": ((A, B, normal(5), normal(6, 5)), (None, None, None, 0)),
    "batches of a": ((normal(6, 2, 3, 4), B, normal(6, 3, 5), BIAS), (0, None, 0, None)),
    "batches of both": ((normal(6, 2, 3, 4), normal(2, 4, 5), None, normal(6, 5)), (0, None, None, 0)),
    "batches of b": ((normal(6, 3, 4), normal(2, 4, 5), C, None), (0, None, None, None)),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap_is_a_loop(name: str, recwarn: Any) -> None:
    args, dims = VMAPS[name]
    beta = {} if args[2] is None else {"beta": 2.0}
    for function in (gemmx.gemm, gemmx.gemm_aux):

        def run(*args: Any, f: Any = function) -> Any:
            return f(*args, activation="tanh", **beta)

        own = vmap(run, dims)(*args)
        pairs = list(zip(args, dims, strict=True))
        samples = [run(*(x if x is None or d is None else x.select(d, i) for x, d in pairs)) for i in range(6)]
        if function is gemmx.gemm:
            own, samples = (own,), [(sample,) for sample in samples]
        for x, of_samples in zip(own, zip(*samples, strict=True), strict=True):
            torch.testing.assert_close(x, torch.stack(of_samples), rtol=1e-6, atol=1e-6)
    assert not [w for w in recwarn if "batching rule" in str(w.message)]


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)])
def test_vmap_of_the_gated_form(dims: tuple[int | None, ...]) -> None:
    shapes = ((3, 4), (4, 10), (10,))
    args = [normal(*(() if d is None else (6,)), *shape) for d, shape in zip(dims, shapes, strict=True)]
    samples = [gemmx.gemm_gated(*(x if d is None else x[i] for x, d in zip(args, dims, strict=True))) for i in range(6)]
    torch.testing.assert_close(vmap(gemmx.gemm_gated, dims)(*args), torch.stack(samples))


# ---- autocast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_autocast(dtype: torch.dtype) -> None:
    """B51: as torch.addmm, the 16-bit type for all tensors; gradients have the parameters' dtypes."""
    a, w, c, bias = leaves(normal(3, 4), normal(6, 4), normal(3, 6), normal(6))
    with torch.autocast("cpu", dtype):
        d = gemmx.gemm(a, w.t(), c, bias, precision="ieee")
        z = gemmx.gemm_aux(a, w.t(), c, bias)[1]
        mixed = gemmx.gemm(a.to(dtype), w.t(), c, out_dtype=F32)
        gated = gemmx.gemm_gated(a, w.t(), bias)
        with torch.autocast("cpu", enabled=False):
            assert gemmx.gemm(a, w.t()).dtype == F32
    assert (d.dtype, z.dtype, gated.dtype, mixed.dtype) == (dtype, dtype, dtype, F32)
    cast = [x.detach().to(dtype) for x in (a, w.t(), c, bias)]
    assert torch.equal(d, gemmx.gemm(*cast))
    assert torch.equal(mixed, gemmx.gemm(*cast[:2], c, out_dtype=F32))
    (d.sum() + gated.sum() + mixed.sum()).backward()
    assert [x.grad.dtype for x in (a, w, c, bias)] == [F32] * 4


# ---- compile, fakes -----------------------------------------------------------------------------------------------


def layer(a: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return gemmx.gemm_gated(gemmx.gemm(a, w.t(), bias=bias, activation="gelu"), w, activation="silu") * 2


def torch_layer(a: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return torch.mm(torch.mm(a, w.t()), w) * 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_training_compiles_no_more_often_than_mm(dynamic: bool | None) -> None:
    counts = []
    for function in (layer, torch_layer):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
        for m in (3, 2, 8, 16, 1, 0, 7):
            compiled(*leaves(normal(m, 4), normal(6, 4), normal(6)))
        counts.append(counter.frame_count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for m in (3, 8):
        tensors = normal(m, 4), normal(6, 4), normal(6)
        own, eager = (gradients(f, leaves(*tensors)) for f in (compiled, layer))
        for x, y in zip(own, eager, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
            assert x.stride() == y.stride()


@pytest.fixture
def as_on_cuda() -> Iterator[None]:
    """CPU tensors take the way that the C++ kernels of key AutogradCUDA take."""
    ops = torch.ops.gemmx
    library = torch.library.Library("gemmx", "IMPL")

    def gemm(a: Tensor, b: Tensor, c: Any = None, bias: Any = None, *scales: Any, **options: Any) -> Tensor:
        wants = torch.is_grad_enabled() and ops._wants_gradient(a, b, c, bias)
        return (ops._gemm_recorded if wants else ops._gemm)(a, b, c, bias, *scales, **options)  # type: ignore[no-any-return]

    def gemm_gated(a: Tensor, b: Tensor, bias: Any = None, *scales: Any, **options: Any) -> Tensor:
        wants = torch.is_grad_enabled() and ops._wants_gradient(a, b, None, bias)
        op = ops._gemm_gated_recorded if wants else ops._gemm_gated
        return op(a, b, bias, *scales, **options)  # type: ignore[no-any-return]

    library.impl("gemm", gemm, "AutogradCPU")
    library.impl("gemm_gated", gemm_gated, "AutogradCPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("as_on_cuda")
def test_the_way_over_the_internal_ops() -> None:
    tensors = normal(3, 4), normal(6, 4), normal(6)
    expected = gradients(
        lambda a, w, bias: 2 * plain(plain(a, w.t(), bias=bias, activation="gelu"), w, gated=True), leaves(*tensors)
    )
    test_compiled_gradients("aot_eager")
    torch._dynamo.reset()
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(graph: Any, _: Any) -> Any:
            graphs.append(graph.code)
            return make_boxed_func(graph)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(module, inputs)

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for function in (layer, compiled):
        for x, y in zip(gradients(function, leaves(*tensors)), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        compiled(*tensors)
    forward, backward, inference = graphs
    assert [f"gemmx.{op}.default" in forward for op in ("gemm_aux", "gemm_gated_aux")] == [True] * 2
    assert [f"gemmx.{op}.default" in backward for op in ("activation_backward", "gated_backward", "gemm")] == [True] * 3
    assert [f"gemm{form}.default" in inference for form in ("", "_gated", "_aux")] == [True, True, False]
    assert not any("_wants_gradient" in graph for graph in graphs)
    for name, run in transforms():
        if name != "hessian":
            own, torchs = (
                run(lambda a, w, bias, f=f: f(a, w.mT, None, bias, activation="gelu").square().sum())
                for f in (call, plain)
            )
            torch.testing.assert_close(own, torchs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
def test_fakes_have_gradients(device: str) -> None:
    with FakeTensorMode():
        a, w, c = (torch.empty(shape, device=device, requires_grad=True) for shape in ((2, 3, 4), (6, 4), (6,)))
        d = gemmx.gemm(a, w.t(), c, activation="silu")
        gated = gemmx.gemm_gated(a, w.t())
        assert all(x.requires_grad and x.grad_fn is not None for x in (d, gated))
        if device != "cuda" or torch.cuda.is_available():  # autograd's engine asks the driver
            grads = torch.autograd.grad(d.sum() + gated.sum(), (a, w, c))
            assert [x.shape for x in grads] == [a.shape, w.shape, c.shape]
            assert {x.device.type for x in grads} == {device}
        with torch.no_grad():
            assert not gemmx.gemm(a, w.t()).requires_grad
        assert not gemmx.gemm_gated(a.detach(), w.detach().t()).requires_grad
