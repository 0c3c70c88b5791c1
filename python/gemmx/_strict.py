"""gemmx.strict(): an error where a call would take a slower path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gemmx import _C
from gemmx.select.selector import slow_path_reason, two_steps_reason

_open: list[object] = []  # one entry for each strict() that is open, in any thread


@contextmanager
def strict() -> Iterator[None]:
    """Inside, gemmx.gemm and its forms raise RuntimeError, naming the reason, instead of taking a slower path.

    Slower paths are: for float16 and bfloat16 CUDA tensors a kernel without tensor cores, or one that an alignment or
    a stride keeps from 16-byte accesses; for any tensor, leading dimensions that fold only by a copy, and gemm_gated
    and gemm_aux where no kernel computes the form, so that it takes two launches. It holds for all threads of the
    process while it is open. It asks the selector on every call, which costs tens of microseconds: for development, not
    for serving. Not covered: torch.ops.gemmx.*, which knows no Python state, the products of a backward pass, and
    compiled code, where gemmx.gemm refuses to be traced under strict() rather than go unchecked.
    """
    _open.append(None)
    try:
        yield
    finally:
        _open.pop()


def strict_is_on() -> bool:
    return bool(_open)


def refuse_tracing() -> None:
    """RuntimeError where torch.compile traces: it has no addresses and, when the code runs, no Python."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "strict: compiled code can't be checked for slower paths; call the compiled function outside gemmx.strict()"
        )


def refuse_slow_path(checked: _C.Checked, device: torch.device) -> None:
    """RuntimeError where the plan of the checked call on a CUDA device is a slower path."""
    if checked.empty:
        return
    properties = _C.cuda_device(torch.cuda.current_device() if device.index is None else device.index)
    if reason := two_steps_reason(checked.problem, properties):
        raise RuntimeError(f"strict: {reason}, so that it takes two launches and a workspace for the product.")
    plan = _C.select(checked.problem, properties)
    if reason := slow_path_reason(checked.problem, properties, plan):
        raise RuntimeError(f"strict: {reason}")
