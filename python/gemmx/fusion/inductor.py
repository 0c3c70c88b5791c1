"""gemmx.compile_pass as torch._inductor takes it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V
from torch.fx import Graph

from gemmx._C import version
from gemmx._library import torch_version
from gemmx.fusion.report import Left, Report, Rewritten
from gemmx.fusion.rewrite import Options, fuse, leave_all

# AOTInductor stores a dtype as export's number for it and reads it as ATen's: seen in 2.11, not in 2.14.
_AOT_MISREADS_DTYPES = torch_version() < (2, 14)


class CompilePass(CustomGraphPass):
    """A pass over Inductor's graphs after autograd, and the report of what it did; see gemmx.compile_pass."""

    def __init__(self, options: Options, use_cache: bool) -> None:
        self.options, self.use_cache = options, use_cache
        self.report = Report()
        self._patches: list[Any] = []

    @property
    def graphs(self) -> int:
        return self.report.graphs

    @property
    def rewritten(self) -> list[Rewritten]:
        return self.report.rewritten

    @property
    def left(self) -> list[Left]:
        return self.report.left

    def __str__(self) -> str:
        return str(self.report)

    def __call__(self, graph: Graph) -> None:
        if getattr(config, "emulate_precision_casts", False):
            leave_all(graph, "Inductor keeps every rounding of eager mode here (emulate_precision_casts)", self.report)
        else:
            fuse(graph, self.options, self.report, keep_dtype=bool(V.aot_compilation) and _AOT_MISREADS_DTYPES)

    def uuid(self) -> Any:
        """The key of Inductor's cache: everything that decides what the pass does to a graph."""
        if not self.use_cache:
            return None
        precision = torch.backends.cuda.matmul.fp32_precision
        return ("gemmx.compile_pass", version(), _source_hash(), repr(self.options), precision)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompilePass:
        """Itself: torch copies its settings, and what the copy did belongs into this report."""
        return self

    def __enter__(self) -> CompilePass:
        patch = config.patch(post_grad_custom_pre_pass=_behind(config.post_grad_custom_pre_pass, self))
        patch.__enter__()
        self._patches.append(patch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patches.pop().__exit__(kind, error, traceback)


class _Chain(CustomGraphPass):
    """Passes one after another, for versions of torch that take a single one."""

    def __init__(self, *passes: Any) -> None:
        self.passes = passes

    def __call__(self, graph: Graph) -> None:
        for one in self.passes:
            one(graph)

    def uuid(self) -> Any:
        ids = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.passes]
        return None if None in ids else tuple(ids)


def _behind(previous: Any, own: CompilePass) -> Any:
    """A setting that runs the passes that are set already, then this one."""
    if previous is None:
        return own
    if hasattr(custom_graph_pass, "get_custom_graph_passes"):
        return (*custom_graph_pass.get_custom_graph_passes(previous), own)
    return _Chain(previous, own)


@cache
def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
