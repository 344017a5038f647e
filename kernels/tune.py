"""Which configuration of our Triton kernels a case runs, and which a search times: the winner of an
earlier run, else the first of the cost model.

Winners are kept in the user's cache: one file for an op, a device, a Triton version and the
kernels' source. A file maps "precision/layout/dimensions" to [label, candidates]. A change of a
kernel, or another Triton, starts another file. Nothing here imports torch or triton.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kernels.case import CannotRun, Case, Target
from kernels.files import cache_folder, read_json_file, warn, write_atomically
from kernels.messages import first_line

# How many configurations a search times. Above QUICK it times the first of the ranking, and does so
# even where a winner is known.
NONE, QUICK, WIDE = 0, 6, 24
# How a configuration was chosen: by a wide search, a quick one, or the model. Earlier versions had
# tables too: what they list is TUNED, what a near size of theirs gave is LENT.
HOW = TUNED, QUICK_TUNED, LENT, MODELLED = "tuned", "quick-tuned", "lent", "modelled"
SAME_TILE = 2  # of the configurations that a quick search times

FOLDER = "quick-tuned"
MOST_CANDIDATES = 1000  # that an entry may claim
SOURCES = ("gemm/triton/*.py", "conv/triton/*.py", "cost.py", "tune.py", "triton_util.py")
HASH_LETTERS = 12


Config = Any  # a configuration: its label is what a screen and a cache call it


@dataclass(frozen=True)
class Choice:
    """How a configuration was chosen, one of HOW, and among how many that were timed, if known."""

    how: str
    candidates: int | None = None

    @classmethod
    def timed(cls, candidates: int) -> Choice:
        """Of the fastest of so many that were timed."""
        return cls(TUNED if candidates > QUICK else QUICK_TUNED, candidates)


@dataclass(frozen=True)
class Configurations:
    """The configurations that may run a case.

    `rank` gives all of the catalogue that can, the cheapest by the cost model first; `tile` is what
    one computes at a time; `parse` reads a label, or raises ValueError; `valid` says whether a
    configuration can run the case. `families` sort configurations, see `short_list`.
    """

    case: Case
    target: Target
    rank: Callable[[], Sequence[Config]]
    tile: Callable[[Config], Hashable]
    parse: Callable[[str], Config]
    valid: Callable[[Config], bool]
    families: Sequence[Callable[[Config], Hashable]] = ()

    @cached_property
    def ranked(self) -> Sequence[Config]:
        """Those that can run and are not left out, the cheapest first. CannotRun if there are
        none.
        """
        every = self.rank()
        left = [config for config in every if self.target.has(config.label)]
        if every and not left:
            without = ",".join(self.target.without)
            raise CannotRun(f"--without {without} leaves no Triton configuration")
        if not left:
            name = self.case.precision_name
            raise CannotRun(f"no Triton configuration for {name} fits {self.target.name}")
        return left

    @cached_property
    def known(self) -> tuple[Config, Choice] | None:
        """The winner of an earlier run, and how it was chosen."""
        winner = find(self.case, self.target)
        if winner is None:
            return None
        label, candidates = winner
        try:
            config = self.parse(label)
        except ValueError:
            return None
        return (config, Choice.timed(candidates)) if self.valid(config) else None

    @property
    def chosen(self) -> tuple[Config, Choice]:
        """What runs untimed, and how it was chosen. CannotRun where nothing fits the GPU."""
        return self.known or (self.ranked[0], Choice(MODELLED))

    def tried(self, search: int) -> Sequence[Config]:
        """What a search times: one where it times none, or a quick one's winner is known. CannotRun
        where nothing fits the GPU.
        """
        if search > QUICK:
            known = () if self.known is None else (self.known[0],)
            return tuple(dict.fromkeys((*known, *self.ranked[:search])))
        if search == NONE or self.known is not None:
            return (self.chosen[0],)
        return short_list(self.ranked, self.tile, search, families=self.families)


def short_list(
    ranked: Sequence[Config],
    tile: Callable[[Config], Hashable],
    most: int = QUICK,
    alike: int = SAME_TILE,
    families: Sequence[Callable[[Config], Hashable]] = (),
) -> Sequence[Config]:
    """The first `most` of a ranking, at most `alike` of them with one tile.

    Where all are of one family, one of the last gives way to one of another, if there is one: the
    model may be wrong about a whole family. `families` are several ways to sort; none loses its
    second family to another. A configuration whose family is None takes no such place.
    """
    seen: dict[Hashable, int] = {}

    def kept() -> Iterator[Config]:
        for config in ranked:
            count = seen[tile(config)] = seen.get(tile(config), 0) + 1
            if count <= alike:
                yield config

    listed = list(islice(kept(), most))
    for family in families:
        known = {None, *map(family, listed)}
        other = next((config for config in ranked if family(config) not in known), None)
        if other is not None and not _differ(family, listed):
            trials = ([*listed[:index], other, *listed[index + 1 :]]
                      for index in reversed(range(1, len(listed))))  # fmt: skip
            listed = next(
                (trial for trial in trials
                 if all(_differ(f, trial) >= _differ(f, listed) for f in families)), listed,
            )  # fmt: skip
    return tuple(listed)


def _differ(family: Callable[[Config], Hashable], configs: Sequence[Config]) -> bool:
    return len(set(map(family, configs))) > 1


# ---------------------------------------------------------------- the user's cache

Winner = tuple[str, int]

_winners_here: dict[tuple[str, Target, str], Winner] = {}  # in this process, kept on disk or not


def slug(device_name: str) -> str:
    """A device's name in those of files: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


def key(case: Case, target: Target) -> str:
    """Identity of what is tuned: precision, layout, every dimension, and what was left out; the
    data do not matter.
    """
    dims = ",".join(f"{name}={value}" for name, value in case.problem.dims.items())
    without = f"/without {','.join(target.without)}" if target.without else ""
    return f"{case.precision_name}/{case.problem.layout}/{dims}{without}"


def path(case: Case, target: Target) -> Path | None:
    """The file of a case's op on a device; None where the user has no cache folder."""
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    device = f"{slug(target.name)}-{target.sm_count}sm"
    return folder / f"{case.op}-{device}-triton{triton_version()}-{source_hash()}.json"


def find(case: Case, target: Target) -> Winner | None:
    """(label, how many candidates were timed) of a case; None where it was not tuned, or its entry
    cannot be read. A warning names a file that is damaged.
    """
    own, file = _winners_here.get(_here(case, target)), path(case, target)
    return own or (None if file is None else _read(file).get(key(case, target)))


def save(case: Case, target: Target, label: str, candidates: int) -> None:
    """Keep a winner. OSError where the file cannot be written; this process knows it even so."""
    _winners_here[_here(case, target)] = (label, candidates)
    file = path(case, target)
    if file is None:
        raise FileNotFoundError(2, "no home folder is known")
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file):
        _read.cache_clear()  # another process may have written meanwhile
        winners = {**_read(file), key(case, target): (label, candidates)}
        write_atomically(file, json.dumps(winners, indent=0, sort_keys=True) + "\n")
        _read.cache_clear()


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """While no other process changes the file. The lock ends with the process that holds it."""
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget() -> None:
    """Know only what is on disk: as a process that starts now."""
    _winners_here.clear()
    _read.cache_clear()


def _here(case: Case, target: Target) -> tuple[str, Target, str]:
    return case.op, target, key(case, target)


@cache
def source_hash() -> str:
    """A hash of the kernels' source, and of what chooses among them."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for file in sorted(package.glob(pattern)):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:HASH_LETTERS]


@cache
def triton_version() -> str:
    """The installed Triton's version; "unknown" where it is not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("triton")
    except PackageNotFoundError:
        return "unknown"


@cache
def _read(file: Path) -> dict[str, Winner]:
    """The entries of a file, but for those that no version of this module wrote."""
    try:
        entries = msgspec.convert(read_json_file(file), dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        warn(f"{file} cannot be read ({reason}): shapes are tuned again")
        return {}
    winners: dict[str, Winner] = {}
    for name, entry in entries.items():
        match entry:
            case [str(label), int(candidates)] if 1 <= candidates <= MOST_CANDIDATES:
                winners[name] = label, candidates
            case _:
                pass
    return winners
