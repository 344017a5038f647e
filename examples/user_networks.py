"""Networks that halfway does not know, to be predicted and trained as a user's own.

`python -m e2e examples.user_networks:unet` trains one, from the repository's root.
Each function returns a network and an example of its input.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def unet() -> tuple[nn.Module, Tensor]:
    """A U-Net of four levels (Ronneberger et al., 2015) with batch norm: 3x256x256 to 21 maps."""
    return UNet(), torch.zeros(1, 3, 256, 256)


def video() -> tuple[nn.Module, Tensor]:
    """torchvision's ResNet-18 with three-dimensional convolutions, for 16 frames of 112x112."""
    from torchvision.models.video import r3d_18

    return r3d_18(), torch.zeros(1, 3, 16, 112, 112)


def lstm() -> tuple[nn.Module, Tensor]:
    """A language model of two LSTM layers of 1,024, for 128 of 10,000 tokens."""
    tokens = torch.zeros(1, 128, dtype=torch.int64)
    tokens[0, 0] = 9_999
    return Recurrent(), tokens


class UNet(nn.Module):
    """(N, 3, H, W) to (N, 21, H, W); H and W multiples of 8."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            _double(narrow, wide) for narrow, wide in zip([3, *widths[:-1]], widths, strict=True)
        )
        pairs = list(pairwise(widths))[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in pairs)
        self.up = nn.ModuleList(_double(wide, narrow) for narrow, wide in pairs)
        self.shrink = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, 21, 1)

    def forward(self, images: Tensor) -> Tensor:
        x, levels = images, []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.shrink(x))
            levels.append(x)
        for grow, block, skip in zip(self.grow, self.up, levels[-2::-1], strict=True):
            x = block(torch.cat([skip, grow(x)], dim=1))
        return self.head(x)


def _double(narrow: int, wide: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (narrow, wide):
        layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """(N, T) tokens to (N, T, 10000) logits."""

    def __init__(self, tokens: int = 10_000, width: int = 1_024) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)
