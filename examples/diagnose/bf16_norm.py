"""ResNet-50 in bfloat16 and channels_last: batch normalisation has no fast kernels for it."""

import argparse

import torch
from torch import nn
from torchvision.models import resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="float16, with a loss scaler")
parser.add_argument("--steps", type=int, default=50)
fixed, steps = (options := parser.parse_args()).fixed, options.steps
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
batch, size = (256, 224) if gpu else (2, 32)
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True

model = resnet50().to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
scaler = torch.amp.GradScaler(device, enabled=fixed)
images = torch.randn(batch, 3, size, size, device=device)
images = images.to(memory_format=torch.channels_last)
labels = torch.randint(1000, (batch,), device=device)
for _ in range(steps):
    with torch.autocast(device, torch.float16 if fixed else torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
