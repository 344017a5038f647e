"""Convolutions under AMP in PyTorch's default layout: cuDNN changes it around each layer."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="channels_last")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
size = 112 if gpu else 16
torch.manual_seed(0)

layers = [nn.Conv2d(64 if i else 3, 64, 3, padding=1) for i in range(8)]
model = nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers)).to(device)
inputs = torch.randn(64 if gpu else 4, 3, size, size, device=device)
if fixed:
    model = model.to(memory_format=torch.channels_last)
    inputs = inputs.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(steps):
    with torch.autocast(device, torch.float16):
        loss = model(inputs).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
