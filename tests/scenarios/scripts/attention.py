"""A causal transformer whose attention is written out, or runs in the slowest back end."""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("written", "math"), required=True)
parser.add_argument("--fixed", action="store_true", help="scaled_dot_product_attention as it is")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
written = options.kind == "written" and not options.fixed
math = options.kind == "math" and not options.fixed
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, heads, words, batch, depth = (768, 12, 1024, 8, 6) if gpu else (32, 2, 8, 2, 1)
torch.manual_seed(0)


class Block(nn.Module):
    """Attention and two layers."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, x, seen):
        qkv = self.qkv(self.norms[0](x)).view(batch, words, 3, heads, width // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if written:
            scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
            mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        else:
            with sdpa_kernel(SDPBackend.MATH) if math else nullcontext():
                mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


blocks = nn.ModuleList(Block() for _ in range(depth)).to(device)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4, fused=True)
inputs = torch.randn(batch, words, width, device=device)
seen = torch.ones(words, words, dtype=torch.bool, device=device).tril()
for _ in range(options.steps):
    hidden = inputs
    with torch.autocast(device, torch.bfloat16):
        for block in blocks:
            hidden = block(hidden, seen)
        loss = hidden.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
