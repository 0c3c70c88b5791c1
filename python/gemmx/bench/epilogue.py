"""Suite epilogue: the torch arms of a row with an epilogue, and what gemmx is to reach beside them.

A torch user writes the epilogue after F.linear, out of place, and may wrap it in torch.compile. Both are measured,
and torch's time is the better of the two:

    bias        F.linear(x, w, b)                 residual    F.linear(x, w) + r
    bias+act    act(F.linear(x, w, b))            swiglu      silu(g) * u of the two halves g | u of one F.linear
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gemmx.bench.cases import TORCH_ACTIVATIONS, Call, Case, Inputs
from gemmx.bench.manifest import Row

SUITE = "epilogue"
# Arms of which torch's time is the minimum. compile's outputs are captured into the timer's graphs like any other's.
TORCH_ARMS = ("eager", "compile")
ADDMM_ARM = "addmm_activation"
# max-autotune without graphs of its own: the timer captures the kernels that it has chosen.
COMPILE_MODES = {"": None, "max-autotune": "max-autotune-no-cudagraphs"}
# torch._addmm_activation's use_gelu; cuBLASLt's epilogue is the tanh form, also where the erf form is asked for.
ADDMM_GELU = {"relu": False, "gelu": True, "gelu_tanh": True}

# x (M, K), w (N, K), bias or None, residual or None -> D
Function = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def eager_function(row: Row) -> Function:
    """What a torch user writes for the row, as one function of x, weight, bias and residual. Nothing in place."""
    if row.alpha != 1 or row.batch != 1 or row.dtype_d != row.dtype_a or (row.dtype_c and row.beta != 1):
        raise ValueError(f"row {row.name}: suite {SUITE} takes alpha 1, beta 1, one batch and D in A's dtype")
    if row.gated:

        def swiglu(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None) -> Tensor:
            gate, up = functional.linear(x, w, b).chunk(2, dim=-1)
            return functional.silu(gate) * up

        return swiglu
    act = TORCH_ACTIVATIONS[row.activation] if row.activation else None

    def linear(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None) -> Tensor:
        z = functional.linear(x, w, b)
        if r is not None:
            z = z + r
        return z if act is None else act(z)

    return linear


def call_of(function: Function) -> Call:
    def call(s: Inputs, out: Tensor | None) -> Tensor:
        return function(s.a, s.b.t(), s.bias, s.c)

    return call


def torch_calls(row: Row) -> dict[str, Call]:
    """eager, and compile in the row's mode. Forgets what was compiled for other rows."""
    torch._dynamo.reset()  # the rows share the functions' code, and code is compiled for a few shapes at most
    function = eager_function(row)
    compiled = torch.compile(function, mode=COMPILE_MODES[row.compile], dynamic=False, fullgraph=True)
    return {"eager": call_of(function), "compile": call_of(compiled)}


def addmm_activation_call(row: Row) -> Call | None:
    """torch._addmm_activation, cuBLASLt's own fused epilogue: relu, gelu and gelu_tanh of a product with a bias."""
    op = getattr(torch, "_addmm_activation", None)
    if op is None or not row.has_bias or row.dtype_c or row.activation not in ADDMM_GELU:
        return None
    use_gelu = ADDMM_GELU[row.activation]

    def call(s: Inputs, out: Tensor | None) -> Tensor:
        result: Tensor = op(s.bias, s.a, s.b, use_gelu=use_gelu)
        return result

    return call


def warm(case: Case, call: Call) -> float:
    """Runs the call, which compiles it; seconds, of a first call nearly all the compiler's."""
    start = time.perf_counter()
    call(case.inputs[0], None)
    if case.device == "cuda":
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 2)


# ---- goals ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """<over>_over_gemmx of a row is to be at least this."""

    over: str
    least: float

    @property
    def key(self) -> str:
        return f"{self.over}_over_gemmx"

    def met(self, result: dict[str, Any]) -> bool:
        return bool(result.get(self.key, 0.0) >= self.least)


# An epilogue apart from the product reads and writes M x N elements once more: 4 bytes an element, 3 where swiglu
# halves them. Beside 2 K FLOPs an element that is 388 / K (291 / K) of the product's time on a GPU with 194 FLOPs a
# byte (776 TFLOP/s, 4 TB/s). 0.7 of it is to be won.
WON = 0.7
POINTWISE_K = {"bias+gelu": 388, "bias+silu": 388, "residual": 388, "swiglu": 291}
SMALL_M, SMALL_M_LEAST = 16, 1.02
EAGER_GOALS = {
    "swiglu-512x28672x4096": 1.32,
    "swiglu-2048x28672x4096": 1.30,
    "bias+gelu_tanh-2048x6144x4096": 1.17,
    "residual-2048x6144x4096": 1.13,
}


def goals(row: Mapping[str, Any]) -> list[Goal]:
    """Of a row of the manifest or of a result file, by its columns."""
    found = []
    if row["M"] <= SMALL_M:
        found.append(Goal("torch", SMALL_M_LEAST))
    elif row["epilogue"] in POINTWISE_K:
        found.append(Goal("torch", round(1 + WON * POINTWISE_K[row["epilogue"]] / row["K"], 3)))
    if row["epilogue"] == "bias+gelu":
        found.append(Goal(ADDMM_ARM, 1.0))
    if row["name"] in EAGER_GOALS:
        found.append(Goal("eager", EAGER_GOALS[row["name"]]))
    return found
