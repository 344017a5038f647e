"""A network that only answers: there is no optimizer, a step is a call of the model."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("float32", "launches"), required=True)
parser.add_argument("--fixed", action="store_true", help="bfloat16; a CUDA graph")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
small = options.kind == "launches"
depth, width, rows = (400, 256, 32) if small else (6, 4096, 8192)
depth, width, rows = (depth, width, rows) if gpu else (2, 16, 4)
torch.manual_seed(0)


def replayed(model, inputs):
    """The model, its forward pass as one CUDA graph."""
    kept = inputs.clone()
    model(kept)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(kept)

    def forward(inputs):
        kept.copy_(inputs)
        graph.replay()
        return outputs

    model.forward = forward
    return model


model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))
model = model.to(device).eval()
inputs = torch.randn(rows, width, device=device)
if options.fixed and not small:
    model, inputs = model.bfloat16(), inputs.bfloat16()
with torch.inference_mode():
    if options.fixed and small and gpu:
        model = replayed(model, inputs)
    for _ in range(options.steps):
        answers = model(inputs).argmax(1)
    answers.cpu()
