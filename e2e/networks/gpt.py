"""A decoder-only transformer of GPT-2's shape (Radford et al., 2019), which predicts tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from e2e.networks.losses import next_token_loss
from e2e.networks.network import Network
from e2e.networks.table import NetworkFacts
from microbench.errors import UserError

INITIAL_STD = 0.02  # of GPT-2's weights


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: `vocabulary` rows of the embedding, `context` positions."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int


# GPT-2's 50,257 tokens are padded to a multiple of 64: the product with the embedding is the
# largest of the step, and an odd size keeps half-precision Tensor Core kernels from aligned loads.
# No token has the ids added.
SHAPES: dict[str, Shape] = {
    "gpt": Shape(12, 768, 12, 1024, 50304),  # GPT-2's 124M
    "gpt-medium": Shape(24, 1024, 16, 1024, 50304),  # GPT-2's 355M
    # GPT-3's 1.3B (Brown et al., 2020, table 2.1), with as many heads of 128 as its width has.
    "gpt-xl": Shape(24, 2048, 16, 1024, 50304),
    "gpt-tiny": Shape(2, 64, 2, 64, 256),
}


class Attention(nn.Module):
    """Causal self-attention: [N, T, width] to the same, each position from itself and earlier."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.project = nn.Linear(shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, T, width] to the same shape."""
        joined = self.query_key_value(hidden).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in joined.unbind(-3))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each normalised before and added: [N, T, width]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.gelu = nn.GELU(approximate="tanh")
        self.project = nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, T, width] to the same shape."""
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.project(self.gelu(self.expand(self.norm2(hidden))))


class GPT(nn.Module):
    """Tokens, int64 [N, T] with T at most the context, to logits [N, T, vocabulary].

    Learned positions, no dropout; the token embedding is the output layer too. Weights begin
    normal with deviation 0.02, the layers that write to the residual stream with that over the
    square root of their number, 2 a block (Radford et al., 2019, section 2.3).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        residual_std = INITIAL_STD / math.sqrt(2 * shape.layers)
        for path, layer in cast("Iterator[tuple[str, nn.Module]]", self.named_modules()):
            if isinstance(layer, nn.Linear | nn.Embedding):
                std = residual_std if path.endswith("project") else INITIAL_STD
                nn.init.normal_(layer.weight, std=std)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens, int64 [N, T], to logits [N, T, vocabulary] of the token after each position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.tokens(tokens) + self.positions(places)
        return F.linear(self.norm(self.blocks(hidden)), self.tokens.weight)


def gpt_network(facts: NetworkFacts, classes: int | None) -> Network:
    """A decoder of the table GPTS; its input sets its context. UserError for any classes."""
    if classes is not None:
        raise UserError(
            f"{facts.name} has no classes: it predicts the next of {facts.tokens} tokens"
        )
    build = partial(GPT, replace(SHAPES[facts.name], context=facts.input[0]))
    return Network(**vars(facts), build=build, loss=next_token_loss, accuracy=None)
