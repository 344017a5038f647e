"""Many small parameters, and an optimizer that updates one tensor at a time."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="a fused optimizer")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

table = nn.Embedding(20_000, 256).to(device)
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(32))).to(device)
optimizer = torch.optim.AdamW(
    [*table.parameters(), *model.parameters()], lr=1e-3, foreach=False, fused=fixed
)
words = torch.randint(20_000, (64,), device=device)
for _ in range(steps):
    loss = model(table(words)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
