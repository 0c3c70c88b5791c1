"""gemmx.convert: what it swaps, what it leaves and why, and back; on the CPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import gemmx
from gemmx.nn import GatedMLP, Linear
from models import MLP, Decoder, decoder

TOKENS = torch.arange(8).view(2, 4)


def left(report: gemmx.nn.Report) -> dict[str, str]:
    return {x.name: x.reason for x in report.left}


def swapped(report: gemmx.nn.Report) -> list[str]:
    return [x.name for x in report.swapped]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


# ---- there and back ---------------------------------------------------------------------------------------------


def test_a_decoder() -> None:
    model = decoder()
    before, expected = state(model), model(TOKENS)
    weight = model.model.layers[0].self_attn.q_proj.weight
    report = gemmx.convert(model)
    layer = model.model.layers[0]
    assert type(layer.mlp) is GatedMLP
    assert type(layer.self_attn.q_proj) is type(model.lm_head) is Linear
    assert layer.self_attn.q_proj.weight is weight
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    torch.testing.assert_close(model(TOKENS), expected)
    assert len(report.swapped) == 2 * 5 + 1
    assert not report.left
    lines = str(report).splitlines()
    assert lines[0] == "11 modules swapped, 0 left"
    assert lines[5] == (
        "swapped model.layers.0.mlp: MLP -> GatedMLP(hidden_size=16, intermediate_size=24, bias=True, activation=silu)"
    )

    report.restore()
    assert type(model.model.layers[0].mlp) is MLP
    assert type(model.lm_head) is nn.Linear
    assert model.model.layers[0].self_attn.q_proj.weight is weight
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model(TOKENS), expected)
    assert list(model.state_dict()) == list(before)


def test_restore_keeps_what_was_learned() -> None:
    """After training, moves and loads: values, gradients, requires_grad, dtype, mode."""
    model = decoder()
    model.model.layers[1].mlp.requires_grad_(False)
    report = gemmx.convert(model.train())
    assert not model.model.layers[1].mlp.gate_up_weight.requires_grad
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    model(TOKENS).square().sum().backward()
    optimizer.step()
    model.to(torch.bfloat16).eval()
    before, grad = state(model), model.model.layers[0].mlp.gate_up_weight.grad
    report.restore()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    mlp = model.model.layers[0].mlp
    assert torch.equal(mlp.up_proj.weight.grad, grad[24:])
    assert mlp.gate_proj.weight.requires_grad
    assert not model.model.layers[1].mlp.up_proj.weight.requires_grad
    assert not any(module.training for module in model.modules())


def test_gradients_that_were_there_stay() -> None:
    model = decoder()
    model(TOKENS).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    report = gemmx.convert(model)
    gate_up = model.model.layers[0].mlp.gate_up_weight.grad
    assert torch.equal(gate_up[:24], grads["model.layers.0.mlp.gate_proj.weight"])
    report.restore()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, grads[name])


def test_training_is_that_of_the_original() -> None:
    losses = []
    for swap in (False, True):
        model = decoder()
        if swap:
            gemmx.convert(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            loss = model(TOKENS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(torch.stack(losses[3:]), torch.stack(losses[:3]))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_restore(how: str) -> None:
    model = decoder()
    expected = model(TOKENS)
    gemmx.convert(model)
    other = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert torch.equal(other(TOKENS), model(TOKENS))
    gemmx.nn.restore(other)
    assert type(other.model.layers[0].mlp) is MLP
    assert torch.equal(other(TOKENS), expected)
    assert type(model.model.layers[0].mlp) is GatedMLP


def test_converting_twice_changes_nothing() -> None:
    model = decoder()
    gemmx.convert(model)
    modules = list(model.modules())
    report = gemmx.convert(model)
    assert not report.swapped
    assert set(left(report).values()) == {"is gemmx.nn's already"}
    assert all(x is y for x, y in zip(model.modules(), modules, strict=True))


def test_restore_leaves_what_was_built_as_gemmx() -> None:
    model = nn.Sequential(Linear(8, 8), nn.Linear(8, 8))
    gemmx.convert(model).restore()
    assert [type(x) for x in model] == [Linear, nn.Linear]


def test_a_meta_model_takes_a_checkpoint() -> None:
    source = decoder()
    with torch.device("meta"):
        model = Decoder()
    assert not gemmx.convert(model).left
    model.load_state_dict(source.state_dict(), assign=True)
    torch.testing.assert_close(model(TOKENS), source(TOKENS))


def test_a_module_at_two_places_is_swapped_once() -> None:
    shared, mlp = nn.Linear(8, 8), MLP(8, 8)
    model: Any = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, mlp), "c": mlp})
    report = gemmx.convert(model)
    assert swapped(report) == ["a", "b.0", "b.1", "c"]
    assert model["a"] is model["b"][0]
    assert model["c"] is model["b"][1]
    report.restore()
    assert model["a"] is model["b"][0]
    assert model["c"] is model["b"][1]
    assert (type(model["a"]), type(model["c"])) == (nn.Linear, MLP)


def test_a_layer_that_another_module_uses_is_not_fused() -> None:
    mlp = MLP(8, 8)
    model: Any = nn.ModuleDict({"mlp": mlp, "probe": mlp.gate_proj})
    report = gemmx.convert(model)
    assert left(report)["mlp"].startswith("gate_proj shares a parameter with another module")
    assert model["probe"] is model["mlp"].gate_proj
    assert type(model["probe"]) is Linear


def test_options_are_passed_on() -> None:
    model: Any = nn.ModuleDict({"mlp": MLP(8, 8).bfloat16(), "head": nn.Linear(8, 8)})
    gemmx.convert(model, precision="tf32")
    assert isinstance(model["head"], Linear)
    assert isinstance(model["mlp"], GatedMLP)
    assert (model["head"].precision, model["mlp"].precision) == ("tf32", None)
    gemmx.nn.restore(model)
    report = gemmx.convert(model, numerics="batch_invariant")
    assert left(report) == {"head": "its weight is float32; batch_invariant takes float16 and bfloat16"}
    assert model["mlp"].down_proj.numerics == "batch_invariant"


def test_attributes_of_a_module_stay() -> None:
    model: Any = nn.Sequential(MLP(8, 12))
    model[0].config = "a config"
    gemmx.convert(model)
    assert (model[0].config, model[0].hidden_size) == ("a config", 8)


def test_compiles_as_one_graph() -> None:
    model = decoder()
    gemmx.convert(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKENS), model(TOKENS))


# ---- filters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "count", "reason"),
    [
        ({"exclude": "lm_head"}, 10, "in exclude"),
        ({"include": "*.mlp"}, 2, "not in include"),
        ({"include": "model.layers.0"}, 5, "not in include"),
        ({"include": ["*.q_proj", "*.v_proj"]}, 4, "not in include"),
        ({"include": "model", "exclude": ["*.self_attn"]}, 2, "in exclude"),
        ({"include": lambda name, module: isinstance(module, nn.Linear)}, 8 + 6 + 1, "not in include"),
        ({"exclude": "*.down_proj"}, 8 + 4 + 1, "down_proj is in exclude"),
    ],
)
def test_filters(options: dict[str, Any], count: int, reason: str) -> None:
    model = decoder()
    expected = model(TOKENS)
    report = gemmx.convert(model, **options)
    assert len(report.swapped) == count
    assert reason in left(report).values()
    torch.testing.assert_close(model(TOKENS), expected)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^exclude: 'lm_haed' matches no module; it takes names"):
        gemmx.convert(decoder(), exclude=["*.mlp", "lm_haed"])


# ---- what is left -----------------------------------------------------------------------------------------------


class Subclass(nn.Linear):
    pass


class QuantLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(8, 8, dtype=torch.int8))


def hooked() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda module, args, output: output * 2)
    return layer


def forward_replaced() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return layer


def with_a_parameter() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.lora = nn.Parameter(torch.ones(1))
    return layer


def compiled() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.compile(backend="eager")
    return layer


class Tagged(nn.Parameter):
    pass


def of_a_tensor_subclass() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = Tagged(layer.weight.detach())
    return layer


def mixed() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.bias = nn.Parameter(layer.bias.bfloat16())
    return layer


LEFT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "float64": (lambda: nn.Linear(8, 8).double(), "its weight is torch.float64"),
    "complex": (lambda: nn.Linear(8, 8, dtype=torch.complex64), "its weight is torch.complex64"),
    "mixed": (mixed, "its bias is torch.bfloat16"),
    "subclass": (lambda: Subclass(8, 8), "is no plain torch.nn.Linear"),
    "lazy": (lambda: nn.LazyLinear(8), "is no plain torch.nn.Linear"),
    "quantized": (QuantLinear, "is no plain torch.nn.Linear"),
    "hooks": (hooked, "has hooks (_forward_hooks)"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(8, 8)), "has parametrizations"),
    "forward": (forward_replaced, "has a forward of its own"),
    "parameter": (with_a_parameter, "has other parameters"),
    "compiled": (compiled, "is compiled"),
    "tensor subclass": (of_a_tensor_subclass, "a parameter is a Tagged"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_with_the_reason(name: str) -> None:
    build, reason = LEFT[name]
    layer = build()
    model = nn.Sequential(layer, nn.ReLU())
    report = gemmx.convert(model)
    assert not report.swapped
    assert model[0] is layer
    assert left(report)["0"].startswith(reason)
    assert str(report).splitlines()[1].startswith("left    0: ")


def test_the_model_itself_is_left() -> None:
    assert "cannot swap itself" in left(gemmx.convert(nn.Linear(8, 8)))[""]
    mlp = MLP(8, 8)
    report = gemmx.convert(mlp)
    assert "cannot swap itself" in left(report)[""]
    assert len(report.swapped) == 3  # its layers


# ---- gated MLPs -------------------------------------------------------------------------------------------------


class GELUTanh(nn.Module):
    """As transformers' for gelu_pytorch_tanh and gelu_new."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("act_fn", "activation"),
    [
        (nn.SiLU(), "silu"),
        (nn.functional.silu, "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"),
        (GELUTanh(), "gelu_tanh"),
        (nn.ReLU(), "relu"),
        (torch.sigmoid, "sigmoid"),
    ],
)
def test_gates(act_fn: Callable[[Tensor], Tensor], activation: str) -> None:
    model: Any = nn.Sequential(MLP(8, 12, act_fn))
    x = torch.randn(3, 8)
    expected = model(x)
    assert not gemmx.convert(model).left
    assert model[0].activation == activation
    torch.testing.assert_close(model(x), expected)


class SparseMLP(MLP):
    """As Gemma 3n's: small gates are dropped."""

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        gate = torch.relu(gate - gate.mean(-1, keepdim=True))
        y: Tensor = self.down_proj(self.act_fn(gate) * self.up_proj(x))
        return y


class DropoutMLP(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Residual(MLP):
    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return super().forward(x)


class SizedMLP(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(-1, self.hidden_size))


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def changed(change: Callable[[MLP], object]) -> MLP:
    mlp = MLP(16, 24, bias=True)
    change(mlp)
    return mlp


NOT_GATED: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "another forward": (lambda: SparseMLP(16, 24), "its forward is not down_proj(act(gate_proj(x))", 3),
    "dropout": (lambda: DropoutMLP(16, 24), "its forward is not", 3),
    "another gate": (lambda: MLP(16, 24, quick_gelu), "its forward is not", 3),
    "two arguments": (lambda: Residual(16, 24), "its forward takes other arguments", 3),
    "sizes of its own": (lambda: SizedMLP(16, 24), "its forward", 3),
    "no act_fn": (lambda: changed(lambda m: delattr(m, "act_fn")), "has no act_fn", 3),
    "learned gate": (lambda: MLP(16, 24, nn.PReLU()), "act_fn has parameters", 3),
    "one bias": (lambda: changed(lambda m: m.gate_proj.register_parameter("bias", None)), "one of gate_proj", 3),
    "frozen gate": (lambda: changed(lambda m: m.gate_proj.requires_grad_(False)), "gate_proj and up_proj differ", 3),
    "hooks": (lambda: changed(lambda m: m.register_forward_pre_hook(lambda *_: None)), "has hooks", 3),
    "hooks below": (
        lambda: changed(lambda m: m.up_proj.register_forward_hook(lambda *_: None)),
        "up_proj has hooks",
        2,
    ),
    "another child": (lambda: changed(lambda m: m.add_module("norm", nn.LayerNorm(8))), "has more than gate_proj", 3),
    "other shapes": (lambda: changed(lambda m: setattr(m, "up_proj", nn.Linear(16, 1))), "gate_proj, up_proj and", 3),
    "a subclass": (lambda: changed(lambda m: setattr(m, "up_proj", Subclass(16, 24))), "up_proj is no plain", 2),
    "tied": (
        lambda: changed(lambda m: setattr(m.up_proj, "weight", m.gate_proj.weight)),
        "gate_proj shares a parameter",
        3,
    ),
}


@pytest.mark.parametrize("name", NOT_GATED)
def test_left_as_three_layers(name: str) -> None:
    build, reason, count = NOT_GATED[name]
    model = nn.Sequential(build().eval())
    report = gemmx.convert(model)
    assert left(report)["0"].startswith(reason)
    assert len(report.swapped) == count
    assert not any(isinstance(module, GatedMLP) for module in model.modules())


def test_trying_a_forward_leaves_no_trace() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    model: Any = nn.Sequential(MLP(8, 8))
    act_fn = model[0].act_fn
    gemmx.convert(model)
    torch.manual_seed(0)
    model: Any = nn.Sequential(MLP(8, 8))
    rng = torch.get_rng_state()
    gemmx.convert(model)
    assert torch.equal(torch.get_rng_state(), rng)
    assert before is not None
    assert act_fn.training


# ---- transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Mistral", "Gemma"])
def test_models_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=32,
        pad_token_id=0,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    before, expected = state(model), model(TOKENS).logits
    report = gemmx.convert(model)
    assert sum(isinstance(module, GatedMLP) for module in model.modules()) == 2, report
    assert not report.left, report
    assert list(model.state_dict()) == list(before)
    torch.testing.assert_close(model(TOKENS).logits, expected, atol=1e-4, rtol=1e-4)
    report.restore()
    assert torch.equal(model(TOKENS).logits, expected)
