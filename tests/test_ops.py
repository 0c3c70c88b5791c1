"""torch.ops.gemmx and gemmx.gemm as torch sees them: schemas, fakes, compile, autograd, out variants; on the CPU."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import gemmx
from gemmx import reference

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
OP, OP_OUT = torch.ops.gemmx.gemm.default, torch.ops.gemmx.gemm_out.default


def normal(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def arguments(m: int = 3, n: int = 5, k: int = 4, batch: tuple[int, ...] = (), dtype: torch.dtype = F32) -> Any:
    """a, b, c and bias."""
    return normal(*batch, m, k, dtype=dtype), normal(k, n, dtype=dtype), normal(m, n, dtype=dtype), normal(n)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


# ---- schemas ----------------------------------------------------------------------------------------------------


def designed_schemas() -> dict[str, str]:
    """The schemas in the design, without their line breaks, by op."""
    text = (Path(__file__).parents[1] / "docs" / "design.md").read_text()
    block = text.partition("## Op surface")[2].split("```")[1]
    lines = re.sub(r"\n\s+", " ", block).splitlines()
    found = [re.match(r"(\w+)\(Tensor.*?\) -> (Tensor|\(.*?\))", line) for line in lines]
    return {match[1]: match[0] for match in found if match}


def schema(op: str) -> str:
    """The registered schema; torch prints the float 1.0 as 1."""
    text = str(getattr(torch.ops.gemmx, op).default._schema)
    return text.removeprefix("gemmx::").replace("=1.,", "=1.0,")


@pytest.mark.parametrize("op", ["gemm", "gemm_gated", "activation_backward", "gated_backward"])
def test_ops_have_the_schemas_of_the_design(op: str) -> None:
    assert schema(op) == designed_schemas()[op]


def test_forms_have_the_arguments_of_their_op() -> None:
    for op in ("gemm", "gemm_gated"):
        assert schema(f"{op}_aux") == schema(op).replace(op, f"{op}_aux", 1).replace(
            "-> Tensor", "-> (Tensor d, Tensor z)"
        )
        for internal in (f"_{op}", f"_{op}_recorded"):
            assert schema(internal) == schema(op).replace(op, internal, 1)
    expected = (
        schema("gemm").removeprefix("gemm(").removesuffix(") -> Tensor").replace("ScalarType? out_dtype=None, ", "")
    )
    assert schema("gemm_out") == f"gemm_out({expected}, Tensor(a!) out) -> ()"


def test_only_out_is_mutated() -> None:
    """B49."""
    assert not OP._schema.is_mutable
    written = [a.name for a in OP_OUT._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["out"]


# ---- opcheck and fakes ------------------------------------------------------------------------------------------

A, B, C, BIAS = arguments()
CALLS: dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]] = {
    "plain": ((A, B), {}),
    "weight": ((A, normal(5, 4).t()), {}),
    "epilogue": ((A, B, C, BIAS), {"alpha": 0.5, "beta": 2.0, "activation": "silu"}),
    "row of c": ((A, B, C[:1]), {"activation": "clamp", "activation_args": [-1.0, 1.0]}),
    "bf16 to f32": ((A.bfloat16(), B.bfloat16()), {"out_dtype": F32}),
    "f16": ((A.half(), B.half(), C.half()), {"activation": "leaky_relu", "activation_args": [0.1]}),
    "batch": ((normal(2, 3, 4), normal(2, 4, 5)), {}),
    "shared b": ((normal(2, 3, 4), B, C), {}),
    "shared a": ((A, normal(2, 4, 5)), {}),
    "expanded": ((normal(1, 1).expand(3, 4), B), {}),
    "one row": ((A[:1], B), {}),
    "no rows": ((A[:0], B), {}),
    "no k": ((A[:, :0], B[:0], None, BIAS), {}),
}


GATED_CALLS: dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]] = {
    "plain": ((A, normal(4, 10)), {}),
    "weight and bias": ((A, normal(10, 4).t(), normal(10)), {"alpha": 0.5, "activation": "gelu"}),
    "batch, bf16 to f32": ((normal(2, 3, 4).bfloat16(), normal(4, 10).bfloat16()), {"out_dtype": F32}),
    "no rows": ((A[:0], normal(4, 10)), {"activation": "clamp", "activation_args": [-1.0, 1.0]}),
    "no k": ((A[:, :0], normal(0, 10), normal(10)), {"activation": "none"}),
}
BACKWARD_CALLS: dict[str, tuple[str, tuple[Tensor, ...], dict[str, Any]]] = {
    "relu": ("activation_backward", (C, normal(3, 5)), {"activation": "relu", "bias_grad": True}),
    "bf16, transposed": (
        "activation_backward",
        (C.bfloat16(), normal(5, 3).t().bfloat16()),
        {"activation": "leaky_relu", "activation_args": [0.5]},
    ),
    "batch": ("activation_backward", (C.expand(2, 3, 5), normal(2, 3, 5)), {"activation": "silu", "bias_grad": True}),
    "gated": ("gated_backward", (C, normal(3, 10)), {"activation": "silu", "bias_grad": True}),
    "gated batch": ("gated_backward", (normal(2, 3, 5), normal(2, 3, 10)), {"activation": "gelu"}),
    "no rows": ("gated_backward", (C[:0], normal(0, 10)), {"activation": "relu", "bias_grad": True}),
    "of a product": ("_gated_dgrad", (normal(3, 4), normal(4, 5), normal(3, 10)), {"alpha": 0.5, "activation": "gelu"}),
    "of a product, bf16": ("_gated_dgrad", (A.bfloat16(), B.bfloat16(), normal(3, 10).bfloat16()), {}),
    "of both products": ("_gated_mlp", (A, normal(10, 4).t(), normal(5, 6), normal(10), normal(6)), {}),
}
OPS = {
    **{f"{op} {name}": (op, *call) for op in ("gemm", "gemm_aux", "_gemm") for name, call in CALLS.items()},
    **{
        f"{op} {name}": (op, *call)
        for op in ("gemm_gated", "gemm_gated_aux", "_gemm_gated")
        for name, call in GATED_CALLS.items()
    },
    **{f"{op} {name}": (op, *call) for name, (op, *call) in BACKWARD_CALLS.items()},
}
# Each takes about a second: every op, and every call of gemm.
OPCHECKED = [x for x in OPS if not x.startswith(("gemm_aux", "_gemm")) or x.endswith(("epilogue", "weight and bias"))]


@pytest.mark.parametrize("name", OPCHECKED)
def test_opcheck(name: str) -> None:
    op, args, options = OPS[name]
    torch.library.opcheck(getattr(torch.ops.gemmx, op).default, args, options)
    if op == "gemm":
        options = {k: v for k, v in options.items() if k != "out_dtype"}
        torch.library.opcheck(OP_OUT, args, {**options, "out": torch.empty_like(OP(*args, **options))})
    if op in ("gemm", "gemm_aux", "gemm_gated", "gemm_gated_aux") and name.endswith(("epilogue", "weight and bias")):
        args = tuple(x.detach().clone().requires_grad_() for x in args)
        torch.library.opcheck(getattr(torch.ops.gemmx, op).default, args, options)


@pytest.mark.parametrize("name", OPS)
def test_fake_and_meta_are_as_the_real_result(name: str) -> None:
    """B48: shape, dtype, device and strides; row-major contiguous."""
    op, args, options = OPS[name]
    run = getattr(torch.ops.gemmx, op).default
    mode = FakeTensorMode()
    fakes = [None if x is None else mode.from_tensor(x) for x in args]
    metas = [None if x is None else x.to("meta") for x in args]
    real = run(*args, **options)
    with mode:
        fake = run(*fakes, **options)
    meta = run(*metas, **options)
    for results in zip(*(x if isinstance(x, tuple) else (x,) for x in (real, fake, meta)), strict=True):
        assert results[0].is_contiguous()
        assert len({(x.shape, x.dtype, x.stride()) for x in results}) == 1
        assert [x.device.type for x in results] == ["cpu", "cpu", "meta"]


# ---- values on the CPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_cpu_keeps_the_bound(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    a, b, c, bias = arguments(17, 19, 130, batch, dtype)
    options: dict[str, Any] = {"alpha": 0.7, "beta": -0.3, "activation": "gelu"}
    d = gemmx.gemm(a, b, c, bias, **options)
    exact = reference.gemm(a, b, c, bias, **options, out_dtype=torch.float64)
    assert not reference.outside_bound(d, exact, reference.error_bound(a, b, c, bias, **options)).any()
    assert torch.equal(d, gemmx.gemm(a, b, c, bias, **options))  # and repeats its bits


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("numerics", [None, "batch_invariant"])
def test_forms_on_the_cpu(dtype: torch.dtype, numerics: Any) -> None:
    if dtype == F32 and numerics:
        pytest.skip("refused")
    a, b, c, bias = normal(17, 130, dtype=dtype), normal(130, 20, dtype=dtype), normal(17, 20, dtype=dtype), normal(20)
    options: dict[str, Any] = {"alpha": 0.7, "activation": "gelu", "numerics": numerics}
    d, z = gemmx.gemm_aux(a, b, c, bias, beta=-0.3, **options)
    assert torch.equal(d, gemmx.gemm(a, b, c, bias, beta=-0.3, **options))
    assert torch.equal(z, gemmx.gemm(a, b, c, bias, beta=-0.3, alpha=0.7, numerics=numerics))
    gated, z = torch.ops.gemmx.gemm_gated_aux(a, b, bias, **options)
    assert torch.equal(gated, gemmx.gemm_gated(a, b, bias, **options))
    assert torch.equal(z, gemmx.gemm(a, b, bias=bias, alpha=0.7, numerics=numerics))
    exact = reference.pre_activation(a, b, bias=bias, alpha=0.7)
    exact = torch.nn.functional.gelu(exact[:, :10]) * exact[:, 10:]
    assert (gated.double() - exact).abs().max() <= exact.abs().max() * torch.finfo(dtype).eps
    assert torch.equal(gemmx.gemm_gated(a, b), gemmx.gemm_gated(a, b, activation="silu"))


@pytest.mark.parametrize(
    ("name", "options"),
    [("kernel", {"kernel": None}), ("schedule", {"schedule": "split_k"}), ("splits", {"splits": 2})],
)
def test_cpu_refuses_what_only_a_kernel_can_honour(name: str, options: dict[str, Any]) -> None:
    if "kernel" in options:
        options = {"kernel": gemmx._C.kernels()[0].name}
    for device in ("cpu", "fake"):
        with FakeTensorMode() if device == "fake" else torch.no_grad():
            a, b = torch.ones(3, 4), torch.ones(4, 5)
            with pytest.raises(RuntimeError, match=rf"^{name}: is .* but a is on cpu, .* move the tensors to cuda$"):
                gemmx.gemm(a, b, **options)


# ---- out --------------------------------------------------------------------------------------------------------


def outs(m: int, n: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Outs of unusual strides and the storage around each, filled with NaN."""
    result = {}
    for name, shape, view in (
        ("transposed", (n, m), lambda x: x.t()),
        ("every second column", (m, 2 * n), lambda x: x[:, ::2]),
        ("window", (m + 2, n + 3), lambda x: x[1 : m + 1, 2 : n + 2]),
        ("columns from the second", (m, n + 1), lambda x: x[:, 1:]),
    ):
        storage = torch.full(shape, torch.nan)
        result[name] = (view(storage), storage)
    return result


@pytest.mark.parametrize("name", outs(1, 1))
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_out_of_any_strides(name: str, activation: Any) -> None:
    """B13, and nothing beside out is written."""
    out, storage = outs(3, 5)[name]
    expected = gemmx.gemm(A, B, C, BIAS, activation=activation)
    assert gemmx.gemm(A, B, C, BIAS, activation=activation, out=out) is out
    assert torch.equal(out, expected)
    assert int(storage.isnan().sum()) == storage.numel() - out.numel()


def test_out_may_be_c() -> None:
    c = C.clone()
    expected = gemmx.gemm(A, B, c, beta=0.5, alpha=2.0)
    gemmx.gemm(A, B, c, beta=0.5, alpha=2.0, out=c)
    assert torch.equal(c, expected)


def test_out_decides_the_dtype() -> None:
    out = torch.empty(3, 5)
    gemmx.gemm(A.bfloat16(), B.bfloat16(), out=out, out_dtype=F32)
    assert torch.equal(out, gemmx.gemm(A.bfloat16(), B.bfloat16(), out_dtype=F32))
    with pytest.raises(ValueError, match=r"^out_dtype: is torch.float16 but out has dtype torch.float32: out decides"):
        gemmx.gemm(A, B, out=out, out_dtype=F16)


def test_autograd_notices_that_out_changed() -> None:
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        x, out = torch.ones(3, 5, requires_grad=True), torch.ones(3, 5)
        y = (x * out).sum()
        with mode():
            gemmx.gemm(A, B, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


# ---- leading dimensions -----------------------------------------------------------------------------------------

LEADING: dict[str, Tensor] = {
    "contiguous": normal(2, 3, 6, 4),
    "decode": normal(2, 3, 1, 4),
    "transposed": normal(2, 3, 4, 6).mT,
    "leading dimensions swapped": normal(3, 2, 6, 4).transpose(0, 1),
    "rows of a larger tensor": normal(2, 5, 6, 4)[:, :3],
    "padded": normal(2, 3, 6, 9)[..., :4],
    "expanded": normal(1, 1, 6, 4).expand(2, 3, 6, 4),
    "five": normal(2, 1, 3, 6, 4),
    "empty": normal(2, 0, 6, 4),
}


@pytest.mark.parametrize("name", LEADING)
def test_leading_dimensions(name: str) -> None:
    a = LEADING[name]
    d_shape = (*a.shape[:-1], 5)
    for c in (None, normal(5), normal(a.shape[-2], 5), normal(*d_shape), normal(3, 1, 5) if a.shape[-3] == 3 else None):
        d = gemmx.gemm(a, B, c, BIAS, activation="relu")
        folded_c = None if c is None else c.expand(d_shape).reshape(-1, 5)
        assert d.shape == d_shape
        assert d.is_contiguous()
        assert torch.equal(d.reshape(-1, 5), gemmx.gemm(a.reshape(-1, 4), B, folded_c, BIAS, activation="relu"))
        out = torch.empty(*d_shape[:-1], 7)[..., 1:6]
        assert gemmx.gemm(a, B, c, BIAS, activation="relu", out=out) is out
        assert torch.equal(out, d)


@pytest.mark.parametrize("name", LEADING)
def test_leading_dimensions_of_the_forms(name: str) -> None:
    a, flat, b = LEADING[name], LEADING[name].reshape(-1, 4), normal(4, 10)
    for own, expected in zip(gemmx.gemm_aux(a, B), gemmx.gemm_aux(flat, B), strict=True):
        assert own.shape == (*a.shape[:-1], 5)
        assert torch.equal(own.reshape(-1, 5), expected)
    d = gemmx.gemm_gated(a, b)
    assert d.shape == (*a.shape[:-1], 5)
    assert torch.equal(d.reshape(-1, 5), gemmx.gemm_gated(flat, b))


def test_leading_dimensions_are_views_where_strides_allow() -> None:
    copied = {"leading dimensions swapped"}
    with gemmx.strict():
        for name in LEADING.keys() - copied:
            gemmx.gemm(LEADING[name], B)
        for name in copied:
            with pytest.raises(RuntimeError, match=r"^strict: the strides of a, c and out keep a's leading dimensions"):
                gemmx.gemm(LEADING[name], B)
            with pytest.raises(RuntimeError, match=r"^strict: a's strides keep its leading dimensions"):
                gemmx.gemm_gated(LEADING[name], normal(4, 10))


def test_leading_dimensions_refuse() -> None:
    a = LEADING["contiguous"]
    with pytest.raises(ValueError, match=r"^a: has 4 dimensions, which fold only with a 2-D b, but b has 3"):
        gemmx.gemm(a, normal(3, 4, 5))
    with pytest.raises(ValueError, match=r"^c: shape is \(4, 1, 1, 1, 1\) but it must broadcast to D's shape"):
        gemmx.gemm(a, B, torch.ones(4, 1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"^out: shape is \(3, 5\) but D is \(2, 3, 6, 5\)$"):
        gemmx.gemm(a, B, out=torch.empty(3, 5))
    swapped = torch.empty(3, 6, 2, 5).permute(2, 0, 1, 3)
    assert gemmx.gemm(a, B, out=swapped) is swapped
    with pytest.raises(ValueError, match=r"^out: its strides keep its leading dimensions from folding"):
        gemmx.gemm(a, B, out=torch.empty(3, 2, 6, 5).transpose(0, 1))


# ---- inference mode -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_are_taken_where_grad_mode_is_off(mode: Callable[[], Any]) -> None:
    weight = B.clone().requires_grad_()
    with mode():
        d = gemmx.gemm(A, weight, out=gemmx.gemm(A, weight))
    assert not d.requires_grad
    assert torch.equal(d, gemmx.gemm(A, B))


# ---- compile and export -----------------------------------------------------------------------------------------


def layer(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return gemmx.gemm(a, b, bias=bias, activation="gelu") * 2 + gemmx.gemm_gated(a, torch.cat((b, b), 1))


def torch_layer(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.mm(a, b) * 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_no_more_often_than_mm(dynamic: bool | None) -> None:
    counts = []
    for function in (layer, torch_layer):
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic)
        for m in (3, 2, 8, 16, 33, 1, 0, 7):
            a = normal(m, 4)
            assert torch.equal(compiled(a, B, BIAS), function(a, B, BIAS))
        counts.append(counter.frame_count)
    assert counts[0] <= counts[1]


def test_inductor_and_a_mutated_out() -> None:
    """B49, and that no schema argument has a name that inductor uses itself."""

    def block(a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> Tensor:
        gemmx.gemm(a, b, out=out)
        gemmx.gemm(a, b, c, out=c)
        return gemmx.gemm(a, b) + out * 2 + c

    c, out = C.clone(), torch.empty(3, 5)
    d = torch.compile(block, fullgraph=True)(A, B, c, out)
    product = gemmx.gemm(A, B)
    assert torch.equal(out, product)
    assert torch.equal(c, gemmx.gemm(A, B, C))
    assert torch.equal(d, product + product * 2 + c)


def test_aot_functionalises_out() -> None:
    def block(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        OP_OUT(a, b, out=out)
        return out * 2

    out = torch.empty(3, 5)
    d = torch.compile(block, backend="aot_eager", fullgraph=True)(A, B, out)
    assert torch.equal(out, gemmx.gemm(A, B))
    assert torch.equal(d, out * 2)


def test_out_with_strides_breaks_the_graph_and_is_right() -> None:
    """Dynamo takes no strided `out=` of any op; it calls the op between two graphs."""
    out, _ = outs(3, 5)["transposed"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "Dynamo does not know how to trace the builtin gemmx._C…": the kernel
        torch.compile(gemmx.gemm, backend="eager")(A, B, out=out)
    assert torch.equal(out, gemmx.gemm(A, B))


def test_the_precision_of_torch_compiles_and_is_followed() -> None:
    """Dynamo can't trace the getter of the setting, which float32 on CUDA reads; a change of it compiles again."""
    matmul = torch.backends.cuda.matmul
    read = torch.compile(lambda x: x + (gemmx.ops._float32_precision() == "tf32"), fullgraph=True, backend="eager")
    before = matmul.fp32_precision
    try:
        for setting, expected in (("ieee", 0.0), ("tf32", 1.0), ("ieee", 0.0)):
            matmul.fp32_precision = setting
            assert read(torch.zeros(1)).item() == expected
    finally:
        matmul.fp32_precision = before


def test_leading_dimensions_compile() -> None:
    compiled = torch.compile(gemmx.gemm, backend="eager", fullgraph=True, dynamic=True)
    for a in (normal(2, 3, 6, 4), normal(3, 5, 2, 4)):
        assert torch.equal(compiled(a, B), gemmx.gemm(a, B))


def relu_backward(grad: Tensor, saved: Tensor) -> Any:
    return torch.ops.gemmx.activation_backward(grad, saved, activation="relu")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((normal(6, 7), normal(8, 9)), r"b: K is .* but a has K = .*: a is \(M, K\)"),
        ((normal(6, 8), normal(8, 9), normal(7, 9)), "c: shape is .* but it must broadcast to D's shape"),
        ((normal(6, 8), normal(8, 9), None, normal(7)), r"bias: shape is .* but it must be \(N,\)"),
        ((normal(3, 6, 8), normal(2, 8, 9)), "b: batch is .* but a has batch ="),
        ((normal(6, 8).int(), normal(8, 9)), "a: dtype is int32 but gemm takes"),
        (("gated", normal(6, 8), normal(8, 9)), "b: has .* columns, an odd number"),
        (("gated", normal(6, 8), normal(8, 10), normal(5)), r"bias: shape is .* but it must be \(2 N,\)"),
        (("backward", normal(6, 8), normal(6, 9)), "grad: shape is"),
    ],
)
def test_symbolic_sizes_are_checked(args: tuple[Any, ...], sentence: str) -> None:
    function: Any = gemmx.gemm
    if isinstance(args[0], str):
        function = {"gated": gemmx.gemm_gated, "backward": relu_backward}[args[0]]
        args = args[1:]
    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    with pytest.raises(RuntimeError, match=sentence):
        compiled(*args)


def test_sizes_that_depend_on_data() -> None:
    def nonzero_rows(x: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return gemmx.gemm(b.new_ones(x.nonzero().shape[0], 4), b, c)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(nonzero_rows, backend="aot_eager", fullgraph=True)
        for c in (BIAS, C[:1]):
            assert torch.equal(compiled(torch.tensor([1, 0, 1]), B, c), gemmx.gemm(torch.ones(2, 4), B, c))


def test_export() -> None:
    class Layer(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
            return layer(a, b, bias)

    m = torch.export.Dim("m", max=64)
    program = torch.export.export(Layer(), (A, B, BIAS), dynamic_shapes={"a": {0: m}, "b": None, "bias": None})
    for rows in (3, 2, 17):
        a = normal(rows, 4)
        assert torch.equal(program.module()(a, B, BIAS), layer(a, B, BIAS))


# ---- settings of torch, strict ----------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The precision of each call of gemmx.gemm, with every float32 tensor taken for a CUDA one."""
    precisions: list[Any] = []

    def record(*args: Any, precision: Any, **options: Any) -> Tensor:
        precisions.append(precision)
        return OP(*args, precision=precision, **options)

    monkeypatch.setattr(gemmx.ops, "_gemm", record)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    return precisions


def test_precision_follows_torch(recorded: list[Any]) -> None:
    """B28; only float32, and only where the caller says nothing."""
    before = torch.get_float32_matmul_precision()
    try:
        for setting in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            gemmx.gemm(A, B)
            gemmx.gemm(A, B, precision="ieee")
            gemmx.gemm(A.half(), B.half())
    finally:
        torch.set_float32_matmul_precision(before)
    assert recorded == [None, "ieee", None, "tf32", "ieee", None, "tf32", "ieee", None]


def test_strict_nests_and_refuses_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not gemmx._strict.strict_is_on()
    with gemmx.strict(), gemmx.strict():
        pass
    assert not gemmx._strict.strict_is_on()
    with gemmx.strict():
        gemmx.gemm(A, B)  # on the CPU there is one path
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        with pytest.raises(RuntimeError, match=r"^strict: compiled code can't be checked"):
            gemmx._strict.refuse_tracing()


@pytest.mark.parametrize(
    ("sizes", "strides", "reason"),
    [
        ((256, 4096), (4096, 1), None),
        ((256, 4095), (4095, 1), "strict: a's rows start at multiples of 2 bytes"),
        ((256, 4096), (8192, 2), "strict: a has strides"),
    ],
)
def test_strict_names_the_slow_path(
    sizes: tuple[int, int], strides: tuple[int, int], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the selector's answers for an H200."""
    device = gemmx.select.profiles.profile("h200")
    monkeypatch.setattr(gemmx._C, "cuda_device", lambda ordinal: device)
    monkeypatch.setattr(gemmx._C, "select", lambda problem, device: choose(problem, device, only_built=False))
    choose = gemmx.select.selector.choose
    k = sizes[1]
    a = gemmx._C.TensorDesc("bf16", "cuda", 0, sizes, strides)
    b = gemmx._C.TensorDesc("bf16", "cuda", 0, (k, 4096), (1, -(-k // 8) * 8))
    checked = gemmx._C.check_gemm(a, b)
    if reason is None:
        gemmx._strict.refuse_slow_path(checked, torch.device("cuda", 0))
    else:
        with pytest.raises(RuntimeError, match=f"^{reason}"):
            gemmx._strict.refuse_slow_path(checked, torch.device("cuda", 0))
