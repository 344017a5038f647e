"""Many messages from few nodes: their gradients are added by atomics, in half precision."""

import argparse

import torch
from torch import nn

gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
nodes, width, edges, images, size = (16, 256, 1 << 21, 64, 32) if gpu else (4, 8, 1024, 2, 4)
torch.manual_seed(0)
senders = torch.randint(nodes, (edges,), device=device)
everywhere = senders[:, None].expand(edges, width)
# What spreads a small tensor over a large one; backward adds the large one's gradient up.
SPREADS = {
    "index_select": lambda x: x.view(-1, width)[:nodes].index_select(0, senders),
    "gather": lambda x: x.view(-1, width)[:nodes].gather(0, everywhere),
    "bilinear": lambda x: nn.functional.interpolate(x, scale_factor=8, mode="bilinear"),
    "grid_sample": lambda x: nn.functional.grid_sample(x, grid.to(x.dtype), align_corners=False),
}
parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="this one operator in float32")
parser.add_argument("--no-amp", action="store_true", help="no autocast: what AMP is compared with")
parser.add_argument("--op", choices=SPREADS, default="index_select")
parser.add_argument("--steps", type=int, default=50)
options = parser.parse_args()
spread = SPREADS[options.op]
theta = torch.tensor([[0.5, 0, 0], [0, 0.5, 0]], device=device).expand(images, 2, 3)
grid = nn.functional.affine_grid(theta, [images, 1, 8 * size, 8 * size], align_corners=False)

model = nn.Conv2d(64, 64, 3, padding=1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(images, 64, size, size, device=device)
for _ in range(options.steps):
    with torch.autocast(device, torch.bfloat16, enabled=not options.no_amp):
        small = model(inputs)
        with torch.autocast(device, enabled=False):
            large = spread(small.float()).to(small.dtype) if options.fixed else spread(small)
        loss = (large * large).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
