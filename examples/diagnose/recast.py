"""Autocast entered inside a block that is called sixteen times: its weights are cast each time."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="one autocast around the forward")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

block = nn.Sequential(nn.Linear(8192, 8192), nn.GELU()).to(device)
optimizer = torch.optim.SGD(block.parameters(), lr=0.01)
inputs = torch.randn(256, 8192, device=device)


def forward():
    """Sixteen times the same block."""
    hidden = inputs
    for _ in range(16):
        with torch.autocast(device, torch.bfloat16):
            hidden = block(hidden)
    return hidden


for _ in range(steps):
    with torch.autocast(device, torch.bfloat16, enabled=fixed):
        loss = forward().float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
