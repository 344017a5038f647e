"""A loader as people write it by hand, timed: what back end torchvision is held against.

python examples/plain_dataloader.py DIR --workers 16 --batch 256 --json OUT

torchvision's ImageFolder and transforms, torch's DataLoader, a copy to the GPU: nothing of ours.
The folder is listed many times over, so that no epoch ends meanwhile, where workers would idle.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

LISTED = 1_000_000  # images


def main() -> None:
    """Print images a second to the device, after a warm-up, in whole rounds of the workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    pictures = ImageFolder(str(asked.folder), transform)
    loader = DataLoader(
        ConcatDataset([pictures] * (1 + LISTED // len(pictures))),
        batch_size=asked.batch,
        shuffle=True,
        num_workers=asked.workers,
        pin_memory=device.type == "cuda",
    )
    batches = iter(loader)
    for _ in range(3 * max(1, asked.workers)):  # what is ready, and more
        next(batches)
    rates: list[float] = []
    for _ in range(asked.blocks):
        count, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < asked.seconds:
            for _ in range(max(1, asked.workers)):
                images, _ = next(batches)
                count += len(images.to(device, non_blocking=True))
        if device.type == "cuda":
            torch.cuda.synchronize()
        rates.append(count / (time.perf_counter() - start_s))
    found = {
        "workers": asked.workers, "batch": asked.batch, "images_per_s": rates,
        "torch": torch.__version__,
        "command": ["python", "examples/plain_dataloader.py", "DIR", "--workers",
                    str(asked.workers), "--batch", str(asked.batch)],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": {"name": torch.cuda.get_device_name() if device.type == "cuda" else "CPU"},
        "software": {"torch": torch.__version__},
    }  # fmt: skip
    print(json.dumps(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
