"""Makes the images of `--data made`, with their progress."""

from __future__ import annotations

import time

from rich.console import Console

from e2e.data.sources.jpegs import USUAL, cached
from microbench import fmt
from microbench.report.live import LiveLine
from microbench.report.screen import is_live

SAY_EVERY_S = 10.0  # where nothing can be redrawn


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
