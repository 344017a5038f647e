"""A transformer of your own, in four widths: from which width on does FP8 pay?

    python -m e2e examples.transformer_widths:width_2048 --recipe amp-bf16,fp8 --compile --batch 16

A network of your own is a function that returns the module and an example input. Four blocks are
enough to see what a block gains; a model has more of the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS, HEAD, CONTEXT, VOCABULARY = 4, 64, 1024, 4096


class Block(nn.Module):
    """Causal attention and a perceptron of four times the width: [N, T, width] to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.mix(self.norm1(hidden)).unflatten(-1, (3, -1, HEAD)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(-2))
        return hidden + self.down(F.gelu(self.up(self.norm2(hidden))))


class Transformer(nn.Module):
    """Tokens [N, T] to logits [N, T, VOCABULARY] of the token after each position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def _with_example(width: int) -> tuple[nn.Module, Tensor]:
    example = torch.arange(CONTEXT).reshape(1, -1)
    example[0, 0] = VOCABULARY - 1  # the greatest says how many tokens there are
    return Transformer(width), example


def width_768() -> tuple[nn.Module, Tensor]:
    return _with_example(768)


def width_1024() -> tuple[nn.Module, Tensor]:
    return _with_example(1024)


def width_2048() -> tuple[nn.Module, Tensor]:
    return _with_example(2048)


def width_4096() -> tuple[nn.Module, Tensor]:
    return _with_example(4096)
