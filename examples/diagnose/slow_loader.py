"""A data loader in the training process: 30 ms of work on the CPU for each batch."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="batches that are made beforehand")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
side = 64 if gpu else 16
torch.manual_seed(0)


class Slow(torch.utils.data.Dataset):
    """Samples that take the CPU some time: 30 ms a batch of 32."""

    def __len__(self):
        return 32 * (steps + 1)

    def __getitem__(self, index):
        end = time.perf_counter() + 0.03 / 32
        while time.perf_counter() < end:
            pass
        return torch.ones(3, side, side), index % 10


model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten())
model = model.append(nn.Linear(64 * (side - 4) ** 2, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(Slow(), batch_size=32)
if fixed:
    batches = [next(iter(batches))] * steps
for images, labels in batches:
    with torch.autocast(device, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
