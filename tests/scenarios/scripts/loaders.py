"""Batches that a training waits for, or data that its own loop makes."""

import argparse
import itertools
import queue
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KINDS = {  # seconds for a sample, samples of a batch, worker processes
    "workers": (0.003, 32, 4),  # 24 ms a step
    "bursts": (0.16, 1, 4),  # workers end together: of four steps one waits 160 ms
    "and_launches": (0.0025, 32, 2),  # 40 ms a step, in which the CPU launches for about 18
    "thread": (0.0008, 32, 0),  # a thread with a queue, 26 ms a batch
    "numpy": (0, 32, 0),  # the loop makes the next batch itself
    "sleep": (0, 32, 0),  # the loop waits for something else
}
parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=KINDS, required=True)
parser.add_argument("--fixed", action="store_true", help="one batch, made beforehand")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
sample_s, samples, workers = KINDS[options.kind]
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
launches = options.kind == "and_launches"
depth, width, rows = (64, 256, 32) if launches else (6, 4096, 8192)
depth, width, rows = (depth, width, rows) if gpu else (1, 64, 32)
torch.manual_seed(0)


class Slow(Dataset):
    """Samples that take their time, as files on a slow disk do."""

    def __len__(self):
        return samples * (options.steps + 100)

    def __getitem__(self, index):
        time.sleep(sample_s)
        return torch.ones(width)


def by_thread():
    """Batches that a thread makes and puts into a queue."""
    ready = queue.Queue(2)

    def make():
        for _ in range(options.steps):
            time.sleep(sample_s * samples)
            ready.put(torch.ones(samples, width))

    threading.Thread(target=make, daemon=True).start()
    while True:
        yield ready.get()


def by_loop():
    """Batches that the training's own thread makes: twenty milliseconds of numpy, or of sleep."""
    rng = np.random.default_rng(0)
    while True:
        if options.kind == "sleep":
            time.sleep(0.02)
        else:
            np.sin(rng.standard_normal(1_000_000))
        yield torch.ones(samples, width)


if options.fixed:
    batches = itertools.repeat(torch.ones(samples, width))
elif workers:
    batches = DataLoader(Slow(), batch_size=samples, num_workers=workers)
else:
    batches = by_thread() if options.kind == "thread" else by_loop()
model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in itertools.islice(batches, options.steps):
    inputs = batch.to(device).repeat(rows // len(batch), 1)
    with torch.autocast(device, torch.bfloat16):
        loss = model(inputs).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
