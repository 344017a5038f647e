"""Statistics that are read after every block: the CPU waits for the GPU each time."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="read nothing inside the step")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, rows = (2048, 8192) if gpu else (64, 32)
torch.manual_seed(0)

layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(24)]
blocks = nn.ModuleList(layers).to(device)
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
inputs = torch.randn(rows, width, device=device)
for _ in range(steps):
    hidden, seen = inputs, []
    with torch.autocast(device, torch.bfloat16):
        for block in blocks:
            hidden = block(hidden)
            for statistic in (torch.mean, torch.amax, torch.amin):
                found = statistic(hidden.detach())
                seen.append(found if fixed else found.item())
    loss = hidden.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
