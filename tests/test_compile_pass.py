"""gemmx.compile_pass: which graphs it rewrites, what they compute then, and why it leaves the rest; on the CPU.

Most tests trace a function with Inductor's decompositions, as Inductor's graphs after autograd are, run the pass on the
graph, and the graph in eager mode: milliseconds, where Inductor itself compiles C++ for seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812, as everywhere
from torch import Tensor
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmx
from gemmx.fusion.inductor import CompilePass, _Chain

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GEMM, GATED = torch.ops.gemmx.gemm.default, torch.ops.gemmx.gemm_gated.default
M, S, N, K = 4, 8, 32, 64

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert config.post_grad_custom_pre_pass is None


def normal(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def operands(dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An x (M, S, K), a weight (N, K), a bias (N,) and a residual (M, S, N)."""
    return (
        normal(M, S, K, dtype=dtype),
        normal(N, K, dtype=dtype) / 8,
        normal(N, dtype=dtype),
        normal(M, S, N, dtype=dtype),
    )


def cpu_pass(**options: Any) -> CompilePass:
    return gemmx.compile_pass(devices=("cpu",), **options)


def rewrite(function: Callable[..., Any], *args: Tensor, **options: Any) -> tuple[CompilePass, torch.fx.GraphModule]:
    """The pass after a graph of the function, and the graph."""
    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*args)
    traced.graph.eliminate_dead_code()
    done = cpu_pass(**options)
    done(traced.graph)
    traced.graph.lint()
    traced.recompile()
    return done, traced


def calls(traced: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in traced.graph.nodes if node.target in {GEMM, GATED}]


def gates(z: Tensor) -> Any:
    return z.chunk(2, -1)


def gated(act: Callable[[Tensor], Tensor], halves: Any) -> Tensor:
    return act(halves[0]) * halves[1]


def tanh_gelu(z: Tensor) -> Tensor:
    """As some models spell it."""
    return 0.5 * z * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (z + 0.044715 * torch.pow(z, 3.0))))


def hard_swish(z: Tensor) -> Tensor:
    return z * (F.relu6(z + 3.0) / 6.0)


# What each becomes. The functions run in float64 too.
REWRITTEN: dict[str, tuple[Function, str]] = {
    "bias": (lambda x, w, b, r: F.linear(x, w, b), "gemm + bias"),
    "bias added": (lambda x, w, b, r: F.linear(x, w) + b, "gemm + bias"),
    "residual": (lambda x, w, b, r: r + F.linear(x, w), "gemm + c"),
    "residual and bias": (lambda x, w, b, r: F.linear(x, w, b) + r, "gemm + c + bias"),
    "scaled residual": (lambda x, w, b, r: torch.add(F.linear(x, w), r, alpha=0.5), "gemm + c"),
    "scaled product": (lambda x, w, b, r: torch.add(r, F.linear(x, w), alpha=2), "gemm + c"),
    "scaled, residual, relu": (lambda x, w, b, r: F.relu(F.linear(x, w) * 0.5 + r), "gemm + c + relu"),
    "two biases": (lambda x, w, b, r: F.linear(x, w, b) + b, "gemm + c + bias"),
    "row for every batch": (lambda x, w, b, r: F.linear(x, w) + r[0], "gemm + c"),
    "row for every row": (lambda x, w, b, r: F.linear(x, w) + r[:, :1], "gemm + c"),
    "residual, other strides": (lambda x, w, b, r: F.linear(x, w) + r.mT.contiguous().mT, "gemm + c"),
    "residual of two dimensions": (lambda x, w, b, r: F.linear(x[0], w) + r[0], "gemm + c"),
    "relu": (lambda x, w, b, r: F.relu(F.linear(x, w, b)), "gemm + bias + relu"),
    "gelu": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), "gemm + bias + gelu"),
    "gelu_tanh": (lambda x, w, b, r: F.gelu(F.linear(x, w), approximate="tanh"), "gemm + gelu_tanh"),
    "gelu_tanh spelled": (lambda x, w, b, r: tanh_gelu(F.linear(x, w)), "gemm + gelu_tanh"),
    "silu": (lambda x, w, b, r: F.silu(F.linear(x, w)), "gemm + silu"),
    "silu spelled": (lambda x, w, b, r: (z := F.linear(x, w)) * torch.sigmoid(z), "gemm + silu"),
    "sigmoid": (lambda x, w, b, r: torch.sigmoid(F.linear(x, w)), "gemm + sigmoid"),
    "tanh": (lambda x, w, b, r: torch.tanh(F.linear(x, w)), "gemm + tanh"),
    "hardswish": (lambda x, w, b, r: F.hardswish(F.linear(x, w)), "gemm + hardswish"),
    "hardswish spelled": (lambda x, w, b, r: hard_swish(F.linear(x, w)), "gemm + hardswish"),
    "leaky_relu": (lambda x, w, b, r: F.leaky_relu(F.linear(x, w), 0.1), "gemm + leaky_relu(0.1)"),
    "relu6": (lambda x, w, b, r: F.relu6(F.linear(x, w)), "gemm + clamp(0, 6)"),
    "clamp": (lambda x, w, b, r: F.linear(x, w).clamp(-0.5, 1.5), "gemm + clamp(-0.5, 1.5)"),
    "clamp from below": (lambda x, w, b, r: F.linear(x, w).clamp(min=0.5), "gemm + clamp(0.5, inf)"),
    "clamp from above": (lambda x, w, b, r: F.linear(x, w).clamp(max=0.5), "gemm + clamp(-inf, 0.5)"),
    "residual and silu": (lambda x, w, b, r: F.silu(F.linear(x, w, b) + r), "gemm + c + bias + silu"),
    "gate of chunks": (lambda x, w, b, r: gated(F.silu, gates(F.linear(x, w))), "gemm_gated + silu"),
    "gate after up": (
        lambda x, w, b, r: (z := F.linear(x, w, b))[..., N // 2 :] * F.gelu(z[..., : N // 2]),
        "gemm_gated + bias + gelu",
    ),
    "gate of slices": (
        lambda x, w, b, r: F.relu((z := F.linear(x, w))[..., : N // 2]) * z[..., N // 2 :],
        "gemm_gated + relu",
    ),
    "gate of split sizes": (
        lambda x, w, b, r: gated(torch.sigmoid, F.linear(x, w).split([N // 2, N // 2], -1)),
        "gemm_gated + sigmoid",
    ),
    "gate of two dimensions": (
        lambda x, w, b, r: gated(F.silu, gates(F.linear(x[0], w))),
        "gemm_gated + silu",
    ),
    "addmm": (lambda x, w, b, r: torch.addmm(r[0], x[0], w.t(), beta=0.5, alpha=2), "gemm + c"),
    "addmm of a scaled bias": (lambda x, w, b, r: torch.addmm(b, x[0], w.t(), beta=0.5), "gemm + c"),
    "bmm": (lambda x, w, b, r: F.relu(torch.bmm(x, x.mT)), "gemm + relu"),
    "baddbmm": (lambda x, w, b, r: torch.baddbmm(x[:, :, :S], x, x.mT, alpha=0.25), "gemm + c"),
    "heads": (lambda x, w, b, r: F.relu((x.view(2, 2, S, K) @ x.view(2, 2, S, K).mT) * 0.5), "gemm + relu"),
    "heads and a mask": (
        lambda x, w, b, r: F.relu(
            x.view(2, 2, S, K) @ x.view(2, 2, S, K).mT + x[..., :S].contiguous().view(2, 2, S, S)
        ),
        "gemm + c + relu",
    ),
    "views between": (lambda x, w, b, r: F.relu(F.linear(x, w).view(2, 2, S, N).unsqueeze(0)), "gemm + relu"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewrites(name: str) -> None:
    """One op, right to D's last rounding: less is rounded in between than before."""
    function, text = REWRITTEN[name]
    args = operands()
    done, traced = rewrite(function, *args)
    assert [x.op for x in done.rewritten] == [text]
    assert done.left == []
    assert calls(traced) == [GATED if "gated" in text else GEMM]
    unfused = function(*args)
    d = traced(*args)
    assert (d.shape, d.dtype, d.stride()) == (unfused.shape, unfused.dtype, unfused.stride())
    exact = function(*(x.double() for x in args))
    torch.testing.assert_close(d.double(), exact, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("name", ["residual and silu", "gate after up", "clamp"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    function, text = REWRITTEN[name]
    args = operands(dtype)
    done, traced = rewrite(function, *args)
    assert [x.op for x in done.rewritten] == [text]
    exact = function(*(x.double() for x in args))
    torch.testing.assert_close(traced(*args).double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


def asserted(z: Tensor) -> Tensor:
    """With the assertion that torch.export puts beside conversions."""
    torch.ops.aten._assert_tensor_metadata(z, None, None, z.dtype)
    return z


# Functions that convert between types, so that float64 says nothing: (function, op, D's dtype).
CONVERTED: dict[str, tuple[Function, str, torch.dtype]] = {
    "float32 until the end": (
        lambda x, w, b, r: F.relu(F.linear(x, w).float() + r.float()).to(BF16),
        "gemm + c + relu",
        BF16,
    ),
    "float32 D": (lambda x, w, b, r: F.silu(F.linear(x, w, b).float()), "gemm + bias + silu", F32),
    "float32 residual": (lambda x, w, b, r: F.linear(x, w) + r.float(), "gemm + c", F32),
    "float32 bias": (lambda x, w, b, r: (F.linear(x, w) + b.float()).to(BF16), "gemm + bias", BF16),
    "float32 gate": (
        lambda x, w, b, r: gated(F.silu, gates(F.linear(x, w).float())).to(BF16),
        "gemm_gated + silu",
        BF16,
    ),
    "asserted": (lambda x, w, b, r: F.relu(asserted(F.linear(x, w)).float()).to(BF16), "gemm + relu", BF16),
    "D is widened later": (lambda x, w, b, r: F.relu(F.linear(x, w)).float(), "gemm + relu", F32),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_conversions(name: str) -> None:
    function, text, dtype = CONVERTED[name]
    args = operands()
    done, traced = rewrite(function, *args)
    assert [x.op for x in done.rewritten] == [text]
    d, unfused = traced(*args), function(*args)
    assert d.dtype == unfused.dtype == dtype
    torch.testing.assert_close(d, unfused, rtol=2**-6, atol=2**-6)


def test_widened_operands_are_read_as_they_were() -> None:
    """A residual that was only converted to float32 is C itself: no conversion is left, and no float32 copy."""
    _, traced = rewrite(CONVERTED["float32 until the end"][0], *operands())
    assert not [node for node in traced.graph.nodes if "convert_element_type" in str(node.target)]


def test_one_product_of_two_takes_the_other_as_c() -> None:
    done, traced = rewrite(lambda x, w, b, r: F.linear(x, w) + F.relu(F.linear(x + 1, w, b)), *operands())
    assert [x.op for x in done.rewritten] == ["gemm + c", "gemm + bias + relu"]
    assert calls(traced) == [GEMM, GEMM]


def test_a_block_of_layers() -> None:
    """Every product of a layer, its residual stream included; names and order are the graph's."""

    def block(x: Tensor, up: Tensor, down: Tensor, bias: Tensor) -> Tensor:
        for _ in range(3):
            gate, value = gates(F.linear(F.layer_norm(x, (K,)), up))
            x = x + F.linear(F.silu(gate) * value, down, bias)
        return x

    args = (normal(M, S, K), normal(2 * N, K) / 8, normal(K, N) / 8, normal(K))
    done, traced = rewrite(block, *args)
    assert [x.op for x in done.rewritten] == ["gemm_gated + silu", "gemm + c + bias"] * 3
    assert done.left == []
    torch.testing.assert_close(traced(*args), block(*args), rtol=2**-5, atol=2**-4)


# ---- what is left -------------------------------------------------------------------------------------------------

LEFT: dict[str, tuple[Function, str]] = {
    "alone": (lambda x, w, b, r: F.linear(x, w), "nothing to fuse: its result goes to output"),
    "softmax": (lambda x, w, b, r: F.linear(x, w).softmax(-1), "nothing to fuse: its result goes to "),
    "scaled only": (lambda x, w, b, r: F.linear(x, w) * 0.5, "nothing to fuse: its result goes to mul"),
    "one number added": (lambda x, w, b, r: F.linear(x, w) + 2, "nothing to fuse: its result goes to add"),
    "used twice": (lambda x, w, b, r: F.relu(z := F.linear(x, w)) + z.sum(), "view_1 is used by sum_1 too"),
    "returned too": (
        lambda x, w, b, r: (F.gelu(z := F.linear(x, w)), z),  # type: ignore[return-value]
        "view_1 is an output of the graph too, or kept for the backward pass",
    ),
    "two weights": (
        lambda x, w, b, r: F.silu(F.linear(x, w)) * F.linear(x, w * 2),
        "mm and mm_1 are gate and up of two weights: gemm_gated takes one, gate | up; gemmx.convert makes it once, "
        "here it would be a copy a call",
    ),
    "second half": (
        lambda x, w, b, r: gated(F.silu, gates(F.linear(x, w))[::-1]),
        "silu gates with the second half of the columns, gemm_gated with the first: store the weight as gate | up",
    ),
    "glu": (lambda x, w, b, r: F.glu(F.linear(x, w)), "glu gates with the second half of the columns, "),
    "residual that enlarges": (
        lambda x, w, b, r: F.linear(x[:1], w) + r,
        "add broadcasts view_1",
    ),
    "residual with permuted dimensions": (
        lambda x, w, b, r: r.view(2, 2, S, N).transpose(0, 1) + F.linear(x, w).view(2, 2, S, N),
        "add is not row-major contiguous, as D is",
    ),
    "columns split": (
        lambda x, w, b, r: F.linear(x, w).view(M, S, 2, N // 2) + r[0, 0, : N // 2].view(1, 1, 1, -1),
        "view_3 is added where the product's columns are split over dimensions",
    ),
    "bias for split columns": (
        lambda x, w, b, r: F.linear(x, w).view(M, S, 2, N // 2) + b[: N // 2],
        "gemm refuses: bias: shape is (16,) but it must be (N,) = (32,)",
    ),
    "transposed": (
        lambda x, w, b, r: F.relu(F.linear(x, w).mT),
        "nothing to fuse: its result goes to permute",
    ),
    "another dtype": (lambda x, w, b, r: F.relu(F.linear(x, w).to(F16)), "relu has dtype torch.float16 but D's is "),
    "float64": (lambda x, w, b, r: F.relu(F.linear(x.double(), w.double())), "its operands are f64 and f64"),
    "clamp to float32": (lambda x, w, b, r: F.linear(x, w).float().clamp(min=1.0), "gemm's clamp has two bounds; "),
    "float32 read on": (
        lambda x, w, b, r: F.relu(F.linear(x, w).float()).sum(-1),
        "relu is float32 and read on: fused, it would be written as float32",
    ),
    "clamp upside down": (lambda x, w, b, r: F.linear(x, w).clamp(2.0, 1.0), "gemm refuses: activation_args: lo = "),
    "another sigmoid": (
        lambda x, w, b, r: (z := F.linear(x, w)) * torch.sigmoid(1.702 * z),
        "view_1 is used by mul_1 too",
    ),
    "another gelu": (
        lambda x, w, b, r: 0.5 * (z := F.linear(x, w)) * (1.0 + torch.erf(z * 0.7)),
        "nothing to fuse: its result goes to mul",
    ),
    "broadcast against itself": (
        lambda x, w, b, r: (z := F.linear(x[0], w)).view(1, -1) * torch.sigmoid(z.view(-1, 1)),
        "mul broadcasts view",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves(name: str) -> None:
    function, reason = LEFT[name]
    args = operands()
    done, traced = rewrite(function, *args)
    assert [x.op for x in done.rewritten] == []
    assert calls(traced) == []
    for left in done.left:
        assert left.reason.startswith(reason), left.reason
    torch.testing.assert_close(traced(*args), function(*args))


def test_a_smaller_match_says_what_is_missing() -> None:
    """What can be fused is, and the note says why no more."""
    args = operands()
    done, _ = rewrite(lambda x, w, b, r: gated(F.silu, gates(F.linear(x, w) + r)), *args)
    assert [(x.op, x.note) for x in done.rewritten] == [("gemm + c", "without the silu gate: gemm_gated takes no C")]
    done, _ = rewrite(lambda x, w, b, r: (F.gelu(z := F.linear(x, w, b)), z), *args)
    (row,) = done.rewritten
    assert row.op == "gemm + bias"
    assert row.note == "without the gelu: view_1 is an output of the graph too, or kept for the backward pass"
    assert row.note in str(done)


def test_memory_written_in_between() -> None:
    """A product of values that are written over before its epilogue ends is not moved behind that."""

    def function(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        z = F.linear(x, w)
        torch.ops.aten.copy_(x, x + 1)
        return F.relu(z)

    traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*operands())
    done = cpu_pass()
    done(traced.graph)
    assert [x.reason for x in done.left] == ["memory is written between mm and relu"] or "memory is written" in str(
        done
    )


# ---- options and settings -----------------------------------------------------------------------------------------


def test_everything() -> None:
    """Products with nothing to fuse, too, and gates of two weights one by one."""
    args = operands()
    for name, ops in (("alone", ["gemm"]), ("softmax", ["gemm"]), ("two weights", ["gemm + silu", "gemm"])):
        function = LEFT[name][0]
        done, traced = rewrite(function, *args, everything=True)
        assert sorted(x.op for x in done.rewritten) == sorted(ops)
        torch.testing.assert_close(traced(*args), function(*args), rtol=2**-6, atol=2**-6)


def test_numerics_of_every_op() -> None:
    args = operands()
    _, traced = rewrite(REWRITTEN["relu"][0], *args, numerics="batch_invariant")
    (node,) = (node for node in traced.graph.nodes if node.target is GEMM)
    assert node.kwargs["numerics"] == "batch_invariant"
    done, _ = rewrite(REWRITTEN["relu"][0], *operands(F32), numerics="batch_invariant")
    assert "batch_invariant" in done.left[0].reason
    with pytest.raises(ValueError, match=r"^numerics: is 'exact' but compile_pass takes 'deterministic' or"):
        gemmx.compile_pass(numerics="exact")  # type: ignore[arg-type]


def test_every_rounding_kept_on_request() -> None:
    with config.patch(emulate_precision_casts=True):
        done, traced = rewrite(REWRITTEN["relu"][0], *operands())
    assert calls(traced) == []
    assert "emulate_precision_casts" in done.left[0].reason


def on_cuda(function: Function, dtype: torch.dtype = BF16, **options: Any) -> CompilePass:
    """The pass after the function's graph for a GPU, on fake tensors."""
    with FakeTensorMode():
        args = [torch.empty(x.shape, dtype=dtype, device="cuda:0") for x in operands()]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*args)
    traced.graph.eliminate_dead_code()
    done = gemmx.compile_pass(**options)
    done(traced.graph)
    return done


def test_only_cuda_by_default() -> None:
    done = gemmx.compile_pass()
    done(graph_of(REWRITTEN["relu"][0]))
    assert [x.reason for x in done.left] == ["it is on cpu; the pass takes cuda"]
    for name in ("gelu", "residual and silu", "gate after up", "row for every batch"):
        assert [x.op for x in on_cuda(REWRITTEN[name][0]).rewritten] == [REWRITTEN[name][1]]


def test_float32_only_where_torch_asks_for_ieee() -> None:
    """The setting is part of the cache's key, too."""
    before = torch.backends.cuda.matmul.fp32_precision
    ids = []
    try:
        for setting, rewritten in (("ieee", 1), ("tf32", 0)):
            torch.backends.cuda.matmul.fp32_precision = setting
            done = on_cuda(REWRITTEN["relu"][0], F32)
            ids.append(done.uuid())
            assert len(done.rewritten) == rewritten
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert done.left[0].reason.startswith("torch computes float32 products in tf32 here")
    assert ids[0] != ids[1]


def test_padding_of_inductor_is_named() -> None:
    def padded(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return torch.mm(F.pad(x[0], (0, 8)), F.pad(w.t(), (0, 1, 0, 8)))[:, :N]

    done, _ = rewrite(padded, *operands())
    assert done.left[0].reason.startswith("Inductor padded it: set torch._inductor.config.shape_padding = False")


# ---- the pass as an object ----------------------------------------------------------------------------------------


def test_uuid() -> None:
    """The key of Inductor's cache: equal passes share it; each option changes it."""
    passes = [gemmx.compile_pass(), cpu_pass(), cpu_pass(everything=True), cpu_pass(numerics="batch_invariant")]
    ids = [x.uuid() for x in passes]
    assert len(set(ids)) == len(ids)
    assert gemmx.compile_pass().uuid() == ids[0]
    assert gemmx.__version__ in ids[0]
    assert gemmx.compile_pass(cache=False).uuid() is None


def test_report_is_a_table() -> None:
    done, _ = rewrite(lambda x, w, b, r: (F.relu(F.linear(x, w, b)), F.linear(x, w)), *operands())
    assert str(done).splitlines() == [
        "1 graphs, 2 products: 1 rewritten, 1 left",
        "  rewritten  addmm  32 x 32 x 64 bf16  gemm + bias + relu",
        "  left       mm     32 x 32 x 64 bf16  nothing to fuse: its result goes to output",
    ]
    assert "nothing was compiled" in str(gemmx.compile_pass())


class _Counts(CustomGraphPass):
    """A pass of the user's."""

    def __init__(self) -> None:
        self.products: list[int] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.products.append(sum(str(node.target).startswith("aten.mm") for node in graph.nodes))

    def uuid(self) -> Any:
        return "counts"


def run_setting(graph: torch.fx.Graph) -> None:
    """The passes that are set, as Inductor runs them."""
    setting = config.post_grad_custom_pre_pass
    for one in setting if isinstance(setting, (tuple, list)) else (setting,):
        one(graph)


def graph_of(function: Function) -> torch.fx.Graph:
    return make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*operands()).graph


def test_composes_with_a_pass_that_is_set() -> None:
    """The user's comes first and is left behind as it was, also after an error."""
    counts = _Counts()
    with config.patch(post_grad_custom_pre_pass=counts):
        with cpu_pass() as done, cpu_pass(everything=True) as rest:
            run_setting(graph_of(lambda x, w, b, r: F.relu(F.linear(x, w)) @ w))
        with pytest.raises(ZeroDivisionError), cpu_pass():
            raise ZeroDivisionError
        assert config.post_grad_custom_pre_pass is counts
    assert counts.products == [2]
    assert [x.op for x in done.rewritten] == ["gemm + relu"]
    assert [x.op for x in rest.rewritten] == ["gemm"]


def test_one_pass_may_be_entered_twice() -> None:
    done = cpu_pass()
    with done, done:
        run_setting(graph_of(REWRITTEN["relu"][0]))
    assert len(done.rewritten) == 1


@pytest.mark.parametrize("keyed", [True, False])
def test_chain_of_passes_for_older_torch(keyed: bool) -> None:
    """Where Inductor takes one pass, a chain of all: its key is theirs, and none where one has none."""
    seen: list[int] = []
    other: Any = _Counts() if keyed else lambda graph: seen.append(1)
    own = cpu_pass()
    chain = _Chain(other, own)
    chain(graph_of(REWRITTEN["silu"][0]))
    assert (other.products if keyed else seen) == [1]
    assert len(own.rewritten) == 1
    assert chain.uuid() == (("counts", own.uuid()) if keyed else None)


HALF_ALONE: dict[str, Function] = {
    "bias on the gate alone": lambda x, w, b, r: gated(F.silu, (gates(x @ w.t() + b)[0], gates(x @ w.t())[1])),
    "gate scaled": lambda x, w, b, r: F.silu(gates(z := x @ w.t())[0] * 1.0 + 1.0) * gates(z)[1],
    "residual on up alone": lambda x, w, b, r: torch.relu(gates(z := x @ w.t())[0]) * gates(z + r)[1],
    "bias before the gate's half alone": lambda x, w, b, r: F.silu(gates((z := x @ w.t()) + b)[0]) * gates(z)[1],
    "product doubled before the gate's half": lambda x, w, b, r: F.silu(gates((z := x @ w.t()) * 2)[0]) * gates(z)[1],
    "halves of a view's columns": lambda x, w, b, r: gated(
        F.silu, gates((x @ w.t()).view(M * S, 2, N // 2).float())
    ).reshape(M * S, N // 2).to(x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("name", HALF_ALONE)
def test_what_only_one_half_has_is_no_gated_product(name: str) -> None:
    args = operands()
    _, traced = rewrite(HALF_ALONE[name], *args)
    assert GATED not in calls(traced)
    torch.testing.assert_close(traced(*args), HALF_ALONE[name](*args), rtol=2**-5, atol=2**-4)
