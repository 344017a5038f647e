"""Where torchrun put this process, known without loading anything heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microbench.errors import UserError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # that torchrun sets


@dataclass(frozen=True)
class DistEnv:
    """Rank and number of ranks, over all hosts and on this one."""

    rank: int
    world: int
    local_rank: int
    local_world: int


def dist_env_of(environment: Mapping[str, str]) -> DistEnv | None:
    """This process as torchrun placed it; None without torchrun. UserError: not numbers."""
    if any(name not in environment for name in NAMES):
        return None
    try:
        return DistEnv(*(int(environment[name]) for name in NAMES))
    except ValueError as error:
        raise UserError(f"{', '.join(NAMES)} in the environment: {error}") from None
