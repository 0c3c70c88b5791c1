"""Calls of gemm_gated, gemm_aux, gemm_gated_aux and _gated_dgrad for tests: cases in a form, with their bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmx import _C, reference
from gemmx.ops import check, op_arguments
from problems import DTYPES, PACKED, Case, Instance, Placed, instance

OPS = torch.ops.gemmx


@dataclass(frozen=True)
class Form:
    gated: bool
    aux: bool

    @property
    def op(self) -> Any:
        return getattr(OPS, "gemm" + "_gated" * self.gated + "_aux" * self.aux)

    def __str__(self) -> str:
        return "_".join(word for word, on in (("gated", self.gated), ("aux", self.aux)) if on)


FORMS = (Form(gated=True, aux=False), Form(gated=True, aux=True), Form(gated=False, aux=True))


class Call:
    """A case in a form. Its n is D's: a gated b has twice as many columns."""

    def __init__(self, form: Form, case: Case, dtype: str, device: str = "cuda") -> None:
        self.form, self.case = form, case
        columns = 2 * case.n if form.gated else case.n
        self.inst: Instance = instance(replace(case, n=columns, activation=None, activation_args=()), dtype, device)
        terms: dict[str, Any] = {"bias": self.inst.bias, "alpha": case.alpha}
        if self.inst.c is not None:
            terms |= {"c": self.inst.c, "beta": case.beta}
        self.terms = terms
        self.options = {
            "activation": case.activation,
            "activation_args": list(case.activation_args) or None,
            "schedule": case.schedule,
            "splits": case.splits,
            "precision": case.precision,
            "numerics": case.numerics,
        }
        self.z = reference.pre_activation(self.inst.a, self.inst.b, **terms)
        self.z_error = reference.error_bound(
            self.inst.a, self.inst.b, **terms, out_dtype=torch.float32, precision=case.precision
        )
        activate = reference.gate if form.gated else reference.activate
        self.d = activate(self.z, case.activation, case.activation_args)

    def problem(self, kernel: str | None = None) -> _C.Problem:
        form = {"gated": self.form.gated, "aux": self.form.aux}
        options = self.options | {"kernel": kernel, "out_dtype": self.inst.d_dtype}
        return check(self.inst.a, self.inst.b, **self.terms, **options, **form).problem

    def run(self, kernel: str | None = None) -> tuple[Tensor, Tensor | None]:
        """D and Z. The allocator's next blocks are full of NaN, so that what is left unwritten shows."""
        dtype = self.inst.d_dtype
        poison = [torch.full(x.shape, torch.nan, dtype=dtype, device=x.device) for x in (self.d, self.z)]
        poison.append(torch.full((1 << 20,), torch.nan, device=self.inst.a.device))
        del poison
        options = op_arguments(self.terms | self.options | {"kernel": kernel})
        result = self.form.op(self.inst.a, self.inst.b, **options, out_dtype=dtype)
        return result if self.form.aux else (result, None)

    def d_bound(self) -> Tensor:
        """What the error of Z, the activation's and the roundings make of D's error."""
        activation = self.case.activation or ("silu" if self.form.gated else "none")
        lipschitz = reference.LIPSCHITZ.get(activation, 1.0)
        if activation == "leaky_relu" and self.case.activation_args:
            lipschitz = max(1.0, abs(self.case.activation_args[0]))
        gate, error = self.z, self.z_error
        if self.form.gated:
            gate, up = self.z.chunk(2, -1)
            error, up_error = self.z_error.chunk(2, -1)
        act = reference.activate(gate, activation, self.case.activation_args)
        error = lipschitz * error
        if activation != "none":
            error = error + 2.0**-21 * (gate.abs() + act.abs())
        if self.form.gated:
            error = act.abs() * up_error + up.abs() * error + error * up_error + 2.0**-23 * self.d.abs()
        return error + self._rounding(self.d)

    def _rounding(self, exact: Tensor) -> Tensor:
        dtype = self.inst.d_dtype
        return 1.01 * reference.UNIT_ROUNDOFF[dtype] * exact.abs() + reference.tiny(dtype, self.case.k)

    def faults(self, d: Tensor, z: Tensor | None) -> list[str]:
        results = [("D", d, self.d, self.d_bound())]
        if z is not None:
            results.append(("Z", z, self.z, self.z_error + self._rounding(self.z)))
        faults = []
        for name, x, exact, bound in results:
            if x.shape != exact.shape or x.dtype != self.inst.d_dtype or not x.is_contiguous():
                faults.append(f"{name} is {tuple(x.shape)} of {x.dtype}, strides {x.stride()}")
            elif (wrong := reference.outside_bound(x, exact, bound)).any():
                faults.append(f"{name}: {int(wrong.sum())} of {x.numel()} elements outside the bound")
        if any(x.damaged() for x in self.inst.operands):
            faults.append("an operand or the memory around it was written")
        return [f"{self.form}, {self.case}: {fault}" for fault in faults]


class GateCall:
    """A case as _gated_dgrad: its a is the gradient, its n that of the product, its out the layout of Z."""

    def __init__(self, case: Case, dtype: str, device: str = "cuda") -> None:
        self.case = case
        plain = replace(case, activation=None, activation_args=(), out=None, c="", bias="", beta=1.0, out_dtype=None)
        self.inst: Instance = instance(plain, dtype, device)
        generator = torch.Generator(device=device).manual_seed(case.m + 7 * case.n)
        self.placed_z = Placed(case.out or PACKED, (None, case.m, 2 * case.n), DTYPES[dtype], device).fill(generator)
        self.z = self.placed_z.view
        self.options = {
            "alpha": case.alpha,
            "activation": case.activation,
            "activation_args": list(case.activation_args) or None,
            "precision": case.precision,
        }
        self.dh = reference.pre_activation(self.inst.a, self.inst.b, alpha=case.alpha)
        self.dh_error = reference.error_bound(
            self.inst.a, self.inst.b, alpha=case.alpha, out_dtype=torch.float32, precision=case.precision
        )
        args = case.activation_args
        self.exact = reference.gated_backward(self.dh, self.z, activation=case.activation, activation_args=args)

    @property
    def operands(self) -> list[Placed]:
        return [*self.inst.operands, self.placed_z]

    def problem(self, kernel: str | None = None) -> _C.Problem:
        options = self.options | {"kernel": kernel, "gate_gradient": True}
        return check(self.inst.a, self.inst.b, self.z, **options).problem

    def run(self, kernel: str | None = None) -> tuple[Tensor]:
        """DZ, in memory that was full of NaN."""
        poison = [torch.full(self.z.shape, torch.nan, dtype=self.z.dtype, device=self.z.device)]
        poison.append(torch.full((1 << 20,), torch.nan, device=self.z.device))
        del poison
        options = op_arguments(self.options | {"kernel": kernel})
        return (OPS._gated_dgrad(self.inst.a, self.inst.b, self.z, **options),)

    def bound(self, two_steps: bool) -> Tensor:
        """Errors of dH, which two steps round, of act and act', as test_forms.py has them, and of the last rounding."""
        dtype, case = self.z.dtype, self.case
        error = self.dh_error
        if two_steps:
            error = error + 1.01 * reference.UNIT_ROUNDOFF[dtype] * self.dh.abs() + reference.tiny(dtype, 0)
        gate, up = self.z.double().chunk(2, -1)
        activation = case.activation or "silu"
        slope = max(1.0, abs(case.activation_args[0])) if activation == "leaky_relu" and case.activation_args else 1.0
        of_gate = (up * reference.derivative(gate, activation, case.activation_args)).abs()
        of_up = reference.activate(gate, activation, case.activation_args).abs()
        approximation = 2.0**-19 * slope * (self.dh.abs() + error) * (1 + gate.abs())
        bound = torch.cat((error * of_gate + approximation * up.abs(), error * of_up + approximation), -1)
        return bound + 1.01 * reference.UNIT_ROUNDOFF[dtype] * self.exact.abs() + reference.tiny(dtype, case.k)

    def faults(self, dz: Tensor, two_steps: bool) -> list[str]:
        faults = []
        if dz.shape != self.exact.shape or dz.dtype != self.z.dtype or not dz.is_contiguous():
            faults.append(f"dZ is {tuple(dz.shape)} of {dz.dtype}, strides {dz.stride()}")
        elif (wrong := reference.outside_bound(dz, self.exact, self.bound(two_steps))).any():
            faults.append(f"dZ: {int(wrong.sum())} of {dz.numel()} elements outside the bound")
        if any(x.damaged() for x in self.operands):
            faults.append("an operand or the memory around it was written")
        return [f"gate gradient, {self.case}: {fault}" for fault in faults]
