"""GatedMLP: the MLP of Llama and its kin, its gate and up products one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from gemmx._strict import strict_is_on
from gemmx.nn._replacement import Replacement, options_repr, shell
from gemmx.nn.linear import Linear
from gemmx.ops import Activation, Numerics, Precision, gated_mlp, gemm_gated

_TENSORS = (Tensor, Parameter)
PARTS = ("gate_proj", "up_proj")  # in the order of the fused parameter's rows


class GatedMLP(Replacement):
    """down(act(gate(x)) * up(x)): by gemmx.gemm_gated, then gemmx.gemm.

    Where autograd records both they are one node, unless down_proj has hooks or was replaced: its backward computes the
    gate's on the product through down_proj, in one launch where a kernel of that form serves the call.

    The weights of gate and up are one parameter, gate_up_weight (2 * intermediate_size, hidden_size), gate first, and
    so are their biases. state_dict and load_state_dict know them as gate_proj.weight, up_proj.weight (and .bias), as
    the MLPs of Hugging Face's Llama do, so that checkpoints fit either module. parameters() and optimizers see the
    fused ones. The gate is applied before anything is rounded, and the product is rounded once.

    Args:
        hidden_size: Columns of the input and of the output.
        intermediate_size: Columns between the two products.
        bias: Whether the three layers have a bias.
        device: Of the parameters.
        dtype: Of the parameters, as in Linear.
        activation: Of the gate: silu, gelu, gelu_tanh, relu, sigmoid, or another of gemmx.gemm's without arguments.
        precision: As in gemmx.gemm; for float32.
        numerics: As in gemmx.gemm.
    """

    gate_up_weight: Parameter
    gate_up_bias: Parameter | None

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation = "silu",
        precision: Precision | None = None,
        numerics: Numerics | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.precision = precision
        self.numerics = numerics
        shape = (2 * intermediate_size, hidden_size)
        self.gate_up_weight = Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.gate_up_bias = Parameter(torch.empty(shape[0], device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        options: dict[str, Any] = {"precision": precision, "numerics": numerics}
        self.down_proj = Linear(intermediate_size, hidden_size, bias, device, dtype, **options)

    def reset_parameters(self) -> None:
        """As torch.nn.Linear, gate_proj before up_proj, so that one seed gives the values of two such layers."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for part in range(2):
            torch.nn.init.kaiming_uniform_(self._half(self.gate_up_weight, part), a=math.sqrt(5))
            if self.gate_up_bias is not None:
                torch.nn.init.uniform_(self._half(self.gate_up_bias, part), -bound, bound)

    @classmethod
    def of(
        cls,
        other: torch.nn.Module,
        *,
        activation: Activation = "silu",
        precision: Precision | None = None,
        numerics: Numerics | None = None,
    ) -> GatedMLP:
        """A GatedMLP with the values of other.gate_proj and other.up_proj and other.down_proj's own Parameters."""
        gate, up, down = other.gate_proj, other.up_proj, other.down_proj
        assert isinstance(gate, torch.nn.Linear)
        assert isinstance(up, torch.nn.Linear)
        assert isinstance(down, torch.nn.Linear)
        options: dict[str, Any] = {"precision": precision, "numerics": numerics}
        mlp = cls(gate.in_features, gate.out_features, device="meta", activation=activation, **options)
        mlp.gate_up_weight = _fused(gate.weight, up.weight)
        mlp.gate_up_bias = None if gate.bias is None else _fused(gate.bias, up.bias)
        mlp.down_proj = Linear.of(down, **options)
        mlp.stand_for(other)
        return mlp

    def original(self) -> torch.nn.Module:
        assert self._replaced is not None
        other = shell(self._replaced)
        for name, child in other.named_children():
            child.training = getattr(self, name, self).training
        for part, name in enumerate(PARTS):
            linear = other.get_submodule(name)
            linear._parameters["weight"] = _part(self.gate_up_weight, part)
            linear._parameters["bias"] = None if self.gate_up_bias is None else _part(self.gate_up_bias, part)
        other.down_proj = self.down_proj.original()
        other.training = self.training
        return other

    def forward(self, x: Tensor) -> Tensor:
        d: Tensor
        if self._is_one_node(x):
            down = self.down_proj
            d = gated_mlp(
                x if x.dim() > 1 else x.unsqueeze(0),
                self.gate_up_weight.t(),
                down.weight.t(),
                self.gate_up_bias,
                down.bias,
                activation=self.activation,
                precision=self.precision,
            )
            return d if x.dim() > 1 else d.squeeze(0)
        d = self.down_proj(self._gate(x, self.gate_up_weight, self.gate_up_bias))
        return d

    def _is_one_node(self, x: Tensor) -> bool:
        """Whether autograd may record both products as one node, whose backward has one launch and one pass less.

        It would record a gradient that goes through the gate, and down_proj is what its class says: called alone it
        would do nothing else.
        """
        through_gate = (x, self.gate_up_weight, self.gate_up_bias)
        if not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in through_gate)):
            return False
        down = self.down_proj
        if type(down) is not Linear or _has_hooks(down) or strict_is_on():
            return False
        if down.activation not in (None, "none") or (self.precision, self.numerics) != (down.precision, down.numerics):
            return False
        # Rows of dZ under batch_invariant are those of two launches for every M. Other kinds of tensors, DTensor among
        # them, have rules for the two products.
        tensors = (*through_gate, down.weight, down.bias)
        return self.numerics != "batch_invariant" and all(t is None or type(t) in _TENSORS for t in tensors)

    def _gate(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        hidden: Tensor = gemm_gated(
            x if x.dim() > 1 else x.unsqueeze(0),
            weight.t(),
            bias,
            activation=self.activation,
            precision=self.precision,
            numerics=self.numerics,
        )
        return hidden if x.dim() > 1 else hidden.squeeze(0)

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"bias={self.gate_up_bias is not None}, activation={self.activation}"
            + options_repr(precision=self.precision, numerics=self.numerics)
        )

    # ---- the fused parameters as halves; state_dict has these names. gemmx.nn.parallel keeps them apart otherwise ----

    @staticmethod
    def _half(fused: Tensor, part: int) -> Tensor:
        """The rows of gate (0) or up (1), a view."""
        return fused.tensor_split(2)[part]

    @staticmethod
    def _join(halves: Sequence[Tensor]) -> Tensor:
        return torch.cat([x.detach() for x in halves])

    def _fused_parameters(self) -> dict[str, Parameter]:
        named = {"weight": self.gate_up_weight, "bias": self.gate_up_bias}
        return {name: parameter for name, parameter in named.items() if parameter is not None}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for part, module in enumerate(PARTS):
            for name, parameter in self._fused_parameters().items():
                value = parameter if keep_vars else parameter.detach()
                destination[f"{prefix}{module}.{name}"] = self._half(value, part)

    def _load_from_state_dict(  # noqa: PLR0917, torch's
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        report = (strict, missing_keys, unexpected_keys, error_msgs)
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, *report)
        parameters = self._fused_parameters()
        # Modules whose parameters are views of the halves: torch itself checks, casts and copies, or assigns.
        views = {name: [self._half(x.detach(), part) for part in range(2)] for name, x in parameters.items()}
        holders = []
        for part, module in enumerate(PARTS):
            holder = torch.nn.Module()
            for name, halves in views.items():
                holder.register_parameter(name, Parameter(halves[part], parameters[name].requires_grad))
            holder._load_from_state_dict(state_dict, f"{prefix}{module}.", local_metadata, *report)
            holders.append(holder)
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, parameter in parameters.items():
            loaded = [holder.get_parameter(name) for holder in holders]
            if not assign:
                if type(parameter) is not Parameter:  # a DTensor, whose halves need not be views
                    with torch.no_grad():
                        parameter.copy_(self._join(loaded))
                continue
            given = [f"{prefix}{module}.{name}" in state_dict for module in PARTS]
            if all(given) and loaded[0].shape == loaded[1].shape == views[name][0].shape:
                setattr(self, f"gate_up_{name}", Parameter(self._join(loaded), parameter.requires_grad))
            elif any(given):
                error_msgs.append(
                    f"{prefix}gate_up_{name}: assign=True takes {PARTS[0]}.{name} and {PARTS[1]}.{name} of its shape "
                    f"together; give both, or load with assign=False"
                )
        if strict:
            known = {*PARTS, *self._modules}
            for key in state_dict:
                if key.startswith(prefix) and key[len(prefix) :].split(".", 1)[0] not in known:
                    unexpected_keys.append(key)


def _has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module does more than its forward."""
    own = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(own) or "forward" in module.__dict__ or bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def _fused(gate: Tensor, up: Tensor) -> Parameter:
    """One Parameter of both, and of their gradients where there are any."""
    fused = Parameter(GatedMLP._join([gate, up]), gate.requires_grad)
    if gate.grad is not None or up.grad is not None:
        fused.grad = GatedMLP._join([torch.zeros_like(x) if x.grad is None else x.grad for x in (gate, up)])
    return fused


def _part(fused: Parameter, part: int) -> Parameter:
    """A half as a Parameter of its own, with its gradient."""
    parameter = Parameter(GatedMLP._half(fused.detach(), part).clone(), fused.requires_grad)
    if fused.grad is not None:
        parameter.grad = GatedMLP._half(fused.grad, part).clone()
    return parameter
