"""A loss outside of autocast: its matrix products run in float32."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="the loss inside autocast")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, rows = (2048, 4096) if gpu else (64, 128)
torch.manual_seed(0)

layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(rows, width, device=device)
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        features = model(inputs)
        with torch.autocast(device, torch.bfloat16, enabled=fixed):
            similar = features.float() @ features.float().T
        loss = similar.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
