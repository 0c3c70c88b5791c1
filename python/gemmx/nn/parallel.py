"""gemmx.nn's modules over several GPUs: tensor parallelism by torch.distributed.tensor.

    import gemmx.nn.parallel as parallel
    gemmx.convert(model)
    parallelize_module(model, mesh, parallel.decoder_plan())

Importing this module imports torch.distributed.tensor and registers how gemmx's ops treat DTensors (the rules of
_sharding.py). The styles do not need those rules: their modules call gemmx on each rank's own tensors, one kernel as
on one GPU, and leave the collectives and their gradients to DTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import Parameter, functional

from gemmx.nn import _sharding  # noqa: F401, registers the rules
from gemmx.nn.gated_mlp import GatedMLP
from gemmx.nn.linear import Linear
from gemmx.ops import gemm_gated as _gemm_gated

__all__ = ["ColwiseParallel", "GatedMLPParallel", "RowwiseParallel", "decoder_plan", "gemm_gated"]

_REPLICATE, _PARTIAL = (Replicate(),), (Partial(),)
_LAST = (Shard(-1),)
# After a reduction: torch's own, in D's dtype.
_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "leaky_relu": functional.leaky_relu,
    "clamp": torch.clamp,
}


@dataclass(frozen=True)
class _Layout:
    """How a sharded module takes its input and gives its output."""

    mesh: DeviceMesh
    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    use_local_output: bool

    def take(self, x: Tensor, placements: tuple[Placement, ...]) -> DTensor:
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.mesh, self.inputs, run_check=False)
        return x.redistribute(placements=_positive(placements, x.dim()))

    def give(self, d: DTensor) -> Tensor:
        d = d.redistribute(placements=_positive(self.outputs, d.dim()))
        return d.to_local() if self.use_local_output else d


def _positive(placements: tuple[Placement, ...], dims: int) -> tuple[Placement, ...]:
    return tuple(Shard(p.dim % dims) if isinstance(p, Shard) else p for p in placements)


def _wrap(local: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], shape: torch.Size) -> DTensor:
    """D, of this shape on all ranks together: uneven shards do not tell it."""
    stride = torch.empty(shape, device="meta").stride()
    placements = _positive(placements, len(shape))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def _local(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


# ---- products ---------------------------------------------------------------------------------------------------


def gemm_gated(a: DTensor, b: DTensor, bias: DTensor | None = None, **options: Any) -> DTensor:
    """gemmx.gemm_gated of DTensors: each rank computes columns of D from its own columns of gate and of up.

    torch.ops.gemmx.gemm_gated takes gate | up side by side, (K, 2N), of which a Shard would give one rank the gate's
    columns and another the up's. Here they have a dimension of their own.

    Args:
        a: (M, K) or (..., M, K); replicated on the mesh dimensions where b is sharded, elsewhere replicated or
            sharded on its rows.
        b: (K, 2, N), gate at 0 and up at 1; Shard(2) or Replicate. A weight kept (2, N, K) is passed as
            weight.permute(2, 0, 1).
        bias: (2, N), sharded as b: Shard(1) or Replicate.
        options: Those of gemmx.gemm_gated.

    Returns:
        D: (M, N) or (..., M, N); Shard(-1) where b is sharded, elsewhere placed as a.

    Raises:
        ValueError: A shape or a placement is none of these.
    """
    if b.dim() != 3 or b.shape[1] != 2:
        raise ValueError(f"b: shape is {tuple(b.shape)} but it must be (K, 2, N): gate at 0 and up at 1")
    if bias is not None and bias.shape != b.shape[1:]:
        raise ValueError(f"bias: shape is {tuple(bias.shape)} but it must be (2, N) = {tuple(b.shape[1:])}")
    last = a.dim() - 1
    d_placements: list[Placement] = []
    a_grad: list[Placement] = []
    b_grad: list[Placement] = []
    for i, (of_a, of_b) in enumerate(zip(a.placements, b.placements, strict=True)):
        columns = of_b == Shard(2)
        if not columns and of_b != Replicate():
            raise ValueError(
                f"b: placement is {of_b!r} but gate and up are not linear and stay together: it must be Shard(2), the "
                f"columns of (K, 2, N), or Replicate(); redistribute it"
            )
        rows = isinstance(of_a, Shard) and of_a.dim < last and not columns
        if not rows and of_a != Replicate():
            raise ValueError(
                f"a: placement is {of_a!r} where b's is {of_b!r}; it must be Replicate(), or where b is whole "
                f"a Shard of its rows; redistribute it"
            )
        if bias is not None and bias.placements[i] != (Shard(1) if columns else Replicate()):
            raise ValueError(f"bias: placement is {bias.placements[i]!r} where b's is {of_b!r}; it is sharded as b is")
        d_placements.append(Shard(last) if columns else of_a)
        a_grad.append(Partial() if columns else of_a)
        b_grad.append(Partial() if rows else of_b)
    bias_grad = [Shard(1) if p == Shard(2) else p for p in b_grad]
    d = _gemm_gated(
        a.to_local(grad_placements=a_grad),
        b.to_local(grad_placements=b_grad).flatten(1),
        None if bias is None else bias.to_local(grad_placements=bias_grad).flatten(),
        **options,
    )
    shape = torch.Size((*a.shape[:-1], b.shape[2]))
    return _wrap(d, a.device_mesh, tuple(d_placements), shape)


# ---- modules: what a style turns a module into ------------------------------------------------------------------


class ColumnLinear(Linear):
    """A Linear whose weight is sharded on N: each rank computes its columns of D, epilogue included."""

    _layout: _Layout

    def forward(self, input: Tensor) -> Tensor:
        x = self._layout.take(input, _REPLICATE)
        bias = None if self.bias is None else _local(self.bias)
        d = self._multiply(x.to_local(grad_placements=_PARTIAL), _local(self.weight), bias, self.activation)
        shape = torch.Size((*x.shape[:-1], self.out_features))
        return self._layout.give(_wrap(d, self._layout.mesh, _LAST, shape))

    def original(self) -> torch.nn.Module:
        raise _no_original()


class RowLinear(Linear):
    """A Linear whose weight is sharded on K: bias and activation come after the sum over the ranks."""

    _layout: _Layout

    def forward(self, input: Tensor) -> Tensor:
        return self._reduce(self._layout.take(input, _LAST).to_local())

    def _reduce(self, x: Tensor) -> Tensor:
        """Of a rank's own columns of x."""
        product = self._multiply(x, _local(self.weight), None, None)
        shape = torch.Size((*x.shape[:-1], self.out_features))
        d = _wrap(product, self._layout.mesh, _PARTIAL, shape)
        d = d.redistribute(placements=_positive(self._layout.outputs, d.dim()))
        if self.bias is not None:
            d = cast(DTensor, d + self.bias.to(d.dtype))
        if self.activation not in (None, "none"):  # on local tensors: DTensor has no rule for some backwards
            local = _ACTIVATIONS[self.activation](d.to_local(), *self.activation_args or ())
            d = _wrap(local, self._layout.mesh, d.placements, shape)
        return self._layout.give(d)

    def original(self) -> torch.nn.Module:
        raise _no_original()


class ShardedGatedMLP(GatedMLP):
    """A GatedMLP whose parameters are sharded on N: gate_up_weight is kept (2, N, K) and sharded on dimension 1."""

    _layout: _Layout
    down_proj: RowLinear

    def forward(self, x: Tensor) -> Tensor:
        local = self._layout.take(x, _REPLICATE).to_local(grad_placements=_PARTIAL)
        bias = None if self.gate_up_bias is None else _local(self.gate_up_bias).flatten()
        return self.down_proj._reduce(self._gate(local, _local(self.gate_up_weight).flatten(0, 1), bias))

    def original(self) -> torch.nn.Module:
        raise _no_original()

    @staticmethod
    def _half(fused: Tensor, part: int) -> Tensor:
        return fused[part]

    @staticmethod
    def _join(halves: Sequence[Tensor]) -> Tensor:
        return torch.stack([x.detach() for x in halves])


def _no_original() -> RuntimeError:
    return RuntimeError("restore: a module is sharded by gemmx.nn.parallel; restore the model before it is sharded")


# ---- styles -----------------------------------------------------------------------------------------------------


class _Style(ParallelStyle):
    """What the styles share: torch's own keyword arguments, and the sharding of a parameter."""

    inputs: Placement = Replicate()
    outputs: Placement = Replicate()

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.input_layouts = (input_layouts or self.inputs,)
        self.output_layouts = (output_layouts or self.outputs,)
        self.use_local_output = use_local_output

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, output_layouts={self.output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )

    def _become(self, module: torch.nn.Module, cls: type[torch.nn.Module], mesh: DeviceMesh) -> None:
        """Gives the module another class: parallelize_module does not put a returned module into its parent."""
        module.__class__ = cls
        module.__dict__["_layout"] = _Layout(mesh, self.input_layouts, self.output_layouts, self.use_local_output)

    def _shard(self, module: torch.nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
        parameter = module._parameters[name]
        if parameter is not None:
            sharded = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=self.src_data_rank)
            module.register_parameter(name, Parameter(sharded, requires_grad=parameter.requires_grad))

    def _row(self, linear: Linear, mesh: DeviceMesh) -> None:
        if self.output_layouts == _PARTIAL and (linear.bias is not None or linear.activation not in (None, "none")):
            raise ValueError(
                "output_layouts: is Partial() but the layer has a bias or an activation, which come after the sum over "
                "the ranks; take Replicate() or a Shard"
            )
        self._shard(linear, "weight", mesh, Shard(1))
        self._shard(linear, "bias", mesh, Replicate())
        self._become(linear, RowLinear, mesh)

    def _refuse(self, module: torch.nn.Module, cls: type[torch.nn.Module]) -> None:
        if type(module) is not cls:
            raise ValueError(
                f"{type(self).__name__}: takes a gemmx.nn.{cls.__name__}, not yet sharded, but got "
                f"{type(module).__module__}.{type(module).__qualname__}; swap it by gemmx.convert first"
            )


class ColwiseParallel(_Style):
    """Shards a gemmx.nn.Linear on N. Arguments and defaults are those of torch's ColwiseParallel.

    The epilogue, bias and activation, is computed with the product, on each rank's columns.
    """

    outputs = Shard(-1)

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        self._refuse(module, Linear)
        for name in ("weight", "bias"):
            self._shard(module, name, device_mesh, Shard(0))
        self._become(module, ColumnLinear, device_mesh)
        return module


class RowwiseParallel(_Style):
    """Shards a gemmx.nn.Linear on K. Arguments and defaults are those of torch's RowwiseParallel.

    Partial products are rounded to D's dtype and summed over the ranks; then bias and activation follow, each rounded.
    """

    inputs = Shard(-1)

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        self._refuse(module, Linear)
        assert isinstance(module, Linear)
        self._row(module, device_mesh)
        return module


class GatedMLPParallel(_Style):
    """Shards a gemmx.nn.GatedMLP: gate and up on N, down on K, one sum over the ranks at the end."""

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        self._refuse(module, GatedMLP)
        assert isinstance(module, GatedMLP)
        for name, parameter in module._fused_parameters().items():
            halves = parameter.detach().tensor_split(2)
            apart = Parameter(torch.stack(halves), requires_grad=parameter.requires_grad)
            module.register_parameter(f"gate_up_{name}", apart)
            self._shard(module, f"gate_up_{name}", device_mesh, Shard(1))
        self._row(module.down_proj, device_mesh)
        self._become(module, ShardedGatedMLP, device_mesh)
        return module


def decoder_plan(layer: str = "model.layers.*") -> dict[str, ParallelStyle]:
    """A plan for parallelize_module: decoder layers named as in Hugging Face's Llama, Mistral, Qwen2 and Gemma.

    For a model that convert has been through: attention's q, k and v sharded on N and its o on K, the MLP by
    GatedMLPParallel. Each rank then has a share of the heads, whose numbers have to divide by the ranks.
    """
    attention = f"{layer}.self_attn"
    plan: dict[str, ParallelStyle] = {f"{attention}.{name}_proj": ColwiseParallel() for name in "qkv"}
    return {**plan, f"{attention}.o_proj": RowwiseParallel(), f"{layer}.mlp": GatedMLPParallel()}
