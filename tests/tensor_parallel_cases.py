"""Cases of tensor parallelism, for two processes; on the CPU by gloo, on GPUs by NCCL.

run() starts the processes, once, and returns what each case said: "" or a traceback. A case gets a mesh of two ranks
and compares with the same call on one device.
"""

from __future__ import annotations

import json
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_parallel

import gemmx
import gemmx.nn
from gemmx.nn import parallel
from models import MLP, decoder

RANKS = 2
Case = Callable[[DeviceMesh], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def run(device: str, folder: Path) -> dict[str, str]:
    """Runs all cases; a case fails where it failed on a rank."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (device, port, folder), nprocs=RANKS)  # type: ignore[no-untyped-call]
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: next((x[name] for x in said if x[name]), "") for name in CASES}


def _rank(rank: int, device: str, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh(device, (RANKS,))
    said = {}
    for name, function in CASES.items():
        try:
            function(mesh)
            said[name] = ""
        except Exception:
            said[name] = traceback.format_exc()
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


# ---- helpers ----------------------------------------------------------------------------------------------------


def normal(mesh: DeviceMesh, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same values on each rank."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(mesh.device_type, dtype)


def put(x: Tensor, mesh: DeviceMesh, placement: Any) -> DTensor:
    return distribute_tensor(x, mesh, [placement])


def close(d: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    if isinstance(d, DTensor):
        d = d.full_tensor()
    tolerance *= 10 if d.is_cuda else 1  # the CPU sums in float64
    torch.testing.assert_close(d, expected, rtol=tolerance, atol=tolerance)


def refused(sentence: str, call: Callable[[], object]) -> None:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(f"not refused: {sentence}")


def gradients(module: nn.Module, x: Tensor, take: Callable[[Tensor], Tensor] = lambda x: x) -> dict[str, Tensor]:
    """The output, and the gradients of the input and the parameters for a loss that weighs every element."""
    x = x.clone().requires_grad_()
    y = module(take(x))
    whole = y.full_tensor() if isinstance(y, DTensor) else y
    weights = torch.linspace(-1, 1, whole.numel(), device=whole.device).view_as(whole)
    (whole * weights).sum().backward()
    assert x.grad is not None
    result = {"output": whole.detach(), "x": x.grad}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        result[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return result


def same(sharded: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
    assert sharded.keys() == whole.keys()
    for name, x in sharded.items():
        close(x.reshape(whole[name].shape), whole[name])


# ---- ops on DTensors --------------------------------------------------------------------------------------------


@case
def column(mesh: DeviceMesh) -> None:
    a, b, c, bias = (normal(mesh, *s) for s in ((6, 8), (8, 10), (6, 10), (10,)))
    for of_c in (c, c[:1], c[:, :1], c[0], None):
        placement = Shard(of_c.dim() - 1) if of_c is not None and of_c.shape[-1] == 10 else Replicate()
        options: dict[str, Any] = {"beta": 0.5 if of_c is not None else 1.0, "alpha": 2.0, "activation": "silu"}
        d = gemmx.gemm(
            put(a, mesh, Replicate()),
            put(b, mesh, Shard(1)),
            None if of_c is None else put(of_c, mesh, placement),
            put(bias, mesh, Shard(0)),
            **options,
        )
        assert isinstance(d, DTensor)
        assert d.placements == (Shard(1),)
        assert d.to_local().shape == (6, 5)
        close(d, gemmx.gemm(a, b, of_c, bias, **options))


@case
def column_of_batches(mesh: DeviceMesh) -> None:
    a, weight, bias = normal(mesh, 2, 3, 8), normal(mesh, 10, 8), normal(mesh, 10)
    d = gemmx.gemm(put(a, mesh, Replicate()), put(weight, mesh, Shard(0)).t(), bias=put(bias, mesh, Shard(0)))
    assert isinstance(d, DTensor)
    assert d.placements == (Shard(2),)
    close(d, gemmx.gemm(a, weight.t(), bias=bias))
    both = gemmx.gemm(put(a, mesh, Shard(0)), put(normal(mesh, 2, 8, 4), mesh, Shard(0)))
    assert isinstance(both, DTensor)
    assert both.placements == (Shard(0),)
    close(both, gemmx.gemm(a, normal(mesh, 2, 8, 4)))


@case
def column_has_the_bits_of_one_device(mesh: DeviceMesh) -> None:
    """Under batch_invariant on the CPU, where a column is summed as if alone."""
    if mesh.device_type != "cpu":
        return
    a, b, bias = (normal(mesh, *s, dtype=torch.bfloat16) for s in ((6, 40), (40, 10), (10,)))
    options: dict[str, Any] = {"activation": "relu", "numerics": "batch_invariant"}
    d = gemmx.gemm(put(a, mesh, Replicate()), put(b, mesh, Shard(1)), bias=put(bias, mesh, Shard(0)), **options)
    assert isinstance(d, DTensor)
    assert torch.equal(d.full_tensor(), gemmx.gemm(a, b, bias=bias, **options))


@case
def rows(mesh: DeviceMesh) -> None:
    a, b, c, bias = (normal(mesh, *s) for s in ((6, 8), (8, 10), (6, 10), (10,)))
    d = gemmx.gemm(
        put(a, mesh, Shard(0)), put(b, mesh, Replicate()), put(c, mesh, Shard(0)), put(bias, mesh, Replicate())
    )
    assert isinstance(d, DTensor)
    assert d.placements == (Shard(0),)
    close(d, gemmx.gemm(a, b, c, bias))


@case
def row(mesh: DeviceMesh) -> None:
    """Before and after calls with an epilogue: a decision that DTensor remembered must not serve them."""
    a, b, c, bias = (normal(mesh, *s) for s in ((6, 8), (8, 10), (6, 10), (10,)))
    x, w = put(a, mesh, Shard(1)), put(b, mesh, Shard(0))
    sentence = "add them after the reduction"
    for _ in range(2):
        d = gemmx.gemm(x, w, alpha=2.0)
        assert isinstance(d, DTensor)
        assert d.placements == (Partial(),)
        close(d, gemmx.gemm(a, b, alpha=2.0))
        refused(sentence, lambda: gemmx.gemm(x, w, activation="relu"))
        refused(sentence, lambda: gemmx.gemm(x, w, bias=put(bias, mesh, Replicate())))
        refused(sentence, lambda: gemmx.gemm(x, w, put(c, mesh, Replicate())))
    y, v = (put(z.bfloat16(), mesh, s) for z, s in ((a, Shard(1)), (b, Shard(0))))
    for dtype in (None, torch.float32, torch.bfloat16):
        d = gemmx.gemm(y, v, out_dtype=dtype)
        assert isinstance(d, DTensor)
        assert d.dtype == d.to_local().dtype == (dtype or torch.bfloat16)


@case
def other_placements_are_redistributed(mesh: DeviceMesh) -> None:
    a, b, bias = (normal(mesh, *s) for s in ((6, 8), (8, 10), (10,)))
    expected = gemmx.gemm(a, b, bias=bias, activation="gelu")
    for of_a in (Replicate(), Shard(0)):
        for of_b in (Replicate(), Shard(0), Shard(1)):
            d = gemmx.gemm(put(a, mesh, of_a), put(b, mesh, of_b), bias=put(bias, mesh, Shard(0)), activation="gelu")
            close(d, expected)


@case
def op_gated(mesh: DeviceMesh) -> None:
    op = torch.ops.gemmx.gemm_gated
    a, b, bias = (normal(mesh, *s) for s in ((6, 8), (8, 20), (20,)))
    whole = put(b, mesh, Replicate())
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = op(put(a, mesh, placement), whole, put(bias, mesh, Replicate()), activation="silu")
        close(d, op(a, b, bias, activation="silu"))
    x = put(a, mesh, Replicate())
    sentence = "shard its last dimension and call gemmx.nn.parallel.gemm_gated"
    refused(sentence, lambda: op(x, put(b, mesh, Shard(1))))
    refused(sentence, lambda: op(x, DTensor.from_local(b, mesh, [Partial()])))
    refused(sentence, lambda: op(x, whole, put(bias, mesh, Shard(0))))
    refused("partial sums", lambda: op(put(a, mesh, Shard(1)), put(b, mesh, Shard(0))))


@case
def gated(mesh: DeviceMesh) -> None:
    for n in (6, 5):  # 5: uneven
        for shape in ((4, 8), (2, 3, 8)):
            a, b, bias = normal(mesh, *shape), normal(mesh, 8, 2, n), normal(mesh, 2, n)
            expected = gemmx.gemm_gated(a, b.flatten(1), bias.flatten(), activation="gelu_tanh")
            for of_a, of_b, of_bias, of_d in (
                (Replicate(), Shard(2), Shard(1), Shard(len(shape) - 1)),
                (Shard(0), Replicate(), Replicate(), Shard(0)),
                (Replicate(), Replicate(), Replicate(), Replicate()),
            ):
                x, w, v = (put(t, mesh, s) for t, s in ((a, of_a), (b, of_b), (bias, of_bias)))
                d = parallel.gemm_gated(x, w, v, activation="gelu_tanh")
                assert d.placements == (of_d,)
                assert d.shape == expected.shape
                close(d, expected)


@case
def gated_refuses(mesh: DeviceMesh) -> None:
    a, b, bias = put(normal(mesh, 4, 8), mesh, Replicate()), normal(mesh, 8, 2, 6), normal(mesh, 2, 6)
    sharded = put(b, mesh, Shard(2))
    refused("b: placement is Shard(dim=1)", lambda: parallel.gemm_gated(a, put(b, mesh, Shard(1))))
    partial = DTensor.from_local(b, mesh, [Partial()])
    refused("b: placement is Partial", lambda: parallel.gemm_gated(a, partial))
    refused("a: placement is Shard(dim=1)", lambda: parallel.gemm_gated(a.redistribute(placements=[Shard(1)]), sharded))
    refused("bias: placement is Replicate", lambda: parallel.gemm_gated(a, sharded, put(bias, mesh, Replicate())))
    refused("b: shape is (8, 12)", lambda: parallel.gemm_gated(a, put(b.flatten(1), mesh, Shard(1))))
    refused("bias: shape is (12,)", lambda: parallel.gemm_gated(a, sharded, put(bias.flatten(), mesh, Shard(0))))


@case
def gated_gradients(mesh: DeviceMesh) -> None:
    a, b, bias = normal(mesh, 4, 8), normal(mesh, 8, 2, 6), normal(mesh, 2, 6)
    leaves = [x.clone().requires_grad_() for x in (a, b, bias)]
    gemmx.gemm_gated(leaves[0], leaves[1].flatten(1), leaves[2].flatten()).sum().backward()
    for of_a, of_b, of_bias in ((Replicate(), Shard(2), Shard(1)), (Shard(0), Replicate(), Replicate())):
        x, w, v = (put(t, mesh, s).requires_grad_() for t, s in ((a, of_a), (b, of_b), (bias, of_bias)))
        parallel.gemm_gated(x, w, v).full_tensor().sum().backward()
        for sharded, whole in zip((x, w, v), leaves, strict=True):
            assert sharded.grad is not None
            assert whole.grad is not None
            close(sharded.grad, whole.grad)


@case
def op_gradients(mesh: DeviceMesh) -> None:
    """Of the ops on DTensors themselves."""
    a, weight, bias = normal(mesh, 6, 8), normal(mesh, 10, 8), normal(mesh, 10)
    for activation in ("silu", "relu", None):
        leaves = [x.clone().requires_grad_() for x in (a, weight, bias)]
        gemmx.gemm(leaves[0], leaves[1].t(), bias=leaves[2], activation=activation).sum().backward()
        x, w, v = (
            put(t, mesh, s).requires_grad_() for t, s in ((a, Replicate()), (weight, Shard(0)), (bias, Shard(0)))
        )
        gemmx.gemm(x, w.t(), bias=v, activation=activation).full_tensor().sum().backward()
        for sharded, whole in zip((x, w, v), leaves, strict=True):
            assert sharded.grad is not None
            assert whole.grad is not None
            close(sharded.grad, whole.grad)
    leaves = [x.clone().requires_grad_() for x in (a, weight)]
    gemmx.gemm(leaves[0], leaves[1].t()).sum().backward()
    x, w = put(a, mesh, Shard(1)).requires_grad_(), put(weight, mesh, Shard(1)).requires_grad_()
    gemmx.gemm(x, w.t()).full_tensor().sum().backward()
    for sharded, whole in zip((x, w), leaves, strict=True):
        assert sharded.grad is not None
        assert whole.grad is not None
        close(sharded.grad, whole.grad)


# ---- modules ----------------------------------------------------------------------------------------------------


def linear(mesh: DeviceMesh, n: int = 10, **options: Any) -> gemmx.nn.Linear:
    torch.manual_seed(n)
    return gemmx.nn.Linear(8, n, device=mesh.device_type, **options)


@case
def colwise(mesh: DeviceMesh) -> None:
    for n, bias, activation in ((10, True, "gelu"), (7, True, None), (10, False, "relu")):  # 7: uneven
        whole, sharded = (linear(mesh, n, bias=bias, activation=activation) for _ in range(2))
        torch_parallel.parallelize_module(sharded, mesh, parallel.ColwiseParallel(output_layouts=Replicate()))
        for shape in ((6, 8), (2, 3, 8)):
            for module in (whole, sharded):
                module.zero_grad()
            same(gradients(sharded, normal(mesh, *shape)), gradients(whole, normal(mesh, *shape)))
    with torch.no_grad():
        assert sharded(normal(mesh, 8)).shape == (n,)


@case
def rowwise(mesh: DeviceMesh) -> None:
    activations = (None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu", "clamp")
    for activation in activations:
        arguments = (-0.5, 0.5) if activation == "clamp" else None
        for bias in (True, False):
            whole, sharded = (
                linear(mesh, bias=bias, activation=activation, activation_args=arguments) for _ in range(2)
            )
            style = parallel.RowwiseParallel(input_layouts=Replicate())
            torch_parallel.parallelize_module(sharded, mesh, style)
            same(gradients(sharded, normal(mesh, 6, 8)), gradients(whole, normal(mesh, 6, 8)))


@case
def layouts(mesh: DeviceMesh) -> None:
    """Sequence parallel: rows sharded before a column layer and after a row layer."""
    first, second = linear(mesh, 8, activation="silu"), linear(mesh, 8)
    whole = nn.Sequential(first, second)
    expected = gradients(whole, normal(mesh, 2, 6, 8))
    torch.manual_seed(8)
    sharded = nn.Sequential(linear(mesh, 8, activation="silu"), linear(mesh, 8))
    plan = {
        "0": parallel.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "1": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    torch_parallel.parallelize_module(sharded, mesh, plan)

    def shard_rows(x: Tensor) -> DTensor:
        return DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(1)])

    same(gradients(sharded, normal(mesh, 2, 6, 8), shard_rows), expected)


@case
def plans_of_torch(mesh: DeviceMesh) -> None:
    """The styles of torch itself on gemmx's Linear, by the rules of the ops."""
    whole, sharded = ([linear(mesh, activation="gelu"), linear(mesh, 10, bias=False)] for _ in range(2))
    torch_parallel.parallelize_module(sharded[0], mesh, torch_parallel.ColwiseParallel(output_layouts=Replicate()))
    torch_parallel.parallelize_module(sharded[1], mesh, torch_parallel.RowwiseParallel(input_layouts=Replicate()))
    for s, w in zip(sharded, whole, strict=True):
        same(gradients(s, normal(mesh, 6, 8)), gradients(w, normal(mesh, 6, 8)))
    with_bias = linear(mesh)
    torch_parallel.parallelize_module(with_bias, mesh, torch_parallel.RowwiseParallel(input_layouts=Replicate()))
    refused("add them after the reduction", lambda: with_bias(normal(mesh, 6, 8)))


@case
def gated_mlp(mesh: DeviceMesh) -> None:
    for n, bias in ((24, True), (24, False), (5, True)):
        torch.manual_seed(n)
        whole = gemmx.nn.GatedMLP(8, n, bias, device=mesh.device_type)
        torch.manual_seed(n)
        sharded = gemmx.nn.GatedMLP(8, n, bias, device=mesh.device_type)
        torch_parallel.parallelize_module(sharded, mesh, parallel.GatedMLPParallel())
        same(gradients(sharded, normal(mesh, 2, 3, 8)), gradients(whole, normal(mesh, 2, 3, 8)))
        assert sharded.gate_up_weight.shape == (2, n, 8)
        state = sharded.state_dict()
        assert list(state) == list(whole.state_dict())
        for name, x in whole.state_dict().items():
            close(state[name], x)
        sharded.load_state_dict({name: x * 2 for name, x in state.items()})
        close(sharded.state_dict()["up_proj.weight"], whole.state_dict()["up_proj.weight"] * 2)


@case
def gated_mlp_of_16_bits(mesh: DeviceMesh) -> None:
    """Sizes that the tensor-core kernels take."""
    for dtype in (torch.bfloat16, torch.float16):
        outputs = []
        for ranks in (1, RANKS):
            torch.manual_seed(0)
            mlp = gemmx.nn.GatedMLP(64, 256, device=mesh.device_type, dtype=dtype)
            if ranks > 1:
                torch_parallel.parallelize_module(mlp, mesh, parallel.GatedMLPParallel())
            outputs.append(gradients(mlp, normal(mesh, 16, 64, dtype=dtype)))
        for name, x in outputs[1].items():
            whole = outputs[0][name]
            scale = whole.abs().max().item()
            close(x.reshape(whole.shape) / scale, whole / scale, 5e-3)


@case
def decoder_as_one_device(mesh: DeviceMesh) -> None:
    tokens = torch.arange(8, device=mesh.device_type).view(2, 4)
    logits, grads = [], []
    for ranks in (1, RANKS):
        model = decoder().to(mesh.device_type)
        gemmx.nn.convert(model, exclude="lm_head")
        if ranks > 1:
            torch_parallel.parallelize_module(model, mesh, parallel.decoder_plan())
        y = model(tokens)
        y.square().sum().backward()
        logits.append(y.detach())
        grads.append(
            {n: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for n, p in model.named_parameters()}
        )
        with torch.inference_mode():
            close(model(tokens), logits[0])
    close(logits[1], logits[0])
    same(grads[1], grads[0])


@case
def fully_sharded(mesh: DeviceMesh) -> None:
    """FSDP: gate_up_weight is cut across gate and up, so that a state_dict's halves are no views."""
    tokens = torch.arange(8, device=mesh.device_type).view(2, 4)
    whole, sharded = (decoder().to(mesh.device_type) for _ in range(2))
    for model in (whole, sharded):
        gemmx.nn.convert(model)
    fully_shard(sharded, mesh=mesh)
    for model in (whole, sharded):
        model(tokens).square().sum().backward()
    for x, y in zip(sharded.parameters(), whole.parameters(), strict=True):
        close(x.grad, y.grad)
    state = {name: x.full_tensor() for name, x in sharded.state_dict().items()}
    for name, x in whole.state_dict().items():
        close(state[name], x)
    sharded.load_state_dict({name: x * 2 for name, x in sharded.state_dict().items()})
    for name, x in whole.state_dict().items():
        close(sharded.state_dict()[name], x * 2)


@case
def compiled_as_one_graph(mesh: DeviceMesh) -> None:
    tokens = torch.arange(8, device=mesh.device_type).view(2, 4)
    model = decoder().to(mesh.device_type)
    gemmx.nn.convert(model)
    expected = model(tokens)
    torch_parallel.parallelize_module(model, mesh, parallel.decoder_plan())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    close(compiled(tokens), expected)
    compiled(tokens).sum().backward()


@case
def styles_refuse(mesh: DeviceMesh) -> None:
    refused(
        "ColwiseParallel: takes a gemmx.nn.Linear", lambda: parallel.ColwiseParallel()._apply(nn.Linear(8, 8), mesh)
    )
    refused("GatedMLPParallel: takes a gemmx.nn.GatedMLP", lambda: parallel.GatedMLPParallel()._apply(MLP(8, 8), mesh))
    sharded = parallel.ColwiseParallel()._apply(linear(mesh), mesh)
    partial = parallel.RowwiseParallel(output_layouts=Partial())
    refused("output_layouts: is Partial() but", lambda: partial._apply(linear(mesh), mesh))
    refused("not yet sharded", lambda: parallel.ColwiseParallel()._apply(sharded, mesh))
    model = decoder().to(mesh.device_type)
    report = gemmx.nn.convert(model)
    torch_parallel.parallelize_module(model, mesh, parallel.decoder_plan())
    refused("restore the model before it is sharded", report.restore)
