"""How files and arrays become batches: `LOADERS`, one entry a back end.

A back end is a module with `open_loader(source, spec)`, and with `missing(device)` where it does
not run everywhere, and its entry in `LOADERS`. The module is imported when it is first used:
most need packages that load slowly.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from e2e.case import OWN
from kernels.messages import suggest
from microbench.errors import UserError

if TYPE_CHECKING:
    import torch

    from e2e.data.types import Loader, LoadSpec, Source


@dataclass(frozen=True)
class Backend:
    """How files or arrays become batches: by a module of this package.

    `sources` are what it takes: "files", "arrays", "own". `processes`: it has workers.
    `trains`: its batches can be trained on. `reads_itself`: in an order that ranks cannot share,
    and never cold.
    """

    module: str
    says: str
    sources: tuple[str, ...]
    processes: bool = True
    trains: bool = True
    reads_itself: bool = False

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run for this device here, or None."""
        cannot = getattr(self._imported(), "missing", None)
        return cannot(device) if cannot else None

    def open(self, source: Source, spec: LoadSpec) -> Loader:
        """A loader of this source. UserError as of the module's `open_loader`."""
        return self._imported().open_loader(source, spec)

    def _imported(self) -> Any:
        return import_module(f"{__name__}.{self.module}")


# These take the place of a back end, for any data: a batch that is always the same.
FIXED = {
    "synthetic": "one batch of noise that stays on the device",
    "pinned": "one batch of bytes in pinned memory, copied and normalised each step",
}


LOADERS: dict[str, Backend] = {
    "torchvision": Backend(
        "images", "Pillow and torchvision's transforms in workers", ("files", "arrays")
    ),
    "dali": Backend(
        "dali", "NVIDIA DALI decodes and crops on the GPU", ("files",), reads_itself=True
    ),
    "resident": Backend(
        "resident", "all images stay on the device and are cropped and flipped there",
        ("arrays",), processes=False,
    ),
    OWN: Backend("workers", "torch's DataLoader over what your function returns", ("own",)),
    "read": Backend(
        "reading", "files are read and discarded: the speed of the disk", ("files",), trains=False
    ),
}  # fmt: skip


# Names in older run files, and what to use instead.
RETIRED = dict.fromkeys(
    ("torchvision-io", "torchvision-draft"), "torchvision, or dali to decode on the GPU"
) | {
    "gpu-decode": "dali, which decodes on the GPU too (pip install 'halfway[dali]')",
    "webdataset": "--data module:function, which returns its WebDataset",
}

_NEEDED = {
    "files": "image files (--data folder:DIR)",
    "arrays": "images in memory (--data cifar10:DIR, generated)",
    "own": "data of your own (--data module:function)",
}


def _fits(backend: Backend, source: Source) -> bool:
    from e2e.data.types import Arrays

    return ("arrays" if isinstance(source, Arrays) else "files") in backend.sources


def check_name(name: str, option: str = "--loader") -> None:
    """UserError for a name that is neither in FIXED nor in LOADERS."""
    names = [*FIXED, *LOADERS]
    if name in RETIRED:
        raise UserError(f"{option} {name} is gone; use {RETIRED[name]}")
    if name not in names:
        raise UserError(
            f"{option}: unknown {name!r}; choose from {', '.join(names)}"
            f"{suggest(name.lower(), names)}"
        )


def backend_of(name: str, source: Source, device: torch.device | None = None) -> Backend:
    """The back end of this name. UserError if there is none, or if it does not take this source.

    With a device, also if it cannot run for that device here.
    """
    check_name(name)
    assert name not in FIXED, "no back end"
    backend = LOADERS[name]
    if not _fits(backend, source):
        needs = " or ".join(_NEEDED[kind] for kind in sorted(backend.sources))
        names = [*FIXED, *(name for name, entry in LOADERS.items() if _fits(entry, source))]
        raise UserError(
            f"--loader {name} takes {needs}; for this data choose from {', '.join(names)}"
        )
    reason = None if device is None else backend.missing(device)
    if reason:
        raise UserError(f"loader {name} cannot run here: {reason}")
    return backend


def open_loader(source: Source, spec: LoadSpec) -> Loader:
    """A loader of this source by the spec's back end. UserError as of `backend_of`."""
    backend = backend_of(spec.loader, source, spec.device)
    if spec.cold:
        os.sync()  # unwritten pages cannot be dropped from the page cache
    return backend.open(source, spec)
