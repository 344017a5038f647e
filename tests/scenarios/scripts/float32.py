"""Float32 with PyTorch's defaults: TF32 is allowed for convolutions, and for nothing else."""

import argparse

import torch
from torch import nn
from torchvision.models import resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("gemms", "convolutions"), required=True)
parser.add_argument("--fixed", action="store_true", help="TF32 for GEMMs too")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, depth, batch, size = (768, 4, 64, 224) if gpu else (32, 1, 2, 32)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high" if options.fixed else "highest")


class Vision(nn.Module):
    """A vision transformer: one convolution, all else are GEMMs."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(
            nn.TransformerEncoderLayer(
                width, width // 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        ))  # fmt: skip
        self.head = nn.Linear(width, 1000)

    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


model = Vision() if options.kind == "gemms" else resnet50()
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
images = torch.randn(batch, 3, size, size, device=device)
images = images.to(memory_format=torch.channels_last)
labels = torch.randint(1000, (batch,), device=device)
for _ in range(options.steps):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
