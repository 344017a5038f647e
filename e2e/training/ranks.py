"""The ranks of a training over several GPUs: all run the same code, and rank 0's clock decides.

Gradients go through the default process group (NCCL, gloo on a CPU). All else goes through a
group of gloo: ranks that wait in it use no GPU. A rank that hangs is known by the time limits of
both; then the process ends, and whoever launched it ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from e2e.training.launch import DistEnv, RanksLost
from kernels.messages import one_line
from microbench import fmt
from microbench.errors import UserError

T = TypeVar("T")

# A rank that does not come to an exchange of gradients, or to a meeting after one, for so long has
# hung. The second is longer: a rank that waits in an exchange must be able to say so.
EXCHANGE_S, MEET_S = 20.0, 25.0
PATIENCE_S = 1800.0  # to start, to build, to open data; for rank 0, to explain and to write
NO_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")  # which ranks would wait for before they end


# What a rank says of its work; where several failed, the last of these kinds counts.
KINDS = (None, torch.OutOfMemoryError, RuntimeError, UserError)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; `control` is the group of gloo."""

    rank: int
    world: int
    device: torch.device
    control: Any = None

    @staticmethod
    def alone(device: torch.device) -> Ranks:
        """The only rank, which agrees with itself."""
        return Ranks(0, 1, device)

    @staticmethod
    def join(env: DistEnv, device: torch.device) -> Ranks:
        """Meet the other ranks, which may start PATIENCE_S apart. RuntimeError where that fails."""
        if env.world == 1:
            return Ranks.alone(device)
        ranks, cuda = _torch_ranks(), device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        patience = timedelta(seconds=PATIENCE_S)
        met, _, _ = next(ranks.rendezvous("env://", timeout=patience))
        met.set_timeout(patience)
        store = ranks.PrefixStore("halfway", met)
        store.set(f"rank {env.rank}", "here")
        store.wait([f"rank {rank}" for rank in range(env.world)], patience)
        ranks.init_process_group(
            "nccl" if cuda else "gloo", store=store, rank=env.rank, world_size=env.world,
            timeout=timedelta(seconds=EXCHANGE_S), device_id=device if cuda else None,
        )  # fmt: skip
        control = ranks.new_group(backend="gloo", timeout=patience)
        return Ranks(env.rank, env.world, device, control)

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which decides."""
        return self.rank == 0

    def from_rank0(self, value: T) -> T:
        """The value that rank 0 has, on every rank. RanksLost."""
        if self.world == 1:
            return value
        held: list[Any] = [value]
        with _lost():
            _torch_ranks().broadcast_object_list(held, src=0, group=self.control)
        return held[0]

    def gather(self, value: T, wait_s: float = PATIENCE_S) -> list[T]:
        """The values of all ranks, in their order, on every rank. RanksLost where one is not here
        within `wait_s`.
        """
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        with _lost():
            _torch_ranks().monitored_barrier(
                group=self.control, timeout=timedelta(seconds=wait_s), wait_all_ranks=True
            )
            _torch_ranks().all_gather_object(values, value, group=self.control)
        return values

    def slowest(self, seconds: float) -> float:
        """The longest of all ranks. RanksLost."""
        return max(self.gather(seconds))

    def failed_anywhere(self, error: Exception | None) -> Exception | None:
        """What all ranks go on with: the gravest error of any, or None where none failed.

        This rank's own if it is of that kind; else one of the kind that names the rank. RanksLost.
        """
        if self.world == 1:
            return error
        each = self.gather((_kind_of(error), one_line(error) if error else ""))
        worst = max(kind for kind, _ in each)
        if worst == _kind_of(error):
            return error
        rank, text = next((rank, text) for rank, (kind, text) in enumerate(each) if kind == worst)
        return cast("type[Exception]", KINDS[worst])(f"rank {rank}: {text}")

    @contextmanager
    def fail_together(self) -> Generator[None]:
        """Work that each rank does for itself; it has failed for all where it fails for one."""
        error: Exception | None = None
        try:
            yield
        except RanksLost:
            raise
        except Exception as raised:
            error = raised
        error = self.failed_anywhere(error)
        if error is not None:
            raise error

    @contextmanager
    def exchanging(self) -> Generator[None]:
        """Steps in which ranks wait for each other: where one fails, none goes on. RanksLost."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if self.world == 1 or isinstance(error, RanksLost):
                raise
            raise RanksLost(one_line(error)) from error

    @torch.no_grad()
    def broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors, in place, the values that they have on rank 0."""
        for tensor in tensors if self.world > 1 else ():
            group = None if tensor.device.type == self.device.type else self.control
            whole = tensor.data.contiguous() if not tensor.is_contiguous() else tensor.data
            _torch_ranks().broadcast(whole, src=0, group=group)
            if whole is not tensor.data:
                tensor.data.copy_(whole)

    def sums(self, *numbers: Tensor) -> None:
        """Replace each tensor by its sum over all ranks."""
        for number in numbers if self.world > 1 else ():
            _torch_ranks().all_reduce(number)

    def leave(self) -> None:
        """End the groups, as far as that can be."""
        if self.world > 1:
            with suppress(RuntimeError):
                _torch_ranks().destroy_process_group()


def device_of(env: DistEnv, option: str) -> torch.device:
    """The device of this rank: its own GPU, or the CPU. UserError where there is none for it."""
    if option == "cpu" or (option == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if option not in ("auto", "cuda"):
        raise UserError(
            f"--device {option} is one device; over several GPUs write cuda, or nothing"
        )
    count = torch.cuda.device_count()
    if env.local_world > count:
        has = fmt.count(count, "GPU")
        raise UserError(f"this machine has {has}, too few for {env.local_world} ranks")
    return torch.device("cuda", env.local_rank)


def _kind_of(error: Exception | None) -> int:
    if error is None:
        return 0
    kinds = (UserError, torch.OutOfMemoryError)
    return KINDS.index(next((kind for kind in kinds if isinstance(error, kind)), RuntimeError))


@contextmanager
def _lost() -> Generator[None]:
    """RanksLost for what torch raises where a rank is not there."""
    try:
        yield
    except RuntimeError as error:
        raise RanksLost(f"a rank ended or does not answer: {one_line(error)}") from error


def _torch_ranks() -> Any:
    """torch.distributed, which has few types."""
    os.environ.setdefault(*NO_DUMP)
    from torch import distributed

    return cast("Any", distributed)
