"""A loss that is read after every block: the CPU waits for the GPU each time."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="read nothing inside the step")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

blocks = nn.ModuleList(nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12)).to(
    device
)
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
inputs = torch.randn(4096, 4096, device=device)
for _ in range(steps):
    hidden, norms = inputs, []
    with torch.autocast(device, torch.bfloat16):
        for block in blocks:
            hidden = block(hidden)
            norms.append(hidden.detach().norm() if fixed else hidden.detach().norm().item())
    loss = hidden.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
