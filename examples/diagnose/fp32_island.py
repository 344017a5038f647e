"""A loss outside of autocast: its matrix products run in float32."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="the loss inside autocast")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(4))).to(
    device
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(4096, 2048, device=device)
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        features = model(inputs)
        with torch.autocast(device, torch.bfloat16, enabled=fixed):
            similar = features.float() @ features.float().T
        loss = similar.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
