"""What the modules of gemmx.nn share: the module that they stand for."""

from __future__ import annotations

from typing import Any

import torch


class Replacement(torch.nn.Module):
    """A module that convert may have put in another's place.

    It keeps the other as a shell, without parameters: were they kept, memory would hold them twice as soon as
    load_state_dict(assign=True), to_empty or a parallel style puts others into the new module.
    """

    _replaced: torch.nn.Module | None = None

    def stand_for(self, other: torch.nn.Module) -> None:
        """Takes the other module's mode and its own attributes, and remembers what it was."""
        for name, value in other.__dict__.items():
            self.__dict__.setdefault(name, value)
        self.training = other.training
        self.__dict__["_replaced"] = shell(other)  # not a submodule

    def original(self) -> torch.nn.Module:
        """A module as the replaced one was, with this one's parameters and mode."""
        raise NotImplementedError


def shell(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the module and of those below it, with None for each parameter."""
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in module.__dict__.items()})
    copy._parameters = dict.fromkeys(module._parameters)
    copy._modules = {k: None if v is None else shell(v) for k, v in module._modules.items()}
    return copy


def options_repr(**options: Any) -> str:
    """Those options that are not None, for extra_repr."""
    return "".join(f", {name}={value}" for name, value in options.items() if value is not None)
