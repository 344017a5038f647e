"""Ranks as processes: where one was placed, what ends it, and how torch's launcher starts some.

Nothing heavy is loaded before a function runs in several of them.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, NoReturn

from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.stopping import die_with_parent

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # that torchrun sets
LOOK_S = 0.1  # between two looks at the ranks
LOST = 3  # exit code of a rank that has lost another
LAST_S = 2.0  # that it stays: the launcher is to see first who ended first
LAST = -100  # of what runs at a process's end


class RanksLost(RuntimeError):
    """A rank died, hung, or left an exchange: no rank can go on."""


@dataclass(frozen=True)
class DistEnv:
    """Rank and number of ranks, over all hosts and on this one."""

    rank: int
    world: int
    local_rank: int
    local_world: int


def dist_env() -> DistEnv | None:
    """This process as torchrun placed it; None without torchrun. UserError: not numbers."""
    if any(name not in os.environ for name in NAMES):
        return None
    try:
        return DistEnv(*(int(os.environ[name]) for name in NAMES))
    except ValueError as error:
        raise UserError(f"{', '.join(NAMES)} in the environment: {error}") from None


def death_of(rank: int, code: int) -> str:
    """How a rank ended: "rank 1 ended (SIGSEGV)"; `code` is its exit code, below 0 for a signal."""
    if code == LOST:
        return f"rank {rank} waited for another in vain"
    if code >= 0:
        return f"rank {rank} ended (exit code {code})"
    if code == -signal.SIGABRT:  # as NCCL's watchdog ends it
        return f"rank {rank} waited for another in vain, or broke off (SIGABRT)"
    return f"rank {rank} ended ({signal.Signals(-code).name})"


def launch(count: int, work: Callable[..., None], *args: object) -> str | None:
    """Run `work(*args)` in `count` processes, each of which has its place in the environment.

    Waits for their end; where one dies or raises, the others are ended, and what is returned says
    how the first one ended. Must be called in a process's main thread, as torch's launcher handles
    signals. `work` is pickled.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # of torch's launcher: the caller says it in a line
    usual = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // count)), "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # a lost rank is reported in one line
    }  # fmt: skip
    for name, value in usual.items():
        os.environ.setdefault(name, value)
    config: Any = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=count, run_id=f"halfway-{os.getpid()}",
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=LOOK_S,
        start_method="spawn",
    )  # fmt: skip
    try:
        elastic_launch(config, _as_rank)(work, *args)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        return death_of(rank, first.exitcode)
    return None


def leave_lost() -> NoReturn:
    """End a rank that has lost another, after the launcher has seen whether that one died."""
    time.sleep(LAST_S)
    os._exit(LOST)


def _as_rank(work: Callable[..., None], *args: object) -> None:
    faulthandler.disable()  # the launcher turns it on
    die_with_parent()
    try:
        work(*args)
    except RanksLost:
        leave_lost()
    # Now and then torch's threads of gloo abort a process that ends by itself.
    Finalize(None, os._exit, args=(0,), exitpriority=LAST)
