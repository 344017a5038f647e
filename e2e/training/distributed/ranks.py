"""The ranks of torchrun: what rank 0 tells the others, and what all agree on.

Gradients go through the default process group (NCCL, gloo on a CPU). All else goes through a
group of gloo: ranks that wait in it use no GPU, and may wait as long as rank 0 takes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from e2e.training.distributed import Place
from e2e.training.distributed.beats import missed, watch
from kernels.error_words import one_line
from microbench import fmt
from microbench.errors import UserError

T = TypeVar("T")

# A rank that does not come to an exchange, or to an agreement after one, for so long has hung. The
# second is longer: a rank that waits in an exchange must be able to say so.
EXCHANGE_S, AGREE_S = 20.0, 25.0
ALONE_S = 900.0  # what each does for itself may take: to start, to build, to open its data
WAITS_S = 7 * 24 * 3600.0  # for rank 0, while it explains, predicts, or writes
FINE, NO_MEMORY, FAILED, MISTAKE = range(4)  # what a rank says of its part; the largest counts
NO_DUMP = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")  # which ranks would wait for before they end
_MISSING = re.compile(r"Ranks? ([\d, ]+) failed to pass")


class RanksLost(RuntimeError):
    """A rank died, hung, or left an exchange: no rank can go on."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of torchrun. `control` is the group of gloo; `end_watch` ends that
    for signs of life.
    """

    rank: int
    world: int
    device: torch.device
    control: Any
    end_watch: Callable[[], None]

    @staticmethod
    def join(place: Place, device: torch.device, lost: Callable[[str], None]) -> Ranks:
        """Meet the other ranks, which may start ALONE_S apart. RuntimeError where that fails.

        Where one shows no sign of life later, `lost` is called with a line that names it, in a
        thread, and then this process ends.
        """
        ranks, cuda = _torch_ranks(), device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        store = _met(place)
        end_watch = watch(store.clone(), place.rank, place.world, lost)
        ranks.init_process_group(
            "nccl" if cuda else "gloo", store=store, rank=place.rank, world_size=place.world,
            timeout=timedelta(seconds=EXCHANGE_S), device_id=device if cuda else None,
        )  # fmt: skip
        control = ranks.new_group(backend="gloo", timeout=timedelta(seconds=WAITS_S))
        return Ranks(place.rank, place.world, device, control, end_watch)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides."""
        return self.rank == 0

    # ------------------------------------------------------------ what rank 0 decides

    def tell(self, message: tuple[Any, ...]) -> None:
        """On rank 0: send all others a message. RanksLost."""
        self._said(message)

    def hear(self) -> tuple[Any, ...]:
        """On the others: the next message, however long it takes. RanksLost."""
        return self._said(None)

    def same(self, value: T) -> T:
        """The value that rank 0 has, on every rank. RanksLost."""
        return self._said(value if self.leads else None)

    def _said(self, value: Any) -> Any:
        held = [value]
        with _lost("a rank ended"):
            _torch_ranks().broadcast_object_list(held, src=0, group=self.control)
        return held[0]

    # ------------------------------------------------------------ what all agree on

    @contextmanager
    def part(self, *, exchanges: bool = False, wait_s: float | None = None) -> Generator[None]:
        """A part of the work that every rank does; it has failed for all where it fails for one.

        What was raised here is raised. Where another rank failed: UserError or OutOfMemoryError as
        there, else RuntimeError. If it `exchanges` gradients, a failure leaves others waiting, and
        whatever it is but a UserError, RanksLost is raised.

        A rank is waited for `wait_s`: usually AGREE_S if it `exchanges`, else ALONE_S.
        """
        error: Exception | None = None
        try:
            yield
        except RanksLost:
            raise
        except Exception as raised:
            error = raised
        if wait_s is None:
            wait_s = AGREE_S if exchanges else ALONE_S
        found, text = self._agreed(error, wait_s)
        if found == FINE:
            return
        lost = exchanges and found != MISTAKE
        if error is not None and _kind_of(error) == found and not lost:
            raise error
        _raise(found, text, lost=lost)

    def together(self, work: Callable[[], T], wait_s: float = ALONE_S) -> T:
        """What the work returns, once every rank has done it; see `part`."""
        with self.part(wait_s=wait_s):
            result = work()
        return result

    def _agreed(self, error: Exception | None, wait_s: float) -> tuple[int, str]:
        """(the worst of what the ranks say, which rank said it and why). RanksLost."""
        ranks, own = _torch_ranks(), _kind_of(error)
        self._meet(wait_s)
        with _lost("a rank ended"):
            worst = torch.tensor(own)
            ranks.all_reduce(worst, ranks.ReduceOp.MAX, group=self.control)
        if worst == FINE:
            return FINE, ""
        said: list[Any] = self.gather((own, one_line(error) if error else ""))
        rank, text = next((r, text) for r, (kind, text) in enumerate(said) if kind == worst)
        return int(worst), f"rank {rank}: {text}"

    def _meet(self, wait_s: float) -> None:
        """Wait until every rank is here, `wait_s` at most. RanksLost names who is not."""
        with _lost("a rank ended"):
            _torch_ranks().monitored_barrier(
                group=self.control, timeout=timedelta(seconds=wait_s), wait_all_ranks=True
            )

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on every rank. RanksLost."""
        found: list[Any] = [None] * self.world
        with _lost("a rank ended"):
            _torch_ranks().all_gather_object(found, value, group=self.control)
        return found

    @torch.no_grad()
    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Give these tensors, in place, the values that they have on rank 0."""
        for tensor in tensors:
            group = None if tensor.device.type == self.device.type else self.control
            whole = tensor.data.contiguous() if not tensor.is_contiguous() else tensor.data
            _torch_ranks().broadcast(whole, src=0, group=group)
            if whole is not tensor.data:
                tensor.data.copy_(whole)

    def sums(self, *numbers: Tensor) -> None:
        """Replace each tensor by its sum over all ranks."""
        for number in numbers:
            _torch_ranks().all_reduce(number)

    def leave(self) -> None:
        """End the groups, as far as that can be; ranks that end now are not missed."""
        self.end_watch()
        with _lost("", quiet=True):
            _torch_ranks().destroy_process_group()


def device_of(place: Place, asked: str) -> torch.device:
    """The device of this rank: its own GPU, or the CPU. UserError where there is none for it."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if asked not in ("auto", "cuda"):
        raise UserError(f"--device {asked} is one device; over several GPUs write cuda, or nothing")
    count = torch.cuda.device_count()
    if place.local_world > count:
        has = fmt.count(count, "GPU")
        raise UserError(f"this machine has {has}, too few for {place.local_world} ranks")
    return torch.device("cuda", place.local_rank)


def _met(place: Place) -> Any:
    """The store of torchrun, once every rank is there."""
    ranks, patience = _torch_ranks(), timedelta(seconds=ALONE_S)
    store, _, _ = next(ranks.rendezvous("env://", timeout=patience))
    store.set_timeout(patience)
    own = ranks.PrefixStore("halfway", store)
    own.set(f"rank {place.rank}", "here")
    own.wait([f"rank {rank}" for rank in range(place.world)], patience)
    return own


def _kind_of(error: Exception | None) -> int:
    if error is None:
        return FINE
    if isinstance(error, UserError):
        return MISTAKE
    return NO_MEMORY if isinstance(error, torch.OutOfMemoryError) else FAILED


def _raise(found: int, text: str, *, lost: bool) -> NoReturn:
    if found == MISTAKE:
        raise UserError(text)
    if lost:
        raise RanksLost(text)
    raise torch.OutOfMemoryError(text) if found == NO_MEMORY else RuntimeError(text)


@contextmanager
def _lost(reason: str, *, quiet: bool = False) -> Generator[None]:
    """RanksLost for what torch raises where a rank is not there, naming it where torch does."""
    try:
        yield
    except RuntimeError as error:
        if quiet:
            return
        missing = _MISSING.search(str(error))
        if missing:
            reason = missed(missing[1].split(","))
        raise RanksLost(reason) from error


def _torch_ranks() -> Any:
    """torch.distributed, which has few types."""
    os.environ.setdefault(*NO_DUMP)
    from torch import distributed

    return cast("Any", distributed)
