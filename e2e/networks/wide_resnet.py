"""Wide residual networks: Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016.

https://arxiv.org/abs/1605.07146. WRN-d-k has d layers of convolution and k times the width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

STEM_WIDTH = 16  # channels of the first convolution, table 1 of the paper
FIRST_STRIDES = (1, 2, 2)  # of the three groups: 32x32, 16x16 and 8x8 pixels on CIFAR


class WideBlock(nn.Module):
    """One block B(3,3): batch-norm, ReLU, 3x3, batch-norm, ReLU, 3x3, added to the shortcut.

    [N, width_in, H, W] to [N, width_out, H/stride, W/stride]. Where the shape changes, the
    shortcut is a 1x1 convolution of the activated input, as in the authors' code.
    """

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if width_in != width_out or stride != 1:
            self.shortcut = nn.Conv2d(width_in, width_out, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Run the block."""
        activated = F.relu(self.norm1(images))
        kept = images if self.shortcut is None else self.shortcut(activated)
        inner = F.relu(self.norm2(self.conv1(activated)))
        return kept + self.conv2(inner)


class WideResNet(nn.Module):
    """WRN-depth-widening without dropout: images [N, 3, H, W] to logits [N, classes].

    `depth` is 6n + 4 for n blocks in each of three groups, `widening` the paper's k.
    """

    def __init__(self, depth: int, widening: int, classes: int) -> None:
        super().__init__()
        assert depth % 6 == 4, f"depth {depth} is not 6n + 4"
        self.stem = nn.Conv2d(3, STEM_WIDTH, 3, padding=1, bias=False)
        width = STEM_WIDTH
        blocks: list[nn.Module] = []
        for group, first_stride in enumerate(FIRST_STRIDES):
            group_width = STEM_WIDTH * widening * 2**group
            for block in range((depth - 4) // 6):
                blocks.append(WideBlock(width, group_width, first_stride if block == 0 else 1))
                width = group_width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(
                layer, nn.Conv2d
            ):  # "MSR" initialisation, by fan-out, of the authors' code
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the images."""
        features = F.relu(self.norm(self.blocks(self.stem(images))))
        pooled = F.adaptive_avg_pool2d(features, 1).flatten(1)
        return self.classifier(pooled)
