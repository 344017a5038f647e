"""Starts torchrun on this machine: a process a GPU, of which rank 0 answers to this process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from e2e.interrupts import ends_with_us
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.stopping import scratch_folder

RANK = "e2e.commands.rank"  # the module that torchrun runs
START_S = 120.0  # that torchrun and torch get to load
GENTLE_S = 5.0  # that torchrun gets to end its processes
# Of torchrun's last report: which rank ended first, and how.
_FIRST = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


class Torchrun:
    """A torchrun of `count` processes; with what `microbench.worker.Child` asks of a process."""

    def __init__(self, count: int, device: str, errors: int) -> None:
        self._count = count
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the object)
        with scratch_folder() as folder:
            self._listening = socket.socket(socket.AF_UNIX)
            try:
                self._listening.bind(str(folder / "rank0"))
            except OSError as error:
                raise UserError(f"--gpus {count}: {folder}: {error}; set TMPDIR") from None
            self._listening.listen(1)
            self._process = subprocess.Popen(
                [*_torchrun(count), "-m", RANK, str(folder / "rank0"), str(errors), device],
                env=_environment(count), pass_fds=(errors,), stderr=self._said,
                preexec_fn=ends_with_us(), start_new_session=True,
            )  # fmt: skip
            self.pipe = self._connected()

    def _connected(self) -> Connection:
        """The connection to rank 0. UserError where it does not come to that."""
        until_s = time.monotonic() + START_S
        self._listening.settimeout(0.2)
        try:
            while self.is_alive() and time.monotonic() < until_s:
                with suppress(TimeoutError):
                    return Connection(self._listening.accept()[0].detach())
        finally:
            self._listening.close()
        self.kill()
        lines = [line for line in self._report().splitlines() if line.strip()]
        why = next((line for line in reversed(lines) if "Error" in line), "it did not start")
        raise UserError(f"torchrun of {self._count} processes: {why.strip()}")

    @property
    def exitcode(self) -> int | None:
        """How it ended: of the rank that ended first, if that was by a signal; None: it runs."""
        code = self._process.poll()
        first = self.first_to_end
        return first[1] if code and first and first[1] < 0 else code

    @property
    def first_to_end(self) -> tuple[int, int] | None:
        """(rank, exit code) of the rank that ended first, as torchrun reports it; None: unknown."""
        found = _FIRST.search(self._report())
        return (int(found[1]), int(found[2])) if found else None

    def _report(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, GENTLE_S or longer: it ends its processes first."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(timeout or 0.0, GENTLE_S))

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def terminate(self) -> None:
        """End all of its processes at once."""
        self.kill()

    def kill(self) -> None:
        """End all of its processes at once: they are in a session of their own."""
        for pid in (*_children(self._process.pid), self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> Sequence[int]:
    """Processes that it started, while it lives."""
    with suppress(OSError, ValueError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return ()


def _torchrun(count: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0",
        "--nproc-per-node", str(count),
    ]  # fmt: skip


def _environment(count: int) -> dict[str, str]:
    """This process's, with the cores shared out and gloo on the loopback, unless it says so."""
    usual = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // count)), "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # a lost rank is reported in one line
    }  # fmt: skip
    return {**usual, **os.environ}
