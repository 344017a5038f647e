"""A small network under AMP: the GPU waits for the CPU to launch kernels of a few microseconds."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="CUDA graphs, and a fused optimizer")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class MeanSquare(nn.Module):
    """The loss, a part of the model so that it is in the graphs too."""

    def forward(self, hidden):
        return hidden.float().square().mean()


layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(64)]
model = nn.Sequential(*layers, MeanSquare()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fixed)
inputs = torch.randn(32, 256, device=device)
if fixed and device == "cuda":
    with torch.autocast(device, torch.bfloat16, cache_enabled=False):
        model = torch.cuda.make_graphed_callables(model, (inputs,))
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        loss = model(inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
