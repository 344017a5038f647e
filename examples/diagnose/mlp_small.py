"""A small network under AMP: the GPU waits for the CPU to launch kernels of a few microseconds."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="a batch 256 times as large")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(24))).to(
    device
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(32 * (256 if fixed else 1), 256, device=device)
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        loss = model(inputs).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
