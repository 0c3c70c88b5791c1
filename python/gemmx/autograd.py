"""The gradients of gemm, gemm_gated and the gated MLP, and the ops' kernels at the Autograd keys.

With Z = alpha A B + beta C + bias and D = act(Z), or gated D = act(Z gate) Z up:

    dZ = dD act'(Z)         gated_backward, activation_backward, which add up the bias gradient on the way
    dA = alpha dZ B^T       dB = alpha A^T dZ       dC = beta dZ, summed where C was broadcast

A recorded call saves what these need and no more: a only for dB, b only for dA, and Z, which gemm_aux writes beside D
in one launch. relu, leaky_relu, sigmoid and tanh save D, which the caller keeps anyway, in its place; no activation
saves neither. The products are gemm's of transposed views; dB comes out in b's layout, so that the gradient of a
weight that is stored (N, K) and passed as weight.t() is contiguous as the weight is.

In a backward that is itself recorded (create_graph=True) dZ is plain torch instead of one op, and the rest is recorded
as it is, so that second and further derivatives are right. Z is an output of the recorded node for their sake, so that
gemm_aux and gemm_gated_aux are differentiable, too.

_gated_mlp records both products of a gated MLP as one node, gemm of gemm_gated: where they meet, dH = dD B^T of the
upper one and the gate's backward are one launch (_gated_dgrad), which keeps dH in float32 and out of memory.

On CUDA the kernels at the Autograd keys of gemm and gemm_gated are C++ (csrc/torch/autograd.cpp), since a Python kernel
costs 4 to 5 us a call under no_grad. They call the ops _gemm and _gemm_gated, which autograd lets through, where
nothing is to be recorded, and _gemm_recorded and _gemm_gated_recorded, which are here, where _wants_gradient says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._functorch.autograd_function import (  # type: ignore[attr-defined]
    enable_single_level_autograd_function,
)
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from gemmx import _C, reference
from gemmx._checks import holds
from gemmx._dispatch import KERNEL, OPS, keeping_errors, library, register, skip_when_traced

_grad_is_on = torch.is_grad_enabled
_in_functorch = torch._C._functorch.peek_interpreter_stack  # None outside torch.func's transforms

_gemm = OPS.gemm.default
_gemm_aux = OPS.gemm_aux.default
_gemm_out = OPS.gemm_out.default
_gemm_gated = OPS.gemm_gated.default
_gemm_gated_aux = OPS.gemm_gated_aux.default
_activation_backward = OPS.activation_backward.default
_gated_backward = OPS.gated_backward.default
_gated_dgrad = OPS._gated_dgrad.default

# The Autocast keys: a backward casts nothing, since what it reads has the forward's dtypes.
_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCPU) | DispatchKeySet(DispatchKey.AutocastCUDA)


class _Call(NamedTuple):
    """What the backward of a recorded call knows beside its saved tensors."""

    gated: bool
    aux: bool  # Z is a result too
    saves: str  # what tells act': "z", "d" or nothing
    activation: str
    activation_args: Sequence[float] | None
    alpha: float
    beta: float
    precision: str | None
    numerics: str | None
    a_dtype: torch.dtype
    a_dim: int
    b_dim: int
    a_by_columns: bool  # the dimension of stride 1 is M
    b_by_columns: bool
    c: tuple[Sequence[Any], torch.dtype] | None
    bias_dtype: torch.dtype | None


def _by_columns(x: Tensor) -> bool:
    return holds(x.stride(-2) == 1) and not holds(x.stride(-1) == 1)


def _saves(gated: bool, activation: str, args: Sequence[float] | None) -> str:
    if gated:
        return "z"
    if activation == "none":
        return ""
    if activation == "leaky_relu" and args and not args[0] > 0:
        return "z"
    return "d" if activation in reference.SAVE_D else "z"


def _call_of(  # noqa: PLR0917
    gated: bool, aux: bool, options: dict[str, Any], a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None
) -> _Call:
    activation = options.get("activation") or ("silu" if gated else "none")
    activation_args = options.get("activation_args")
    return _Call(
        gated=gated,
        aux=aux,
        saves=_saves(gated, activation, activation_args),
        activation=activation,
        activation_args=activation_args,
        alpha=options.get("alpha", 1.0),
        beta=options.get("beta", 1.0),
        precision=options.get("precision"),
        numerics=options.get("numerics"),
        a_dtype=a.dtype,
        a_dim=a.dim(),
        b_dim=b.dim(),
        a_by_columns=_by_columns(a),
        b_by_columns=_by_columns(b),
        c=None if c is None else (c.shape, c.dtype),
        bias_dtype=None if bias is None else bias.dtype,
    )


class _Recorded(_SingleLevelFunction):
    """One recorded call. Returns (D,), or (D, Z) where Z is a result or saved.

    Not a torch.autograd.Function, whose apply asks torch.func's transforms where to go: a kernel at the Autograd key is
    what they called for one level.
    """

    @staticmethod
    def forward(  # noqa: PLR0917
        call: _Call,
        options: dict[str, Any],
        scales: tuple[Tensor | None, ...],
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, ...]:
        tensors = (a, b, bias, *scales) if call.gated else (a, b, c, bias, *scales)
        # An outer level of torch.func's transforms records what this one calls; only here grad mode is off.
        outer = nullcontext() if _in_functorch() is None else torch.enable_grad()
        with outer, torch._C._AutoDispatchBelowAutograd():
            if call.aux or call.saves == "z":
                return tuple((_gemm_gated_aux if call.gated else _gemm_aux)(*tensors, **options))
            return ((_gemm_gated if call.gated else _gemm)(*tensors, **options),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        call, _, _, a, b, *_ = inputs
        ctx.call = call
        needs_a, needs_b = ctx.needs_input_grad[3:5]
        of_activation = {"": None, "d": output[0], "z": output[-1]}[call.saves]
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, of_activation)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_z: Tensor | None = None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        if grad is None and grad_z is None:
            return (None,) * 7
        call: _Call = ctx.call
        a, b, saved = ctx.saved_tensors
        recorded = _grad_is_on()
        below: AbstractContextManager[Any] = nullcontext() if recorded else torch._C._AutoDispatchBelowAutograd()
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST), below:
            if recorded or grad is None or grad_z is not None:
                dz, dbias = _plain_dz(call, grad, grad_z, saved, wanted[3])
            else:
                dz, dbias = _dz(call, grad, saved, wanted[3])
            dc = _gradient_of_c(call, dz) if wanted[2] else None
            if wanted[0] or wanted[1]:
                dz = dz.to(call.a_dtype)
            da = _gradient_of_a(call, dz, b) if wanted[0] else None
            db = _gradient_of_b(call, dz, a) if wanted[1] else None
        return None, None, None, da, db, dc, dbias


skip_when_traced(_Recorded.forward)
skip_when_traced(_Recorded.setup_context)
skip_when_traced(_Recorded.backward)


def _dz(call: _Call, grad: Tensor, saved: Tensor | None, bias_grad: bool) -> tuple[Tensor, Tensor | None]:
    """DZ and the bias gradient, by one op where there is an activation."""
    if saved is None:
        return grad, _sum_of_rows(call, grad) if bias_grad else None
    backward = _gated_backward if call.gated else _activation_backward
    dz, dbias = backward(
        grad, saved, activation=call.activation, activation_args=call.activation_args, bias_grad=bias_grad
    )
    return dz, dbias.to(call.bias_dtype) if bias_grad else None


def _plain_dz(
    call: _Call, grad: Tensor | None, grad_z: Tensor | None, saved: Tensor | None, bias_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """As _dz, differentiable, and with what a second derivative adds to dZ."""
    dz = grad
    if grad is not None and saved is not None:
        compute = reference.gated_backward if call.gated else reference.activation_backward
        dz = compute(
            grad,
            saved,
            activation=call.activation,
            activation_args=call.activation_args,
            compute_dtype=torch.float32,
        )
    if grad_z is not None:
        dz = grad_z if dz is None else dz + grad_z
    assert dz is not None
    dbias = _sum_of_rows(call, dz) if bias_grad else None
    return dz if saved is None else dz.to(saved.dtype), dbias


def _sum_of_rows(call: _Call, dz: Tensor) -> Tensor:
    assert call.bias_dtype is not None
    return dz.sum(tuple(range(dz.dim() - 1)), dtype=torch.float32).to(call.bias_dtype)


def _gradient_of_a(call: _Call, dz: Tensor, b: Tensor) -> Tensor:
    """DA = alpha dZ B^T, in a's layout. batch_invariant is passed on: a row of dA depends on one row of dZ."""
    options = {"alpha": call.alpha, "precision": call.precision, "numerics": call.numerics}
    da: Tensor
    if call.a_dim < dz.dim():  # a served all batches
        da = _gemm(dz, b.mT, out_dtype=torch.float32, **options)
        return da.sum(0).to(call.a_dtype)
    if call.a_by_columns and call.numerics != "batch_invariant":  # as D of this product a row of dA would be a column
        da = _gemm(b, dz.mT, **options)
        return da.mT
    da = _gemm(dz, b.mT, **options)
    return da


def _gradient_of_b(call: _Call, dz: Tensor, a: Tensor) -> Tensor:
    """DB = alpha A^T dZ, in b's layout. Batches that share b are rows of one product."""
    options = {"alpha": call.alpha, "precision": call.precision}
    if call.b_dim < dz.dim():
        a, dz = a.flatten(0, 1), dz.flatten(0, 1)
    db: Tensor
    if call.b_by_columns:
        db = _gemm(dz.mT, a, **options)
        return db.mT
    db = _gemm(a.mT, dz, **options)
    return db


def _gradient_of_c(call: _Call, dz: Tensor) -> Tensor:
    """DC = beta dZ, summed in float32 over the dimensions along which c was broadcast."""
    assert call.c is not None
    shape, dtype = call.c
    if call.beta == 0:  # c was not read
        return dz.new_zeros(shape, dtype=dtype)
    lead = dz.dim() - len(shape)
    broadcast = list(range(lead))
    broadcast += [lead + i for i, n in enumerate(shape) if holds(n == 1) and not holds(dz.shape[lead + i] == 1)]
    if broadcast:
        dz = dz.sum(broadcast, keepdim=True, dtype=torch.float32)
        dz = dz.squeeze(tuple(range(lead))) if lead else dz
    return (dz if call.beta == 1 else dz * call.beta).to(dtype)


class _Calls(NamedTuple):
    """The two products of a gated MLP."""

    gate_up: _Call
    down: _Call


class _RecordedMLP(_SingleLevelFunction):
    """One recorded gated MLP. Returns (D, hidden, Z): hidden and Z for the sake of further derivatives."""

    @staticmethod
    def forward(  # noqa: PLR0917
        calls: _Calls,
        options: dict[str, Any],
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        gate_up_bias: Tensor | None,
        down_bias: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            hidden, z = _gemm_gated_aux(x, gate_up, gate_up_bias, **options)
            return _gemm(hidden, down, None, down_bias, precision=options.get("precision")), hidden, z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.calls, _, x, gate_up, down, *_ = inputs
        _, hidden, z = output
        needs_x, needs_gate_up, needs_down, needs_bias, _ = ctx.needs_input_grad[2:]
        needs_z = needs_x or needs_gate_up or needs_bias
        ctx.save_for_backward(
            x if needs_gate_up else None,
            gate_up if needs_x else None,
            hidden if needs_down else None,
            down if needs_z else None,
            z if needs_z else None,
        )

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_hidden: Tensor | None = None, grad_z: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:]
        calls: _Calls = ctx.calls
        x, gate_up, hidden, down, z = ctx.saved_tensors
        recorded = _grad_is_on()
        below: AbstractContextManager[Any] = nullcontext() if recorded else torch._C._AutoDispatchBelowAutograd()
        dx = d_gate_up = d_down = d_bias = d_down_bias = dz = None
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST), below:
            if grad is not None:
                d_down = _gradient_of_b(calls.down, grad, hidden) if wanted[2] else None
                d_down_bias = _sum_of_rows(calls.down, grad) if wanted[4] else None
            if z is not None:
                dz, d_bias = _dz_of_mlp(calls, (grad, grad_hidden, grad_z), down, z, recorded, wanted[3])
            if dz is not None:
                dx = _gradient_of_a(calls.gate_up, dz, gate_up) if wanted[0] else None
                d_gate_up = _gradient_of_b(calls.gate_up, dz, x) if wanted[1] else None
        return None, None, dx, d_gate_up, d_down, d_bias, d_down_bias


def _dz_of_mlp(  # noqa: PLR0917
    calls: _Calls,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    down: Tensor,
    z: Tensor,
    recorded: bool,
    bias_grad: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """DZ from the gradients of D, hidden and Z, and the gradient of gate and up's bias.

    In one launch, of which no sums come: with a bias the gate's backward is an op of its own, which adds them up.
    """
    grad, grad_hidden, grad_z = grads
    plain = recorded or grad_hidden is not None or grad_z is not None
    if grad is not None and not plain and not bias_grad:
        call = calls.gate_up
        options = {"activation": call.activation, "activation_args": call.activation_args, "precision": call.precision}
        return _gated_dgrad(grad, down.mT, z, **options), None
    dh = grad_hidden
    if grad is not None:
        through_down = _gradient_of_a(calls.down, grad, down)
        dh = through_down if dh is None else dh + through_down
    if dh is None and grad_z is None:
        return None, None
    if plain or dh is None:
        return _plain_dz(calls.gate_up, dh, grad_z, z, bias_grad)
    return _dz(calls.gate_up, dh, z, bias_grad)


skip_when_traced(_RecordedMLP.forward)
skip_when_traced(_RecordedMLP.setup_context)
skip_when_traced(_RecordedMLP.backward)


# ---- the Autograd keys --------------------------------------------------------------------------------------------

# redispatch_boxed with the remaining keys takes 5 us, one more
# microsecond with an _AutoDispatchBelowAutograd guard around it, which nothing below needs (torch 2.14, x86 core).
_below_autograd = torch._C._after_autograd_keyset
_below_inplace = torch._C._after_ADInplaceOrView_keyset
_increment_version = torch._C._increment_version  # torch.autograd.graph.increment_version, without its isinstance
_redispatch_gemm_out = _gemm_out._handle.redispatch_boxed


def _wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd may record a call on these tensors; grad mode is on.

    Inside torch.func's transforms always: an outer level may record what this one does not, and the op that is called
    below must be one that it records.
    """
    forward = forward_ad._current_level >= 0
    return _in_functorch() is not None or any(
        x.requires_grad or (forward and forward_ad.unpack_dual(x).tangent is not None)  # type: ignore[no-untyped-call]
        for x in tensors
        if x is not None
    )


def _require_grad(tensors: Iterable[Any]) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def _refuse_tangents(op: str, tensors: Iterable[Any]) -> None:
    for x in tensors:
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise RuntimeError(
                f"gemmx.{op} has no forward-mode gradient and an argument of shape {tuple(x.shape)} has a tangent; "
                f"pass its primal"
            )


@functools.cache
def _custom_kernels() -> frozenset[str]:
    """Kernels with functions of their own, which have no gradient (docs/custom_epilogue.md)."""
    return frozenset(spec.name for spec in _C.kernels() if spec.custom_function)


def _record(gated: bool, aux: bool, args: Sequence[Any], options: dict[str, Any]) -> tuple[Tensor, ...]:
    if (kernel := options.get(KERNEL)) and kernel in _custom_kernels():
        raise RuntimeError(
            f"kernel: is {kernel!r}, whose function has no gradient, and an argument requires grad; wrap the call in a "
            f"torch.autograd.Function, or call it under torch.no_grad()"
        )
    tensors = (*args, *(None,) * ((5 if gated else 7) - len(args)))
    a, b, c, bias = (*tensors[:2], None, tensors[2]) if gated else tensors[:4]
    scales = tensors[3:] if gated else tensors[4:]
    call = _call_of(gated, aux, options, a, b, c, bias)
    single = nullcontext() if _in_functorch() is None else enable_single_level_autograd_function()
    with single:
        result: tuple[Tensor, ...] = _Recorded.apply(call, options, scales, a, b, c, bias)  # type: ignore[attr-defined]
    return result


def _recording(op: str) -> Callable[..., Any]:
    """The Autograd kernel of gemm, gemm_aux, gemm_gated or gemm_gated_aux."""
    gated, aux = "gated" in op, "aux" in op
    # Of _gemm_recorded it goes on as gemm, which an outer level of torch.func's transforms records.
    name = op.strip("_").removesuffix("_recorded")
    redispatch = getattr(OPS, name).default._handle.redispatch_boxed

    def kernel(keys: DispatchKeySet, *args: Any, **options: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(name, args)
        if _grad_is_on() and _require_grad(args):
            result = _record(gated, aux, args, options)
            return result if aux else result[0]
        return redispatch(keys & _below_autograd, *args, **options)

    return kernel


def two_products(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    *,
    precision: str | None = None,
    **options: Any,
) -> Tensor:
    """What _gated_mlp computes, by the ops that it stands for."""
    hidden = _gemm_gated(x, gate_up, gate_up_bias, precision=precision, **options)
    d: Tensor = _gemm(hidden, down, None, down_bias, precision=precision)
    return d


def _gated_mlp_autograd(*args: Any, **options: Any) -> Tensor:
    """Inside torch.func's transforms, and where nothing is recorded, it is the two products, which know what to do."""
    levels = _in_functorch() is not None or forward_ad._current_level >= 0
    if levels or not (_grad_is_on() and _require_grad(args)):
        return two_products(*args, **options)
    x, gate_up, down, gate_up_bias, down_bias = (*args, None, None)[:5]
    of_down = {"precision": options.get("precision")}
    calls = _Calls(
        _call_of(True, True, options, x, gate_up, None, gate_up_bias),
        _call_of(False, False, of_down, x, down, None, down_bias)._replace(a_by_columns=False),  # hidden's rows
    )
    result: tuple[Tensor, ...] = _RecordedMLP.apply(  # type: ignore[attr-defined]
        calls, options, x, gate_up, down, gate_up_bias, down_bias
    )
    return result[0]


def _refuse(op: str, advice: str, tensors: Sequence[Any]) -> None:
    if forward_ad._current_level >= 0:
        _refuse_tangents(op, tensors)
    if _grad_is_on() and _require_grad(tensors):
        raise RuntimeError(
            f"gemmx.{op} has no gradient and an argument requires grad; {advice}call it under torch.no_grad() or "
            f"torch.inference_mode(), or pass .detach()"
        )


def _gemm_out_autograd(keys: DispatchKeySet, *args: Any, **options: Any) -> None:
    _refuse("gemm with out", "leave out None, or ", (*args, options["out"]))
    _gemm_out_inplace(keys, *args, **options)


def _gemm_out_inplace(keys: DispatchKeySet, *args: Any, **options: Any) -> None:
    """Counts out's version up, so that autograd notices when it needed the old values."""
    _increment_version((options["out"],))
    _redispatch_gemm_out(keys & _below_inplace, *args, **options)


def _refusing(op: str) -> Callable[..., Any]:
    redispatch = getattr(OPS, op).default._handle.redispatch_boxed

    def kernel(keys: DispatchKeySet, *args: Any, **options: Any) -> Any:
        _refuse(op, "", args)
        return redispatch(keys & _below_autograd, *args, **options)

    return kernel


for _op in ("gemm", "gemm_aux", "gemm_gated", "gemm_gated_aux"):
    register(_op, _recording(_op), "Autograd", with_keys=True)
for _op in ("gemm", "gemm_gated"):
    _recorded = f"_{_op}_recorded"
    register(_recorded, keeping_errors(_recording(_recorded)), "Autograd", with_keys=True)
    library.impl(f"_{_op}", torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
# At the Autograd key it sees the tensors that were passed; below, a tracer's modes would see what those stand for.
register("_wants_gradient", _wants_gradient, "Autograd")
register("gemm_out", _gemm_out_autograd, "Autograd", with_keys=True)
register("gemm_out", _gemm_out_inplace, "ADInplaceOrView", with_keys=True)
register("_gated_mlp", _gated_mlp_autograd, "Autograd")
for _key in ("CPU", "CUDA"):
    register("_gated_mlp", two_products, _key)
for _op in ("activation_backward", "gated_backward", "_gated_dgrad"):
    register(_op, _refusing(_op), "Autograd", with_keys=True)
