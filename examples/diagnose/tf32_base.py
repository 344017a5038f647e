"""A transformer whose float32 already runs on Tensor Cores, as TF32: AMP gains twofold at most."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="IEEE float32 without autocast")
parser.add_argument("--no-amp", action="store_true", help="no autocast: what AMP is compared with")
parser.add_argument("--steps", type=int, default=50)
options = parser.parse_args()
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, words, batch = (1024, 512, 64) if gpu else (32, 8, 2)
torch.manual_seed(0)
torch.set_float32_matmul_precision("highest" if options.fixed else "high")

layers = [
    nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True) for _ in range(4)
]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(batch, words, width, device=device)
for _ in range(options.steps):
    with torch.autocast(device, torch.bfloat16, enabled=not options.no_amp):
        loss = model(inputs).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
