"""A language model's head with 50,257 words, as in GPT-2: rows that are not aligned."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="50,304 words")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

words = 50_304 if fixed else 50_257
body = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)).to(device)
head = nn.Linear(768, words, bias=False).to(device)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
inputs = torch.randn(4096, 768, device=device)
targets = torch.randint(50_257, (4096,), device=device)
for _ in range(steps):
    with torch.autocast(device, torch.bfloat16):
        loss = nn.functional.cross_entropy(head(body(inputs)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
