"""Autocast entered inside a block that is called sixteen times: its weights are cast each time."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="one autocast around the forward")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, rows = (8192, 2048) if gpu else (256, 16)
torch.manual_seed(0)

block = nn.Sequential(nn.Linear(width, width), nn.GELU()).to(device)
optimizer = torch.optim.SGD(block.parameters(), lr=0.01)
inputs = torch.randn(rows, width, device=device)


def forward():
    """Sixteen times the same block."""
    hidden = inputs
    for _ in range(16):
        with torch.autocast(device, torch.bfloat16):
            hidden = block(hidden)
    return hidden


for _ in range(steps):
    # An outer autocast keeps the cast weights until it ends, even one that is not enabled.
    with torch.autocast(device, torch.bfloat16) if fixed else nullcontext():
        loss = forward().float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
