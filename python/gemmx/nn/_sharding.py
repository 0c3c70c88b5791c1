"""How gemmx's ops treat DTensors: the placements that each op computes on each rank's own tensors as they are.

    column      b, bias and c sharded on N            D sharded on N
    row         a and b sharded on K                  D partial sums; without activation, bias and c
    rows of D   a and c sharded on a dimension of M   D sharded likewise: what the gradient of a weight needs
    replicated

Other placements are redistributed to the cheapest of these, as for torch's own ops; where that would hide a mistake,
the call is refused: a sharded K with an epilogue, and gate | up cut apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from gemmx._library import NAMESPACE

# Outputs' and inputs' placements on one dimension of the mesh; None for inputs that are no tensors.
Rule = tuple[list[Placement | None], list[Placement | None]]

_ops = getattr(torch.ops, NAMESPACE)


def _sharded_together(a: Any, dim_a: int, b: Any, dim_b: int) -> bool:
    """Whether a mesh dimension cuts both specs, each on its dimension."""
    return any(x == Shard(dim_a) and y == Shard(dim_b) for x, y in zip(a.placements, b.placements, strict=True))


def _gemm_rules(
    outputs: int, a: Any, b: Any, c: Any = None, bias: Any = None, *scales: Any, **options: Any
) -> list[Rule]:
    d_dims = max(a.ndim, b.ndim)
    m, n = d_dims - 2, d_dims - 1
    linear = c is None and bias is None and options.get("activation") in (None, "none")
    if not linear and _sharded_together(a, a.ndim - 1, b, b.ndim - 2):
        raise RuntimeError(
            "a: a and b are sharded on K, so that D is partial sums, to which activation, bias and c cannot be "
            "applied; leave them out and add them after the reduction"
        )
    rest = [Replicate() for x in scales if x is not None]

    def of_c(dim: int) -> list[Placement | None]:
        """Of c where D is cut at dim: cut, too, or whole where c is broadcast there."""
        if c is None:
            return []
        own = dim - (d_dims - c.ndim)
        return [Shard(own) if own >= 0 and c.shape[own] != 1 else Replicate()]

    def rule(d: Placement, a: Placement, b: Placement, c: list[Placement | None], bias_: Placement) -> Rule:
        return [d] * outputs, [a, b, *c, *([] if bias is None else [bias_]), *rest]

    whole = Replicate()
    rules = [
        rule(whole, whole, whole, [] if c is None else [whole], whole),
        rule(Shard(n), whole, Shard(b.ndim - 1), of_c(n), Shard(0)),
        rule(Shard(m), Shard(a.ndim - 2), whole, of_c(m), whole),
    ]
    if linear:
        rules.append(rule(Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2), [], whole))
    if d_dims == 3:  # the batch; an operand without one is whole
        of_a, of_b = (Shard(0) if x.ndim == 3 else whole for x in (a, b))
        rules.append(rule(Shard(0), of_a, of_b, of_c(0), whole))
    return rules


def _gated_rules(outputs: int, a: Any, b: Any, bias: Any = None, *scales: Any, **_: Any) -> list[Rule]:
    gate_up = (("b", b, b.ndim - 1), ("bias", bias, 0))
    for name, x, dim in gate_up:
        if x is not None and any(p == Shard(dim) or p.is_partial() for p in x.placements):
            raise RuntimeError(
                f"{name}: placements are {tuple(x.placements)}, which cut gate from up or leave partial sums; keep "
                f"the weight as (K, 2, N), shard its last dimension and call gemmx.nn.parallel.gemm_gated"
            )
    if _sharded_together(a, a.ndim - 1, b, 0):
        raise RuntimeError(
            "a: a and b are sharded on K, so that gate and up are partial sums, to which the activation cannot be "
            "applied; shard the columns of gate and up instead: gemmx.nn.parallel.gemm_gated"
        )
    whole = [Replicate() for x in (bias, *scales) if x is not None]
    rules: list[Rule] = [([Replicate()] * outputs, [Replicate(), Replicate(), *whole])]
    rules += [([Shard(dim)] * outputs, [Shard(dim), Replicate(), *whole]) for dim in range(a.ndim - 1)]
    return rules


def _backward_rules(columns: bool, grad: Any, saved: Any, **options: Any) -> list[Rule]:
    """Of dZ and the column sums of dZ, which are there only with bias_grad. Columns: dZ has those of grad."""
    sums = bool(options.get("bias_grad"))
    rules: list[Rule] = [([Replicate(), Replicate()], [Replicate(), Replicate()])]
    for dim in range(grad.ndim - 1):
        rules.append(([Shard(dim), Partial() if sums else Replicate()], [Shard(dim), Shard(dim)]))
    if columns:
        last = grad.ndim - 1
        rules.append(([Shard(last), Shard(0) if sums else Replicate()], [Shard(last), Shard(last)]))
    return rules


def _register() -> None:
    rules = {
        "gemm": lambda *args, **options: _gemm_rules(1, *args, **options),
        "gemm_aux": lambda *args, **options: _gemm_rules(2, *args, **options),
        "_gemm": lambda *args, **options: _gemm_rules(1, *args, **options),  # gemm below C++'s autograd
        "_gemm_gated": lambda *args, **options: _gated_rules(1, *args, **options),
        "gemm_gated": lambda *args, **options: _gated_rules(1, *args, **options),
        "gemm_gated_aux": lambda *args, **options: _gated_rules(2, *args, **options),
        "activation_backward": lambda *args, **options: _backward_rules(True, *args, **options),
        "gated_backward": lambda *args, **options: _backward_rules(False, *args, **options),
    }
    schema_info = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    for name, rule in rules.items():
        op = getattr(_ops, name).default
        register_sharding(op)(rule)
        # DTensor remembers a decision by the arguments that its schema info names. register_sharding names integers
        # only, so that a product without activation would decide for a later one with it, and out_dtype for another.
        # It has no argument for that (torch 2.11 and 2.14). Lists can't be keys; activation_args decides nothing.
        keys = [x.name for x in op._schema.arguments if x.kwarg_only and x.name not in ("activation_args",)]
        schema_info[op] = RuntimeSchemaInfo(2, keys, needs_pytree=True)


_register()
