#!/usr/bin/env python3
"""Llama-3-8B's and Llama-3.2-1B's layers with random weights: eager torch, torch.compile and gemmx side by side.

    python examples/llama.py                        all steps -> benchmarks/results/<gpu>/llama.json
    python examples/llama.py --steps decode-b1 --layers 4            prints only: a part is no result file
    python examples/llama.py --tiny --device cpu    a model of two small layers on the CPU, to see that it runs

The steps: a prompt of 2048 tokens, one token of decoding with 1024 tokens of context at batch 1, 16 and 64, and one
training step (forward and backward, no optimizer) of 2 x 2048 tokens. gemmx.convert(model) is all that gemmx
changes.

The model is transformers' own LlamaForCausalLM. The loop over its layers and the key-value cache, a static buffer a
layer that the new tokens are written into, are this file's, the same for every arm. torch.compile gets the layers in
groups of --compile-layers, which share one compilation: compiling all layers as one takes minutes.

Needs transformers (written for 4.48 to 5.x). Exit code 1 when a step failed or is further from float32 than it may be.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import inspect
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gemmx
from gemmx import _C
from gemmx.bench import model as bench
from gemmx.bench import results
from gemmx.bench.model import Gemm, Workload
from gemmx.bench.suite import Result
from gemmx.bench.timer import Arm, Backend, time_arms

ROOT = Path(__file__).resolve().parents[1]
COMMON = {"vocab_size": 128256, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "tie_word_embeddings": False, **COMMON},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "tie_word_embeddings": True, **COMMON},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "tie_word_embeddings": False, **COMMON, "vocab_size": 160},
}  # fmt: skip
TINY_CONTEXT = 16
NOT_CAPTURED = "its kernels keep the GPU busy without a graph, and four graphs would hold four steps' activations"
TIMES: dict[str, Any] = {"sets": 1, "budget_us": 1_000_000.0, "max_rounds": 60}
DTYPE = torch.bfloat16


# ---- the model -----------------------------------------------------------------------------------------------------


def build(shape: dict[str, Any], device: str, dtype: torch.dtype = DTYPE) -> nn.Module:
    """LlamaForCausalLM with random weights, made on the device."""
    transformers = importlib.import_module("transformers")
    config = transformers.LlamaConfig(**shape, attn_implementation="sdpa", use_cache=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            made: nn.Module = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    made.to(dtype)
    # Rotary frequencies are computed in float32; the default dtype above would have rounded them.
    rotary: Any = made.get_submodule("model.rotary_emb")
    head = shape["hidden_size"] // shape["num_attention_heads"]
    exponents = torch.arange(0, head, 2, dtype=torch.float64, device=device) / head
    rotary.inv_freq = (shape["rope_theta"] ** -exponents).float()
    for layer in layers_of(made):
        layer.self_attn.layer_idx = 0  # every layer has a cache of its own, and all can share one compilation
    return made


def layers_of(model: Any) -> list[Any]:
    return list(model.model.layers)


class LayerCache:
    """The keys and values of one layer, (batch, heads, context, head size), new ones written at `position`."""

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        self.keys, self.values, self.position = keys, values, position

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """As transformers' caches: writes the new ones, returns all."""
        self.keys.index_copy_(2, self.position, keys)
        self.values.index_copy_(2, self.position, values)
        return self.keys, self.values

    def get_seq_length(self, *_: Any) -> int:
        return self.keys.shape[2] - self.position.shape[0]

    def to(self, dtype: torch.dtype) -> LayerCache:
        return LayerCache(self.keys.to(dtype), self.values.to(dtype), self.position)


class Inputs:
    """Tokens, positions and caches of a step, random; one set for all arms, each of which writes its own tokens."""

    def __init__(self, model: Any, workload: Workload) -> None:
        config, device = model.config, model.lm_head.weight.device
        shape = (workload.batch, workload.tokens)
        self.ids = torch.randint(config.vocab_size, shape, device=device)
        first = workload.context - workload.tokens
        self.positions = torch.arange(first, workload.context, device=device)
        self.labels: Tensor | None = None
        self.caches: list[LayerCache] | None = None
        if workload.kind == "train":
            self.labels = torch.randint(config.vocab_size, shape, device=device)
            return
        head = config.hidden_size // config.num_attention_heads
        cache = (workload.batch, config.num_key_value_heads, workload.context, head)
        self.caches = [
            LayerCache(
                torch.randn(cache, dtype=DTYPE, device=device),
                torch.randn(cache, dtype=DTYPE, device=device),
                self.positions,
            )
            for _ in layers_of(model)
        ]


# ---- one step ------------------------------------------------------------------------------------------------------
# Three functions of modules and tensors, so that torch.compile can be put around each.


def embed(embedding: Any, rotary: Any, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = embedding(ids)
    cos, sin = rotary(hidden, positions[None])
    return hidden, cos, sin


def run_layers(
    layers: Sequence[Any], caches: Sequence[LayerCache | None], hidden: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    for layer, cache in zip(layers, caches, strict=True):
        made = layer(hidden, attention_mask=None, position_embeddings=(cos, sin), **{cache_argument(layer): cache})
        hidden = made[0] if isinstance(made, tuple) else made  # a tuple before transformers 4.54
    return hidden


def cache_argument(layer: Any) -> str:
    """The layer's name for the cache; it changed with transformers 4.56."""
    return "past_key_values" if type(layer).cache_in_plural else "past_key_value"


def note_cache_argument(model: Any) -> None:
    """Looked up once: torch.compile could not trace it."""
    cls = type(layers_of(model)[0])
    cls.cache_in_plural = "past_key_values" in inspect.signature(cls.forward).parameters


def logits_of(norm: Any, lm_head: Any, hidden: Tensor) -> Tensor:
    """Of the last token of each sequence."""
    result: Tensor = lm_head(norm(hidden[:, -1]))
    return result


def loss_of(norm: Any, lm_head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = lm_head(norm(hidden))
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Step:
    """Calls the model on a workload's inputs: logits, or with labels a loss whose gradients are left in the model."""

    def __init__(self, model: Any, inputs: Inputs, group: int = 0) -> None:
        """group: layers that torch.compile gets at a time; 0 leaves it out."""
        self.model, self.inputs = model, inputs
        layers = layers_of(model)
        caches: Sequence[LayerCache | None] = inputs.caches or [None] * len(layers)
        size = group or len(layers)
        self.groups = [(layers[i : i + size], caches[i : i + size]) for i in range(0, len(layers), size)]
        functions: list[Any] = [embed, run_layers, logits_of, loss_of]
        if group:
            functions = [torch.compile(function, dynamic=False) for function in functions]
        self.embed, self.run_layers, self.logits, self.loss = functions

    def __call__(self) -> Tensor:
        inner, inputs = self.model.model, self.inputs
        if inputs.labels is not None:
            self.model.zero_grad(set_to_none=True)
        hidden, cos, sin = self.embed(inner.embed_tokens, inner.rotary_emb, inputs.ids, inputs.positions)
        for layers, caches in self.groups:
            hidden = self.run_layers(layers, caches, hidden, cos, sin)
        if inputs.labels is None:
            logits: Tensor = self.logits(inner.norm, self.model.lm_head, hidden)
            return logits
        loss: Tensor = self.loss(inner.norm, self.model.lm_head, hidden, inputs.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


# ---- checks --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def float32_logits(model: Any, inputs: Inputs) -> Tensor:
    """The step with the same weights, tokens and cache in float32, a layer at a time."""
    inner = model.model
    hidden, cos, sin = embed(copy.deepcopy(inner.embed_tokens).float(), inner.rotary_emb, inputs.ids, inputs.positions)
    assert inputs.caches is not None
    for layer, cache in zip(layers_of(model), inputs.caches, strict=True):
        hidden = run_layers([copy.deepcopy(layer).float()], [cache.to(torch.float32)], hidden, cos, sin)
    return logits_of(copy.deepcopy(inner.norm).float(), copy.deepcopy(model.lm_head).float(), hidden)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


FUSED, PARTS = ".gate_up_weight", (".gate_proj.weight", ".up_proj.weight")  # of gemmx.nn.GatedMLP and of its original


def matched(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pairs of one parameter in a model, converted or not, and in torch's.

    Every gradient of either must be in a pair: one left out would not be checked.
    """
    pairs, left = [], dict(theirs)
    for name, x in ours.items():
        names = [name.removesuffix(FUSED) + part for part in PARTS] if name.endswith(FUSED) else [name]
        if missing := [part for part in names if part not in left]:
            raise ValueError(f"{name}: the torch model has no gradient of {missing[0]}")
        pairs.append((x, torch.cat([left.pop(part) for part in names])))
    if left:
        raise ValueError(f"{next(iter(left))}: the converted model has no gradient for it")
    return pairs


def float32_gradients(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    wide = copy.deepcopy(model).float()
    wide.zero_grad(set_to_none=True)
    Step(wide, inputs)()
    return gradients(wide)


def errors(steps: dict[str, Step], workload: Workload, torch_model: nn.Module) -> Result:
    """Each arm's relative error against float32, and the largest of gemmx's over what torch's own allows."""
    inputs = steps["eager"].inputs
    found: dict[str, float] = {}
    if workload.kind == "train":
        exact = float32_gradients(torch_model, inputs)
        for arm, step in steps.items():
            step()
            pairs = matched(gradients(step.model), exact)
            found[arm] = bench.relative_error(*zip(*pairs, strict=True))
    else:
        logits = float32_logits(torch_model, inputs)
        found = {arm: bench.relative_error([step()], [logits]) for arm, step in steps.items()}
    limit = bench.ERROR_MARGIN * found["eager"]
    worst = max(found[arm] for arm in bench.GEMMX_ARMS)
    return {"errors": {arm: float(f"{e:.4g}") for arm, e in found.items()}, "error": round(worst / limit, 4)}


# ---- measurement ---------------------------------------------------------------------------------------------------


def convert(model: Any) -> Any:
    """A copy of the model with gemmx's layers. RuntimeError where a layer was left: torch would be timed as gemmx."""
    made = copy.deepcopy(model)
    report = gemmx.convert(made)
    if not report.swapped or report.left:
        raise RuntimeError(f"gemmx.convert has left a layer of the model: {report}")
    return made


def is_cuda() -> bool:
    return torch.cuda.is_available()


def synchronize() -> None:
    if is_cuda():
        torch.cuda.synchronize()


def first_call_seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    synchronize()
    return round(time.perf_counter() - start, 1)


class Floor:
    """Streaming reads and the peak of this GPU, measured once."""

    def __init__(self, sm_count: int) -> None:
        self.sm_count = sm_count
        self.reads: dict[int, float] = {}
        self.peak_tflops = bench.measure_peak_tflops(torch.ops.gemmx.gemm)

    def us(self, gemms: list[Gemm]) -> float:
        self.reads |= bench.measure_reads({g.largest_bytes for g in gemms} - set(self.reads), self.sm_count)
        return bench.floor_us(gemms, self.reads.__getitem__, self.peak_tflops)


def arm_of(step: Step) -> Arm:
    kept: list[Tensor] = []

    def run(_: int) -> None:
        kept[:] = [step()]

    return run


def measure(
    workload: Workload, models: dict[str, Any], group: int, floor: Floor | None, backend: Backend | None
) -> Result:
    """The row of a step. models: "torch" and "gemmx", of equal weights. floor None leaves the upper limit out."""
    train = workload.kind == "train"
    inputs = Inputs(models["torch"], workload)
    torch._dynamo.reset()
    steps = {
        "eager": Step(models["torch"], inputs),
        "compile": Step(models["torch"], inputs, group),
        "gemmx": Step(models["gemmx"], inputs),
        "gemmx_compile": Step(models["gemmx"], inputs, group),
    }
    with contextlib.nullcontext() if train else torch.no_grad():
        gemms = bench.linear_gemms(models["torch"], steps["eager"], train)
        facts: Result = {
            "layers": len(layers_of(models["torch"])),
            "compile_layers": group,
            "compile_seconds": {arm: first_call_seconds(steps[arm]) for arm in ("compile", "gemmx_compile")},
            **errors(steps, workload, models["torch"]),
        }
        arms = {arm: arm_of(step) for arm, step in steps.items()}
        facts["captured"] = not train
        if train:
            facts["not_captured"] = NOT_CAPTURED
            backend = backend or bench.UncapturedCuda()
        free_cache()
        timings = time_arms(arms, backend=backend, **TIMES)
        row = bench.row_of(workload, timings, facts)
        if floor is not None:
            torch_us = row[f"{row['torch_arm']}_us"]
            row |= bench.gemm_share(bench.profile(steps[row["torch_arm"]]))
            row["gemm_floor_us"] = round(floor.us(gemms), 2)
            row["upper_limit"] = round(bench.upper_limit(torch_us, row["gemm_us"], row["gemm_floor_us"]), 4)
    return row


def models_for(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    shape = dict(SHAPES["tiny" if options.tiny else "1b" if kind == "train" else "8b"])
    if options.layers:
        shape["num_hidden_layers"] = options.layers
    model = build(shape, options.device)
    note_cache_argument(model)
    model.train(kind == "train")
    return {"torch": model, "gemmx": convert(model)}


def free_cache() -> None:
    gc.collect()
    if is_cuda():
        torch.cuda.empty_cache()


def workloads(options: argparse.Namespace) -> Iterator[Workload]:
    for workload in bench.WORKLOADS:
        if re.search(options.steps, workload.name):
            tokens = 1 if workload.kind == "decode" else TINY_CONTEXT
            yield replace(workload, tokens=tokens, context=TINY_CONTEXT) if options.tiny else workload


def run(options: argparse.Namespace) -> list[Result]:
    """Every step's row; a step that raises is recorded as failed, and the next one runs."""
    on_gpu = options.device == "cuda"
    backend = None if on_gpu else bench.HostClock()
    floor = Floor(_C.cuda_device(torch.cuda.current_device()).sm_count) if on_gpu else None
    rows: list[Result] = []
    models: dict[str, Any] = {}
    built = ""
    for workload in workloads(options):
        start = time.perf_counter()
        size = "train" if workload.kind == "train" else "infer"
        try:
            if built != size:
                models.clear()
                torch._dynamo.reset()
                free_cache()
                models, built = models_for(workload.kind, options), size
            rows.append(measure(workload, models, options.compile_layers, floor, backend))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            rows.append({"suite": bench.SUITE, "name": workload.name, "status": "failed", "reason": reason})
        print(
            f"  {workload.name} {rows[-1]['status']} {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True
        )
    return rows


HEAD = ("step, us", "eager", "compile", "gemmx", "gemmx+compile", "torch/gemmx", "goal", "limit", "tokens/s", "error")


def print_rows(rows: list[Result]) -> None:
    cells = [
        [r["name"], *(f"{r[f'{arm}_us']:.1f}" for arm in bench.ARMS), f"{r['torch_over_gemmx']:.3f}", str(r["goal"]),
         f"{r.get('upper_limit', 0):.3f}", f"{r[r['best_arm'] + '_tokens_per_s']:.0f}", f"{r['error']:.3f}"]
        for r in rows if r["status"] == "measured"
    ]  # fmt: skip
    print(results.text_table(HEAD, cells))
    for row in rows:
        if row["status"] != "measured":
            print(f"{row['status']} {row['name']}: {row['reason']}")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="", help="measure the steps whose name matches this regular expression")
    parser.add_argument("--layers", type=int, default=0, help="layers of the models; default: those of the real ones")
    parser.add_argument("--compile-layers", type=int, default=4, help="layers that torch.compile gets at a time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model")
    parser.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results")
    return parser.parse_args(arguments)


def command() -> str:
    """The command line as someone else would repeat it: without where its results went."""
    words = sys.argv[1:]
    kept = [w for i, w in enumerate(words) if not w.startswith("--out") and (i == 0 or words[i - 1] != "--out")]
    return " ".join(["python examples/llama.py", shlex.join(kept)]).strip()


def main() -> int:
    options = parse_arguments()
    if options.device == "cuda" and not is_cuda():
        print("no CUDA device is visible to torch; --tiny --device cpu runs a small model without one", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    save: Callable[[str], Any] | None = None
    if options.device == "cuda":
        ordinal = torch.cuda.current_device()
        results.make_header("", ordinal, "", "")  # what cannot be read fails now, not after the run

        def save(name: str) -> dict[str, Any]:
            return results.make_header(name, ordinal, _C.source_hash(), command(), bench.METHOD)

    rows = run(options)
    partial = bool(options.steps or options.layers or options.tiny)
    if save is not None and (not partial or options.out is not None):
        header = save(bench.SUITE)
        header["transformers"] = importlib.import_module("transformers").__version__
        folder = options.out or ROOT / "benchmarks" / "results"
        results.write(folder / results.slug(header["gpu"]) / "llama.json", {"header": header, "rows": rows})
    print_rows(rows)
    return int(any(row["status"] == "failed" or not 0 <= row["error"] <= 1 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
