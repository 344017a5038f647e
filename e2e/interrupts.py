"""Programs and processes of others that end with the command that started them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from microbench.device.host import STATE, family
from microbench.stopping import DIE_WITH_PARENT, control, remove_at_end

ADOPT = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
KILLING_S = 0.5  # that killed processes may take to end


def share_sockets_folder() -> None:
    """Have the sockets of child processes, and of their children, in one folder of this process.

    Else each process makes one, which stays where a signal ends it. This one goes when this process
    ends, unless by SIGKILL.
    """
    import tempfile
    from multiprocessing import process

    config: dict[str, Any] = vars(process.current_process())["_config"]  # as children have it too
    if not config.get("tempdir"):
        with suppress(OSError):  # no temporary folder: they will say so themselves
            config["tempdir"] = tempfile.mkdtemp(prefix="pymp-")
            remove_at_end(config["tempdir"])


@contextmanager
def programs_end_with_us() -> Generator[Callable[[], None]]:
    """Where the block is stopped, every program that it has started ends, and what those started.

    It gives what to call in a program of another's before it begins (`preexec_fn`): that one is
    killed when this process is. Linux counts the end of the thread that starts it as that.
    """
    me = os.getpid()

    def begin() -> None:
        control(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != me:  # it ended before
            os._exit(1)

    control(ADOPT, 1)  # what loses its parent stays below this process
    try:
        yield begin
    except BaseException:
        until_s = time.monotonic() + KILLING_S
        while (left := _descendants()) and time.monotonic() < until_s:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        raise


def _descendants() -> list[int]:
    """The processes below this one that have not ended."""
    try:
        own = family()
    except OSError:  # no file can be opened any more
        return []
    return [pid for pid, fields in own.items() if pid != os.getpid() and fields[STATE] != "Z"]
