"""What `python -m e2e make-data DIR` does: generate a dataset, with its progress and a summary."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.console import Console

from e2e.data.sources.jpegs import TRAIN, USUAL, DatasetPlan, cached, make
from microbench import fmt
from microbench.report.live import LiveLine
from microbench.report.screen import is_live, make_console

SAY_EVERY_S = 10.0  # where nothing can be redrawn


def run_make_data(folder: Path, images: int, classes: int) -> None:
    """Generate a dataset in a folder and summarise it. UserError as of `DatasetPlan` and `make`."""
    console = make_console(quiet=False)
    plan, name = DatasetPlan(images, classes), fmt.clean(folder)
    paths = [plan.path(index) for index in range(images)]
    trained = sum(path.startswith(TRAIN) for path in paths)
    with MakeProgress(console, images) as progress:
        is_new = make(folder, plan, progress.there)
    size = sum((folder / path).stat().st_size for path in paths)
    console.print(
        f"{name}: {plan}\n"
        f"  {trained:,} for training, {images - trained:,} held out\n"
        f"  {size / images / 1e3:.0f} kB on average, {size / 1e9:.2f} GB in total",
        soft_wrap=True,
    )
    if not is_new:
        console.print("The dataset exists already: nothing to generate.")
    use = shlex.quote(f"folder:{name}")
    console.print(f"Train on them: halfway train resnet50 --amp --data {use}", soft_wrap=True)


def make_usual(console: Console) -> None:
    """Generate the dataset of `--data made` in the cache if needed, with its progress."""
    with MakeProgress(console, USUAL.images) as progress:
        cached(progress.there, begin=progress.say)


class MakeProgress(LiveLine):
    """Images generated so far, their rate, and the time left."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console, total)
        self._before: int | None = None  # made by an earlier call, which was interrupted
        self._began_s = self._said_s = time.monotonic()

    def there(self, done: int, total: int) -> None:
        """Show that `done` images are generated."""
        now_s = time.monotonic()
        if self._before is None:
            self._began_s, self._before = now_s, done
        self._done = done
        self._doing = f"{fmt.number(self._per_s())} images/s" if self._per_s() else "generating"
        if not is_live(self._console) and now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            left = self._left()
            self.say(f"[{done:,}/{total:,}] {self._doing}{f', {left}' if left else ''}")

    def _per_s(self) -> float:
        """Images that this call generates in a second; 0 before the first."""
        took_s = time.monotonic() - self._began_s
        return (self._done - (self._before or 0)) / took_s if took_s > 0 else 0.0

    def left_s(self) -> float | None:
        """Seconds until the last image is made, at the rate so far."""
        return (self._total - self._done) / self._per_s() if self._per_s() else None
