"""gemmx.compile_pass: torch.compile's own products and what follows them, as gemmx's fused ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmx.fusion.inductor import CompilePass
    from gemmx.ops import Numerics


def compile_pass(
    *,
    everything: bool = False,
    numerics: Numerics | None = None,
    devices: Sequence[str] = ("cuda",),
    cache: bool = True,
) -> CompilePass:
    """A pass for torch.compile's Inductor that rewrites products and their epilogues into gemmx's ops.

        with gemmx.compile_pass() as report:
            y = torch.compile(model)(x)  # what is compiled inside
        print(report)

        torch.compile(model, options={"post_grad_custom_pre_pass": gemmx.compile_pass()})

    Args:
        everything: Products with nothing to fuse become gemmx.gemm, too.
        numerics: Of every op that the pass writes: "deterministic", the default, or "batch_invariant".
        devices: Types of the devices whose products are rewritten.
        cache: Inductor may keep what it compiled in its cache, where it finds it without running the pass: the
            report is then empty. False keeps compilations out of the cache.

    Returns:
        The pass. rewritten and left list what it did, str() is a table of them. As a context it adds itself to
        the passes that are set already and takes itself out at the end.

    A product is rewritten where a bias, a residual, an activation or a gate follows that gemmx fuses, and where
    nothing else needs the values in between. What is computed stays the same but for roundings in between, which are
    left out.
    """
    from gemmx.fusion.inductor import CompilePass
    from gemmx.fusion.rewrite import Options

    if isinstance(devices, str):
        devices = (devices,)
    if numerics not in {None, "deterministic", "batch_invariant"}:
        raise ValueError(f"numerics: is {numerics!r} but compile_pass takes 'deterministic' or 'batch_invariant'")
    return CompilePass(Options(everything, tuple(devices), numerics), cache)
