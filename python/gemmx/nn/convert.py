"""convert: gemmx's modules in place of a model's own, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import cast

import torch

from gemmx.nn._recognise import LAYERS, gated_reason, is_gated, is_linear, linear_reason
from gemmx.nn._replacement import Replacement
from gemmx.nn.gated_mlp import GatedMLP
from gemmx.nn.linear import Linear
from gemmx.ops import Activation, Numerics, Precision

Filter = str | Sequence[str] | Callable[[str, torch.nn.Module], bool]


@dataclass(frozen=True)
class Swap:
    """A module that was swapped."""

    name: str
    before: str  # its class
    after: str  # the new module, as print shows it

    def __str__(self) -> str:
        return f"swapped {self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Left:
    """A module that was left, and why."""

    name: str
    before: str
    reason: str

    def __str__(self) -> str:
        return f"left    {self.name or '(the model)'}: {self.before}, {self.reason}"


@dataclass(frozen=True)
class Report:
    """What convert did, one line a module when printed."""

    model: torch.nn.Module
    swapped: tuple[Swap, ...]
    left: tuple[Left, ...]

    def restore(self) -> None:
        """Puts all original modules back: gemmx.nn.restore(model)."""
        restore(self.model)

    def __str__(self) -> str:
        head = f"{len(self.swapped)} modules swapped, {len(self.left)} left"
        return "\n".join([head, *map(str, self.swapped), *map(str, self.left)])


def convert(
    model: torch.nn.Module,
    *,
    include: Filter | None = None,
    exclude: Filter | None = None,
    precision: Precision | None = None,
    numerics: Numerics | None = None,
) -> Report:
    """Swaps the model's linear layers and gated MLPs for gemmx.nn's, in place.

    A torch.nn.Linear becomes a gemmx.nn.Linear with the same Parameter objects: ties stay, and optimizers keep them.
    A module with gate_proj, up_proj, down_proj (torch.nn.Linear) and act_fn, as the MLPs of Hugging Face's Llama,
    Mistral, Qwen2 and Gemma, becomes a gemmx.nn.GatedMLP where its forward, tried on a small replica of it, is
    down_proj(act_fn(gate_proj(x)) * up_proj(x)). The weights of gate and up become one new Parameter, so that an
    optimizer has to be built after convert. state_dict has the same names and values as before.

    Args:
        model: Its submodules are swapped, the model itself never.
        include: What may be swapped: patterns (fnmatch) of names as in named_modules(), which also take what lies
            below a module that they match, or a function of name and module. All by default.
        exclude: What may not, in the same form; stronger than include.
        precision: As in gemmx.gemm; for the float32 layers.
        numerics: As in gemmx.gemm.

    Returns:
        What was swapped, what was left and why; it can put all back.

    Left, with the reason: dtypes other than float16, bfloat16 and float32, subclasses (quantized layers among them),
    layers with hooks, parametrizations, a replaced forward, weights that are tensor subclasses, and gated MLPs whose
    weights are shared with another module.

    Raises:
        ValueError: A pattern matches no module.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    _check_patterns("include", include, modules)
    _check_patterns("exclude", exclude, modules)
    places = _places(model)
    swapped: list[Swap] = []
    left: list[Left] = []
    new: dict[torch.nn.Module, Replacement] = {}  # a module that stands at two places is swapped once
    skipped: set[str] = set()  # what lies below these is not looked at

    def choose(name: str, module: torch.nn.Module) -> str:
        return _not_chosen(name, module, include, exclude)

    for name, module in modules.items():
        linear, gated = is_linear(module), is_gated(module)
        if _lies_below(name, skipped) or not (linear or gated or isinstance(module, Replacement)):
            continue
        if linear or isinstance(module, Replacement):
            skipped.add(name)
        reason, activation = choose(name, module), None
        if isinstance(module, Replacement):
            reason = "is gemmx.nn's already"
        elif linear:
            reason = reason or linear_reason(module, numerics)
        else:
            for layer in LAYERS:
                if not reason and (why := choose(f"{name}.{layer}", getattr(module, layer))):
                    reason = f"{layer} is {why}"
            if not reason:
                reason, activation = gated_reason(module, numerics, places)
        if not reason and not name:
            reason = "the model cannot swap itself; convert a module around it, or build gemmx.nn's"
        if reason:
            left.append(Left(name, type(module).__name__, reason))
            continue
        if module not in new:
            new[module] = _made_of(module, activation, precision, numerics)
        skipped.add(name)
        _put(model, name, new[module])
        swapped.append(Swap(name, type(module).__name__, f"{type(new[module]).__name__}({new[module].extra_repr()})"))
    return Report(model, tuple(swapped), tuple(left))


def restore(model: torch.nn.Module) -> None:
    """Puts back what convert has swapped, in place.

    Layers get the Parameters that the new modules have by now, the same objects; gate_proj and up_proj of a gated MLP
    get new ones with their values, gradients and requires_grad. Modules that were built as gemmx.nn's stay.
    """
    old: dict[torch.nn.Module, torch.nn.Module] = {}
    done: set[str] = set()
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and not _lies_below(name, done) and isinstance(module, Replacement) and module._replaced is not None:
            if module not in old:
                old[module] = module.original()
            _put(model, name, old[module])
            done.add(name)


# ---- names and filters ----------------------------------------------------------------------------------------------


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    model.get_submodule(parent)._modules[last] = module


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


def _lies_below(name: str, names: set[str]) -> bool:
    return any(prefix in names for prefix in _prefixes(name) if prefix != name)


def _matches(chosen: Filter, name: str, module: torch.nn.Module) -> bool:
    if callable(chosen):
        return chosen(name, module)
    patterns = [chosen] if isinstance(chosen, str) else chosen
    return any(fnmatchcase(prefix, pattern) for prefix in _prefixes(name) for pattern in patterns)


def _not_chosen(name: str, module: torch.nn.Module, include: Filter | None, exclude: Filter | None) -> str:
    if include is not None and not _matches(include, name, module):
        return "not in include"
    return "in exclude" if exclude is not None and _matches(exclude, name, module) else ""


def _check_patterns(argument: str, chosen: Filter | None, modules: dict[str, torch.nn.Module]) -> None:
    if chosen is None or callable(chosen):
        return
    for pattern in [chosen] if isinstance(chosen, str) else chosen:
        if not any(fnmatchcase(name, pattern) for name in modules):
            raise ValueError(
                f"{argument}: {pattern!r} matches no module; it takes names as in model.named_modules(), where * "
                f"stands for any characters"
            )


def _places(model: torch.nn.Module) -> dict[int, int]:
    """At how many places each Parameter, by its id, is used: a layer that two modules share counts twice."""
    parents: dict[torch.nn.Module, int] = {model: 1}
    for module in model.modules():
        for child in module._modules.values():
            if child is not None:
                parents[child] = parents.get(child, 0) + 1
    count: dict[int, int] = {}
    for module, places in parents.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                count[id(parameter)] = count.get(id(parameter), 0) + places
    return count


def _made_of(
    module: torch.nn.Module, activation: Activation | None, precision: Precision | None, numerics: Numerics | None
) -> Replacement:
    weight = next(module.parameters())
    if weight.dtype != torch.float32:
        precision = None
    if activation is None:
        return Linear.of(cast(torch.nn.Linear, module), precision=precision, numerics=numerics)
    return GatedMLP.of(module, activation=activation, precision=precision, numerics=numerics)
