"""Small models for tests, laid out as Hugging Face's decoders, with no need of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """The MLP of Llama, Mistral, Qwen2 and Gemma."""

    def __init__(
        self, hidden: int, intermediate: int, act_fn: Callable[[Tensor], Tensor] | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        self.hidden_size = hidden
        self.gate_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.up_proj = nn.Linear(hidden, intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)
        self.act_fn = nn.SiLU() if act_fn is None else act_fn

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return y


class Attention(nn.Module):
    """Linear in its inputs' layers and nothing else: attention over heads of 4, without masks and positions."""

    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__()
        for name in "qkv":
            setattr(self, f"{name}_proj", nn.Linear(hidden, hidden, bias=bias))
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (getattr(self, f"{name}_proj")(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for name in "qkv")
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        d: Tensor = self.o_proj(y.transpose(1, 2).reshape(*x.shape[:2], -1))
        return d


class Layer(nn.Module):
    def __init__(self, hidden: int, intermediate: int, bias: bool) -> None:
        super().__init__()
        self.self_attn = Attention(hidden, bias)
        self.mlp = MLP(hidden, intermediate, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(x)
        y: Tensor = x + self.mlp(x)
        return y


class Body(nn.Module):
    def __init__(self, hidden: int, intermediate: int, layers: int, bias: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(11, hidden)
        self.layers = nn.ModuleList(Layer(hidden, intermediate, bias) for _ in range(layers))


class Decoder(nn.Module):
    """Modules named as in Hugging Face's LlamaForCausalLM, the embedding tied to the head."""

    def __init__(self, hidden: int = 16, intermediate: int = 24, layers: int = 2, bias: bool = True) -> None:
        super().__init__()
        self.model = Body(hidden, intermediate, layers, bias)
        self.lm_head = nn.Linear(hidden, 11, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        y: Tensor = self.lm_head(x)
        return y


def decoder(seed: int = 0, **sizes: int) -> Any:
    """A Decoder; Any, so that tests may name its layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Decoder(**sizes)
