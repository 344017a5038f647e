"""Work around the training step that is done one tensor at a time, or not in every step."""

import argparse
import copy
import io

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

DEEP, WIDE = (100, 512, 2048), (24, 2048, 16384)  # layers, width, rows
KINDS = {  # the network, and what --fixed does
    "ema": (DEEP, "all tensors of an average by one call"),
    "metrics": ((32, 512, 2048), "all classes by one comparison"),
    "clip": (DEEP, "one norm of all gradients"),
    "finite": (WIDE, "one read after the last layer"),
    "save": (WIDE, "no checkpoints"),
    "in_backward": (DEEP, "one fused optimizer after the backward pass"),
    "closure": (WIDE, "nothing: forward and backward in optimizer.step, as Lightning does it"),
    "closure_optimizer": (DEEP, "a fused optimizer"),
}
parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=KINDS, required=True)
parser.add_argument("--fixed", action="store_true", help=str({k: v[1] for k, v in KINDS.items()}))
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
kind, fixed = options.kind, options.fixed
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
depth, width, rows = KINDS[kind][0] if gpu else (2, 16, 8)
classes = 200 if gpu else 4
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")

model = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
model = model.to(device)
weights = list(model.parameters())
averages = {decay: copy.deepcopy(weights) for decay in (0.999, 0.9999)} if kind == "ema" else {}
hits = torch.zeros(classes, 2, device=device)
every = torch.arange(classes, device=device)[:, None]
inputs = torch.randn(rows, width, device=device)
labels = torch.randint(classes, (rows,), device=device)


@torch.no_grad()
def average():
    """Averages of all weights."""
    for decay, kept in averages.items():
        if fixed:
            torch._foreach_lerp_(kept, weights, 1 - decay)
            continue
        for mean, weight in zip(kept, weights, strict=True):
            mean.copy_(decay * mean + (1 - decay) * weight)


@torch.no_grad()
def count(outputs):
    """How often each class was right, and how often it was there."""
    guesses = outputs[:, :classes].argmax(1)
    if fixed:
        there, right = labels == every, (guesses == labels) & (labels == every)
        hits.add_(torch.stack([right.sum(1), there.sum(1)], 1))
        return
    for label in range(classes):
        there = labels == label
        hits[label, 0] += (there & (guesses == labels)).sum()
        hits[label, 1] += there.sum()


def clip():
    """Gradients of norm one at most: of each tensor, or of all."""
    for some in [weights] if fixed else [[weight] for weight in weights]:
        clip_grad_norm_(some, 1.0)


if kind == "in_backward" and not fixed:
    optimizer = None
    own = {weight: torch.optim.Adam([weight], lr=1e-4) for weight in weights}

    def update(weight):
        """One tensor's update as soon as its gradient is there."""
        own[weight].step()
        own[weight].zero_grad()

    for weight in weights:
        weight.register_post_accumulate_grad_hook(update)
else:
    fused = fixed or kind != "closure_optimizer"
    optimizer = torch.optim.Adam(weights, lr=1e-4, foreach=False, fused=fused)


def gradients():
    """The forward and backward pass."""
    if optimizer:
        optimizer.zero_grad()
    hidden, good = inputs, torch.ones((), dtype=torch.bool, device=device)
    with torch.autocast(device, torch.bfloat16, enabled=KINDS[kind][0] is WIDE):
        for layer in model:
            hidden = layer(hidden)
            if kind == "finite":
                good &= torch.isfinite(hidden).all()
                if not fixed and not good:
                    raise SystemExit("no finite number")
    if kind == "finite" and not good:
        raise SystemExit("no finite number")
    loss = hidden.float().square().mean()
    loss.backward()
    if kind == "metrics":
        count(hidden)
    return loss


for step in range(options.steps):
    if kind.startswith("closure"):
        optimizer.step(gradients)
        continue
    gradients()
    if kind == "clip":
        clip()
    if optimizer:
        optimizer.step()
    average()
    if kind == "save" and not fixed and step % 10 == 4:
        torch.save(model[: depth // 3].state_dict(), io.BytesIO())
