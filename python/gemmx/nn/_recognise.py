"""What convert can swap, and why not: linear layers, and the gated MLPs of Hugging Face's decoders."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import parametrize

from gemmx import reference
from gemmx.nn.gated_mlp import PARTS
from gemmx.ops import Activation, Numerics

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LAYERS = (*PARTS, "down_proj")
# Of a gate; those without arguments.
_GATES: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "hardswish")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def is_linear(module: torch.nn.Module) -> bool:
    """A linear layer, of torch or by its name: those of other makers are left, and said."""
    return isinstance(module, torch.nn.Linear) or ("Linear" in type(module).__name__ and hasattr(module, "weight"))


def is_gated(module: torch.nn.Module) -> bool:
    return all(isinstance(getattr(module, layer, None), torch.nn.Module) for layer in LAYERS)


def _changes(module: torch.nn.Module) -> Iterator[str]:
    """What has been done to a module that a swap would lose."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "is scripted"
    if parametrize.is_parametrized(module):
        yield "has parametrizations, which a swap would lose"
    if hooks := [name for name in _HOOKS if getattr(module, name, None)]:
        yield f"has hooks ({', '.join(hooks)}), which a swap would lose"
    if "forward" in module.__dict__:
        yield "has a forward of its own, which a swap would lose"
    if getattr(module, "_compiled_call_impl", None) is not None:
        yield "is compiled; convert before compile"


def linear_reason(module: torch.nn.Module, numerics: Numerics | None) -> str:
    """Why the layer is left; "" where it can be swapped."""
    return next(_linear_reasons(module, numerics), "")


def _linear_reasons(module: torch.nn.Module, numerics: Numerics | None) -> Iterator[str]:
    if type(module) is not torch.nn.Linear and not parametrize.is_parametrized(module):
        yield "is no plain torch.nn.Linear, so that its forward may be another"
    yield from _changes(module)
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    for tensor in (weight, bias):
        if tensor is not None and type(tensor) is not Parameter:
            yield f"a parameter is a {type(tensor).__name__}, not a plain Parameter"
    if weight is None or set(module._parameters) != {"weight", "bias"} or module._buffers or module._modules:
        yield "has other parameters, buffers or submodules than weight and bias"
        return
    if weight.dtype not in _DTYPES:
        yield f"its weight is {weight.dtype}; gemmx takes float16, bfloat16 and float32"
    if bias is not None and bias.dtype not in (weight.dtype, torch.float32):
        yield f"its bias is {bias.dtype} and its weight {weight.dtype}"
    sizes = [module.out_features, module.in_features]
    if weight.layout != torch.strided or list(weight.shape) != sizes:
        yield f"its weight is not a strided tensor of shape {tuple(sizes)}"
    if numerics == "batch_invariant" and weight.dtype == torch.float32:
        yield "its weight is float32; batch_invariant takes float16 and bfloat16"


def gated_reason(
    module: torch.nn.Module, numerics: Numerics | None, places: dict[int, int]
) -> tuple[str, Activation | None]:
    """Why the MLP is left, or the activation of its gate. places: how often a Parameter, by its id, is used."""
    if reason := next(_gated_reasons(module, numerics, places), ""):
        return reason, None
    return _try(module)


def _gated_reasons(module: torch.nn.Module, numerics: Numerics | None, places: dict[int, int]) -> Iterator[str]:
    yield from _changes(module)
    if set(module._modules) - {*LAYERS, "act_fn"} or module._parameters or module._buffers:
        yield f"has more than {', '.join(LAYERS)} and act_fn"
    for layer in LAYERS:
        linear = module.get_submodule(layer)
        if not is_linear(linear):
            yield f"{layer} is a {type(linear).__name__}"
        yield from (f"{layer} {reason}" for reason in _linear_reasons(linear, numerics))
    act = getattr(module, "act_fn", None)
    if not callable(act):
        yield "has no act_fn"
    if isinstance(act, torch.nn.Module):
        yield from (f"act_fn {reason}" for reason in _changes(act))
        if any(True for _ in (*act.parameters(), *act.buffers())):
            yield "act_fn has parameters or buffers"
    gate, up, down = (cast(torch.nn.Linear, module.get_submodule(layer)) for layer in LAYERS)
    yield from _shapes(gate, up, down)
    for layer, linear in zip(PARTS, (gate, up), strict=True):
        if any(places[id(p)] > 1 for p in linear.parameters()):
            yield f"{layer} shares a parameter with another module, which a fused one could not"


def _shapes(gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear) -> Iterator[str]:
    if gate.weight.shape != up.weight.shape or down.weight.shape != gate.weight.shape[::-1]:
        yield "gate_proj, up_proj and down_proj are not (N, K), (N, K) and (K, N)"
    if (gate.bias is None) != (up.bias is None):
        yield "one of gate_proj and up_proj has a bias"
    pairs = zip(gate.parameters(), up.parameters(), strict=False)
    if any((x.dtype, x.device, x.requires_grad) != (y.dtype, y.device, y.requires_grad) for x, y in pairs):
        yield "gate_proj and up_proj differ in dtype, device or requires_grad"


@torch.no_grad()
def _try(module: torch.nn.Module) -> tuple[str, Activation | None]:
    """Runs the MLP's own forward on a replica with three small layers, and sees which gate it computes.

    A class's name says little: Gemma 3n's MLP has the same layers and drops small gates. It is run in both modes, since
    a forward may drop out while it trains.
    """
    takes = list(inspect.signature(module.forward).parameters.values())
    if len(takes) != 1 or takes[0].kind not in (takes[0].POSITIONAL_ONLY, takes[0].POSITIONAL_OR_KEYWORD):
        return "its forward takes other arguments than one tensor", None
    generator = torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        replica = module.__class__.__new__(module.__class__)
        replica.__dict__.update(module.__dict__)
        replica._modules = dict(module._modules)
        x = torch.randn(2, 3, 8, generator=generator)
        outs = []
        for layer, sizes in zip(LAYERS, ((8, 24), (8, 24), (24, 8)), strict=True):
            linear = torch.nn.Linear(*sizes, device="meta").to_empty(device="cpu")
            for parameter in linear.parameters():
                parameter.normal_(generator=generator)
            replica._modules[layer] = linear
        for training in (False, True):
            replica.__dict__["training"] = training
            try:
                out = replica.forward(x.clone())
            except Exception as error:
                return f"its forward fails on a small replica ({type(error).__name__}: {error})", None
            outs.append(out)
        gate, up, down = (cast(torch.nn.Linear, replica._modules[layer]) for layer in LAYERS)
        for activation in _GATES:
            expected = down(reference.activate(gate(x), activation) * up(x))
            if all(isinstance(d, Tensor) and _close(d, expected) for d in outs):
                return "", activation
    return f"its forward is not down_proj(act(gate_proj(x)) * up_proj(x)) with one of {', '.join(_GATES)}", None


def _close(d: Tensor, expected: Tensor) -> bool:
    return d.shape == expected.shape and d.dtype == expected.dtype and torch.allclose(d, expected, 1e-5, 1e-5)
