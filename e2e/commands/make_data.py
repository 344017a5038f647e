"""What `python -m e2e make-data DIR` does: generate a dataset, with its progress and a summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.console import Console

from e2e.data.synthetic_jpeg.dataset import USUAL, Plan, cached, make
from e2e.data.synthetic_jpeg.picture import size_of
from microbench import fmt
from microbench.report.live import LiveLine
from microbench.report.screen import is_live, make_console

SAY_EVERY_S = 10.0  # where nothing can be redrawn


def run_make_data(
    folder: Path, images: int, classes: int, seed: int, shards: int, workers: int | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Generate a dataset in a folder and summarise it. UserError as of `Plan` and `make`."""
    console = make_console(quiet=quiet)
    plan = Plan(images, classes, seed)
    began_s = time.monotonic()
    with MakeProgress(console, images, shards=shards) as progress:
        is_new = make(folder, plan, shards=shards, processes=workers, on_progress=progress.there)
    took_s = time.monotonic() - began_s if is_new else None
    for line in lines(folder, plan, shards, took_s):
        console.print(line, soft_wrap=True)


def make_usual(console: Console) -> None:
    """Generate the dataset of `--data made` in the cache if needed, with its progress."""
    with MakeProgress(console, USUAL.images) as progress:
        cached(USUAL, progress.there)


class MakeProgress(LiveLine):
    """Images generated so far, their rate, and the time left."""

    def __init__(
        self, console: Console, total: int, *, shards: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(console, total)
        self._clock, self._shards = clock, shards
        self._began_s = self._said_s = clock()

    def there(self, done: int, total: int) -> None:
        """Show that `done` images are generated."""
        now_s = self._clock()
        if not done:
            self._began_s = now_s
        self._done, self._total = done, total
        rate = self.per_s()
        self._doing = f"{fmt.number(rate)} images/s" if rate else "generating images"
        if done == total and self._shards:
            self._doing = f"packing {fmt.count(self._shards, 'tar file')}"
        if not is_live(self._console) and now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            left_s = self.left_s()
            left = f", about {fmt.rough_duration(left_s)} left" if left_s is not None else ""
            self.say(f"[{done:,}/{total:,}] {self._doing}{left}")

    def per_s(self) -> float | None:
        """Images generated per second so far; None before the first."""
        took_s = self._clock() - self._began_s
        return self._done / took_s if self._done and took_s > 0 else None

    def left_s(self) -> float | None:
        """Seconds until the last image is made, at the rate so far."""
        rate = self.per_s()
        return (self._total - self._done) / rate if rate else None


def lines(folder: Path, plan: Plan, shards: int, took_s: float | None) -> list[str]:
    """A summary of a dataset, generated in `took_s` seconds, or existing before (None)."""
    trained, name = len(plan.trained()), fmt.clean(folder)
    sizes = [size_of(plan.seed, index) for index in range(plan.images)]
    size_bytes = [(folder / plan.path(index)).stat().st_size for index in range(plan.images)]
    p5, p95 = (float(level) for level in np.percentile(size_bytes, (5, 95)))
    longest = max(max(size.width, size.height) for size in sizes)
    said = [
        f"{name}: {plan.in_words()}",
        f"  {trained:,} for training, {plan.images - trained:,} held out",
        f"  {fmean(size_bytes) / 1e3:.0f} kB on average, 90 % of them {p5 / 1e3:.0f} to "
        f"{p95 / 1e3:.0f} kB; {sum(size_bytes) / 1e9:.2f} GB in total",
        f"  {fmean(size.width for size in sizes):.0f}x{fmean(size.height for size in sizes):.0f} "
        f"pixels on average, the longest side is {longest:,}",
    ]
    if shards:
        said.append(f"  {fmt.count(shards, 'tar file')} of the training images, train-*.tar")
    if took_s is None:
        said.append("The dataset exists already: nothing to generate.")
    else:
        rate = fmt.number(plan.images / took_s)
        said.append(
            f"Generated {plan.images:,} images in {fmt.duration(took_s)} ({rate} images/s)."
        )
    use = shlex.quote(f"folder:{name}")
    return [*said, f"Train on them: python -m e2e resnet50 --amp --data {use}"]
