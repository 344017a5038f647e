"""cudnn.benchmark with images of a new size in each step: cuDNN searches anew each time."""

import argparse
import random

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="cudnn.benchmark off")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
unit, batch = (8, 32) if gpu else (1, 2)
random.seed(0)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = not fixed

layers = [nn.Conv2d(64 if i else 8, 64, 3, padding=1) for i in range(3)]
model = nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in layers))
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(steps):
    height, width = (unit * random.randint(12, 36) for _ in range(2))
    images = torch.randn(batch, 8, height, width, device=device)
    with torch.autocast(device, torch.float16):
        loss = model(images.to(memory_format=torch.channels_last)).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
