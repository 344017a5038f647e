"""A thread that makes things ahead of whoever asks for them, some at most."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

CLOSE_S = 60.0  # how long a thread may still be busy with its last piece

Made = TypeVar("Made")


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class Ahead(Generic[Made]):
    """What `make` gives, call by call, from a thread of its own that has up to `ready` of them.

    The thread starts with the first `get`. An error of `make` ends it, and is raised where its
    result would have come, then and ever after.
    """

    def __init__(self, make: Callable[[], Made], ready: int) -> None:
        self._make, self._most = make, ready
        self._ready: deque[Made | _Failed] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def get(self) -> Made:
        """Wait for the next one. RuntimeError when it is closed meanwhile."""
        assert not self._closed, "closed"
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed)
            if self._closed:
                raise RuntimeError("closed while it was waited for")
            first = self._ready[0]
            if isinstance(first, _Failed):
                raise first.error
            self._ready.popleft()
            self._changed.notify_all()
        return first

    def close(self, within_s: float = CLOSE_S) -> None:
        """End the thread, when it has made what it is at, and let go of what is ready.

        May be called again where that took longer than `within_s`.
        """
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(within_s)

    def _run(self) -> None:
        going = True
        while going:
            try:
                made: Made | _Failed = self._make()
            except BaseException as error:  # it is the caller's, whatever it is
                made = _Failed(error)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._most)
                going = not self._closed and not isinstance(made, _Failed)
                if not self._closed:
                    self._ready.append(made)
                self._changed.notify_all()
