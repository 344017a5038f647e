"""What `python -m e2e make-data DIR` does: make the images, say how far it is and what came out."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from e2e.data.synthetic_jpeg import CLASSES, IMAGES, check
from e2e.data.synthetic_jpeg.making import Made, cached, make
from e2e.data.synthetic_jpeg.manifest import MANIFEST
from e2e.data.synthetic_jpeg.plan import Plan
from microbench import fmt
from microbench.report.live import LiveLine
from microbench.report.screen import is_live, make_console

NAMED = 100  # files that a check names
SAY_EVERY_S = 10.0  # where nothing can be redrawn


def run_make_data(
    folder: Path,
    images: int,
    classes: int,
    seed: int,
    shards: int,
    workers: int | None,
    quiet: bool,
) -> None:
    """Make images in a folder and say what is in it; UserError for what the user can mend."""
    console = make_console(quiet=quiet)
    began_s = time.monotonic()
    try:
        with MakeProgress(console, images, shards=shards) as progress:
            made = make(
                folder, images, classes, seed, shards=shards, processes=workers,
                on_progress=progress.there,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("stopped: what is made stays, and the same command goes on", file=sys.stderr)
        raise
    for line in lines(made, seed, shards, time.monotonic() - began_s):
        console.print(line, soft_wrap=True)


def run_check(folder: Path, *, quiet: bool) -> int:
    """Say what of made data is not as it was made; the exit code: 1 where anything is not.
    UserError where the folder holds no made data.
    """
    troubles = check(folder)
    console = make_console(quiet=quiet and not troubles)
    lines = [fmt.clean(line) for line in troubles[:NAMED]]
    if len(troubles) > NAMED:
        lines.append(f"and {len(troubles) - NAMED:,} more")
    for line in lines or [f"{fmt.clean(folder)}: every file is as it was made"]:
        console.print(line, soft_wrap=True, markup=False)
    return 1 if troubles else 0


def make_usual(console: Console) -> None:
    """Have the images of `--data made` in the cache, and show how far it is when they are not."""
    with MakeProgress(console, IMAGES) as progress:
        cached(IMAGES, CLASSES, progress.there)


class MakeProgress(LiveLine):
    """How many images are there, how fast they are made, and how long it will take."""

    def __init__(
        self,
        console: Console,
        total: int,
        *,
        shards: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, total)
        self._clock = clock
        self._shards = shards
        self._before: int | None = None  # images that were there
        self._began_s = self._said_s = clock()

    def there(self, done: int, total: int) -> None:
        """So many of the images are there."""
        now_s = self._clock()
        if self._before is None:
            self._before, self._began_s = done, now_s
        self._done, self._total = done, total
        rate = self.per_s()
        self._doing = f"{fmt.number(rate)} images/s" if rate else "making images"
        if done == total and self._shards:
            self._doing = f"packing {fmt.count(self._shards, 'tar file')}"
        if not is_live(self._console) and now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            left_s = self.left_s()
            left = f", about {fmt.rough_duration(left_s)} left" if left_s is not None else ""
            self.say(f"[{done:,}/{total:,}] {self._doing}{left}")

    def per_s(self) -> float | None:
        """Images made a second so far; None before the first."""
        made = self._done - (self._before or 0)
        took_s = self._clock() - self._began_s
        return made / took_s if made and took_s > 0 else None

    def left_s(self) -> float | None:
        """Seconds until the last image is made, at the rate so far."""
        rate = self.per_s()
        return (self._total - self._done) / rate if rate else None


def lines(made: Made, seed: int, shards: int, took_s: float) -> list[str]:
    """What a person wants to know of the data, a screen of it."""
    plan = Plan(made.images, made.classes, seed)
    held_out = plan.held_out_images()
    content: dict[str, Any] = json.loads((made.folder / MANIFEST).read_text(encoding="utf-8"))
    size, width, height = (content["measured"][name] for name in ("bytes", "width", "height"))
    said = [
        f"{fmt.clean(made.folder)}: {plan.in_words()}",
        f"  {made.images - held_out:,} to train on, {held_out:,} held out",
        f"  {size['mean'] / 1e3:.0f} kB on average, 90 % of them {size['p5'] / 1e3:.0f} to "
        f"{size['p95'] / 1e3:.0f} kB; {size['mean'] * made.images / 1e9:.2f} GB in all",
        f"  {width['mean']:.0f}x{height['mean']:.0f} pixels on average, the longest side "
        f"{max(width['max'], height['max']):,}",
    ]
    if shards:
        said.append(f"  {fmt.count(shards, 'tar file')} of the images to train on, train-*.tar")
    said.append(_work_done(made, took_s))
    use = shlex.quote(f"folder:{fmt.clean(made.folder)}")
    return [*said, f"Train on them: python -m e2e resnet50 --amp --data {use}"]


def _work_done(made: Made, took_s: float) -> str:
    if not made.made:
        return "All of them were there: nothing was made."
    there = f", {made.there:,} were there" if made.there else ""
    rate = fmt.number(made.made / took_s)
    return f"Made {made.made:,} in {fmt.duration(took_s)}, {rate} images/s{there}."
