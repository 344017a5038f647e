"""How files and arrays become batches: `LOADERS`, one entry a back end.

A back end is a module with `open_feed(source, wanted, tell)`, and with `missing(device)` where it
does not run everywhere, and its entry in `LOADERS`. The module is imported when it is first used:
most need packages that load slowly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from e2e.data.types import Arrays, LoaderFeed, Source, Tell, Wanted
from kernels.error_words import suggest
from microbench.errors import UserError


@dataclass(frozen=True)
class Backend:
    """How files or arrays become batches.

    `sources` are those it takes: "files", "arrays", "shards". `missing` says why it cannot run for
    a device here, None when it can. `processes`: whether it has workers. `trains`: whether its
    batches can be trained on. `on_gpu`: whether it makes them on the GPU, beside the training.
    """

    says: str
    sources: frozenset[str]
    missing: Callable[[torch.device], str | None]
    open: Callable[[Source, Wanted, Tell], LoaderFeed]
    processes: bool = True
    trains: bool = True
    on_gpu: bool = False


# These take the place of a back end, for any data: a batch that is always the same.
FIXED = {
    "synthetic": "one batch of noise that lies on the device",
    "pinned": "one batch of bytes in pinned memory, copied and normalised each step",
}


def _in_module(
    name: str, says: str, sources: Iterable[str], *, processes: bool = True, trains: bool = True,
    on_gpu: bool = False,
) -> Backend:  # fmt: skip
    """The back end in a module of this package, which is imported when it is first used."""

    def module() -> Any:
        return import_module(f"e2e.data.loaders.{name}")

    def missing(device: torch.device) -> str | None:
        cannot = getattr(module(), "missing", None)
        return cannot(device) if cannot else None

    return Backend(
        says,
        frozenset(sources),
        missing,
        lambda source, wanted, tell: module().open_feed(source, wanted, tell),
        processes=processes,
        trains=trains,
        on_gpu=on_gpu,
    )


LOADERS: dict[str, Backend] = {
    "torchvision": _in_module(
        "pillow", "Pillow and torchvision's transforms in workers", ("files", "arrays")
    ),
    "torchvision-io": _in_module(
        "torchvision_io", "torchvision's own JPEG decoder and transforms in workers", ("files",)
    ),
    "torchvision-draft": _in_module(
        "draft", "as torchvision, but a JPEG is decoded at 1/2, 1/4 or 1/8 where that is enough",
        ("files",),
    ),
    "gpu-decode": _in_module(
        "gpu_decode", "workers read; the GPU decodes, cuts, resizes and flips", ("files",),
        on_gpu=True,
    ),
    "webdataset": _in_module(
        "shards",
        "tar shards read in a row by workers, then as torchvision; the order depends on how many",
        ("shards",),
    ),
    "dali": _in_module("dali", "NVIDIA DALI decodes and cuts on the GPU", ("files",), on_gpu=True),
    "resident": _in_module(
        "resident", "all images lie on the device, and are cut and flipped there",
        ("files", "arrays"), processes=False,
    ),
    "read": _in_module(
        "reading", "files are read and thrown away: what the disk gives", ("files",), trains=False
    ),
}  # fmt: skip


def kinds_of(source: Source) -> frozenset[str]:
    """Which of a back end's `sources` this is."""
    if isinstance(source, Arrays):
        return frozenset(("arrays",))
    return frozenset(("files", "shards") if any(source.root.glob("*.tar")) else ("files",))


def usual(source: Source) -> str:
    """The back end for a source when the user names none."""
    return "resident" if isinstance(source, Arrays) else "torchvision"


def check_name(name: str) -> None:
    """UserError for what is neither in FIXED nor in LOADERS."""
    names = [*FIXED, *LOADERS]
    if name not in names:
        raise UserError(
            f"no loader {name!r}{suggest(name.lower(), names)}; there are {', '.join(names)}"
        )


def backend_of(name: str, source: Source, device: torch.device | None = None) -> Backend:
    """The back end of this name. UserError when there is none, or it does not take this source.

    With a device, also when it cannot run for that device here.
    """
    check_name(name)
    assert name not in FIXED, "no back end"
    backend = LOADERS[name]
    if not backend.sources & kinds_of(source):
        raise UserError(f"loader {name} takes {_needs(backend)}; {_choices(source)}")
    reason = None if device is None else backend.missing(device)
    if reason:
        raise UserError(f"loader {name} cannot run here: {reason}")
    return backend


def open_feed(name: str, source: Source, wanted: Wanted, tell: Tell) -> LoaderFeed:
    """A feed of this source from a back end. UserError as of `backend_of`."""
    backend = backend_of(name, source, wanted.device)
    if wanted.cold:
        os.sync()  # what waits to be written cannot be dropped from the page cache
    return backend.open(source, wanted, tell)


_NEEDED = {
    "files": "image files (--data folder:DIR)",
    "arrays": "images that lie in memory (--data cifar10:DIR, generated)",
    "shards": "tar shards, which are expected as *.tar in the folder",
}


def _needs(backend: Backend) -> str:
    return " or ".join(_NEEDED[kind] for kind in sorted(backend.sources))


def _choices(source: Source) -> str:
    names = [name for name, backend in LOADERS.items() if backend.sources & kinds_of(source)]
    return f"this data can have {', '.join([*FIXED, *names])}"
