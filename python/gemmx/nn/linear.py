"""Linear: torch.nn.Linear computed by gemmx.gemm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gemmx.nn._replacement import Replacement, options_repr, shell
from gemmx.ops import Activation, Numerics, Precision, gemm


class Linear(torch.nn.Linear, Replacement):
    """torch.nn.Linear by gemmx.gemm: act(x @ weight.T + bias), rounded once.

    Constructor, parameters, initial values and state_dict are torch.nn.Linear's.

    Args:
        in_features: K.
        out_features: N.
        bias: Whether there is a bias, (N,).
        device: Of the parameters.
        dtype: Of the parameters: float32, float16 or bfloat16. The input has the same, or torch.autocast casts all.
        activation: One of gemmx.gemm's, computed in the product's epilogue.
        activation_args: Its arguments.
        precision: As in gemmx.gemm; for float32.
        numerics: As in gemmx.gemm.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation | None = None,
        activation_args: Sequence[float] | None = None,
        precision: Precision | None = None,
        numerics: Numerics | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.activation_args = activation_args
        self.precision = precision
        self.numerics = numerics

    @classmethod
    def of(
        cls, other: torch.nn.Linear, *, precision: Precision | None = None, numerics: Numerics | None = None
    ) -> Linear:
        """A Linear that has the other's own Parameters, not copies."""
        linear = cls(other.in_features, other.out_features, device="meta", precision=precision, numerics=numerics)
        linear._parameters["weight"] = other._parameters["weight"]
        linear._parameters["bias"] = other._parameters["bias"]
        linear.stand_for(other)
        return linear

    def original(self) -> torch.nn.Module:
        assert self._replaced is not None
        other = shell(self._replaced)
        other._parameters.update(self._parameters)
        other.training = self.training
        return other

    def forward(self, input: Tensor) -> Tensor:
        return self._multiply(input, self.weight, self.bias, self.activation)

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> Tensor:
        d = gemm(
            x if x.dim() > 1 else x.unsqueeze(0),
            weight.t(),
            bias=bias,
            activation=activation,
            activation_args=self.activation_args if activation is not None else None,
            precision=self.precision,
            numerics=self.numerics,
        )
        return d if x.dim() > 1 else d.squeeze(0)

    def extra_repr(self) -> str:
        options = options_repr(
            activation=self.activation,
            activation_args=self.activation_args,
            precision=self.precision,
            numerics=self.numerics,
        )
        return super().extra_repr() + options
