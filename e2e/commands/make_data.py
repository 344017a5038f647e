"""What `python -m e2e make-data DIR` does: generate a dataset, with its progress and a summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.console import Console

from e2e.data.sources.jpegs import USUAL, Plan, cached, make, size_of
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
    plan = Plan(images, classes, seed, shards)
    began_s = time.monotonic()
    with MakeProgress(console, images, shards=shards) as progress:
        is_new = make(folder, plan, progress.there, workers)
    took_s = time.monotonic() - began_s if is_new else None
    for line in lines(folder, plan, progress.made, took_s):
        console.print(line, soft_wrap=True)


def make_usual(console: Console) -> None:
    """Generate the dataset of `--data made` in the cache if needed, with its progress."""
    with MakeProgress(console, USUAL.images) as progress:
        cached(progress.there)


class MakeProgress(LiveLine):
    """Images generated so far, their rate, and the time left."""

    def __init__(
        self, console: Console, total: int, *, shards: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(console, total)
        self._clock, self._shards = clock, shards
        self._before: int | None = None  # made by an earlier call, which was interrupted
        self._began_s = self._said_s = clock()

    def there(self, done: int, total: int) -> None:
        """Show that `done` images are generated."""
        now_s = self._clock()
        if self._before is None:
            self._began_s, self._before = now_s, done
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

    @property
    def made(self) -> int:
        """Images that this call has generated."""
        return self._done - (self._before or 0)

    def per_s(self) -> float | None:
        """Images generated per second so far; None before the first."""
        took_s = self._clock() - self._began_s
        return self.made / took_s if self.made and took_s > 0 else None

    def left_s(self) -> float | None:
        """Seconds until the last image is made, at the rate so far."""
        rate = self.per_s()
        return (self._total - self._done) / rate if rate else None


def lines(folder: Path, plan: Plan, made: int, took_s: float | None) -> list[str]:
    """A summary of a dataset: `made` images in `took_s` seconds; None where all existed before."""
    trained, name = len(plan.trained()), fmt.clean(folder)
    sizes = [size_of(plan.seed, index) for index in range(plan.images)]
    size_bytes = [(folder / plan.path(index)).stat().st_size for index in range(plan.images)]
    p5, p95 = (float(level) for level in np.percentile(size_bytes, (5, 95)))
    longest = max(map(max, sizes))
    said = [
        f"{name}: {plan}",
        f"  {trained:,} for training, {plan.images - trained:,} held out",
        f"  {fmean(size_bytes) / 1e3:.0f} kB on average, 90 % of them {p5 / 1e3:.0f} to "
        f"{p95 / 1e3:.0f} kB; {sum(size_bytes) / 1e9:.2f} GB in total",
        f"  {fmean(width for width, _ in sizes):.0f}x{fmean(height for _, height in sizes):.0f} "
        f"pixels on average, the longest side is {longest:,}",
    ]
    if plan.shards:
        said.append(f"  {fmt.count(plan.shards, 'tar file')} of the training images, train-*.tar")
    if took_s is None:
        said.append("The dataset exists already: nothing to generate.")
    else:
        rest = f"; {plan.images - made:,} existed already" if made < plan.images else ""
        rate = fmt.number(made / took_s)
        said.append(f"Generated {made:,} images in {fmt.duration(took_s)} ({rate} images/s{rest}).")
    use = shlex.quote(f"folder:{name}")
    return [*said, f"Train on them: python -m e2e resnet50 --amp --data {use}"]
