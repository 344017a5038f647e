"""A language model's head with 50,257 words, as in GPT-2: rows that are not aligned."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="50,304 words")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, rows = (768, 4096) if gpu else (32, 64)
torch.manual_seed(0)

odd, even = (50_257, 50_304) if gpu else (1021, 1024)
body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
body = body.to(device)
head = nn.Linear(width, even if fixed else odd, bias=False).to(device)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
inputs = torch.randn(rows, width, device=device)
targets = torch.randint(odd, (rows,), device=device)
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        loss = nn.functional.cross_entropy(head(body(inputs)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
