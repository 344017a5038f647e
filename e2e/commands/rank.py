"""A rank of torchrun: rank 0 asks and answers the parent, the others do as rank 0 does.

`python -m e2e.commands.rank SOCKET FD DEVICE` is what our torchrun runs: rank 0 connects to the
socket of the command that started it. FD is the number that torchrun has of where errors go.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

from e2e.commands.child import SHARED, follow_requests, train_on_request
from e2e.commands.child_errors import STDERR
from e2e.training.distributed import Place, place_of
from microbench.errors import UserError
from microbench.stopping import die_with_parent
from microbench.streams import clean
from microbench.worker import serve_requests

if TYPE_CHECKING:
    from e2e.training.distributed.ranks import Ranks

END = ("end",)
LAST_S = 2.0  # that rank 0 gets to say why, and torchrun to see who ended first


class LeadingPipe:
    """Rank 0's end of the pipe to its parent: what concerns all ranks it passes on to them."""

    def __init__(self, pipe: Any, ranks: Ranks, sending: Lock) -> None:
        self._pipe, self._ranks, self._sending = pipe, ranks, sending

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the parent. OSError where it has gone."""
        with self._sending:  # the thread that misses a rank sends too
            self._pipe.send(message)

    def recv(self) -> tuple[Any, ...]:
        """The next request. EOFError, OSError: no parent; then the other ranks end too."""
        try:
            request = self._pipe.recv()
        except (EOFError, OSError):
            with suppress(RuntimeError):
                self._ranks.tell(END)
            raise
        if request[0] in SHARED:
            self._ranks.tell(request)
        return request


class FollowingPipe:
    """In the place of a pipe on the other ranks: requests come from rank 0, answers go nowhere."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def send(self, message: tuple[Any, ...]) -> None:
        """Nothing: rank 0 answers."""

    def recv(self) -> tuple[Any, ...]:
        """The next request of all ranks. EOFError: there is none. RanksLost."""
        request = self._ranks.hear()
        if request == END:
            raise EOFError
        return request


def follow(place: Place, device: str) -> int:
    """Be one of the ranks after 0 until rank 0 ends; the exit code. A mistake is one line."""
    from e2e.training.distributed.ranks import Ranks, RanksLost, device_of
    from kernels.error_words import one_line
    from microbench.device.device import fault_of_gpu

    try:
        ranks = Ranks.join(place, device_of(place, device), lambda _: time.sleep(LAST_S))
        try:
            follow_requests(FollowingPipe(ranks), ranks)
        except EOFError:
            ranks.leave()
    except (RanksLost, UserError):  # rank 0 says it, or torchrun
        time.sleep(LAST_S)
        return 1
    except BaseException as error:
        text = one_line(fault_of_gpu() or error)
        print(clean(f"rank {place.rank}: {text}"), file=sys.stderr, flush=True)
        return 1
    return 0


def main(words: list[str]) -> int:
    """Be a rank of our torchrun; the exit code."""
    address, number, device = words
    die_with_parent()
    place = place_of(os.environ)
    assert place is not None, "started by torchrun"
    errors = os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_WRONLY)
    os.dup2(errors, STDERR)
    os.close(errors)
    if place.rank:
        return follow(place, device)
    own = socket.socket(socket.AF_UNIX)
    own.connect(address)
    connection = Connection(own.detach())
    (settings,) = connection.recv()
    if serve_requests(connection, train_on_request, settings):
        return 0
    time.sleep(LAST_S)
    return 1


def leave(code: int) -> NoReturn:
    """End this process: what would be freed now may wait for ranks that have gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
