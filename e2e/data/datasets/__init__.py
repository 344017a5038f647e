"""What networks train on, by a word: "synthetic", "generated", "made", "cifar10:DIR", "folder:DIR",
or the name of a function, "module:function".

To add a kind, put an entry into `KINDS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.case import is_own
from e2e.data.datasets.images import Folder, InMemory
from e2e.data.datasets.synthetic import Synthetic
from e2e.data.datasets.tokens import GeneratedTokens
from e2e.data.loaders import check_name
from e2e.data.sources import cifar10, generated
from e2e.data.types import Data, Options
from e2e.networks.table import written
from kernels.messages import suggest
from microbench.errors import UserError


@dataclass(frozen=True)
class Kind:
    """A kind of data: what opens it, whether it needs a folder, and its images' shape if fixed.

    `tokens`: it has text for networks of tokens.
    """

    open: Callable[[Options, Path], Data]
    folder: bool = False
    sample: tuple[int, ...] | None = None
    tokens: bool = False


def open_data(spec: str, options: Options) -> Data:
    """The data that a word such as "cifar10:DIR" names.

    UserError for an unknown word, a folder with other content, a sample shape that the data does
    not have, and a loader that does not fit.
    """
    name, colon, path = spec.partition(":")
    kind = KINDS.get(name)
    if is_own(spec):
        from e2e.data.datasets.own import Own  # loads what other data does not need

        return Own(spec, options)
    if kind is None:
        choices = ", ".join(name + ":DIR" * kind.folder for name, kind in KINDS.items())
        choices += " or module:function"
        raise UserError(
            f"--data: unknown {name!r}; choose from {choices}{suggest(name.lower(), KINDS)}"
        )
    if kind.folder and not path:
        raise UserError(f"--data {name} needs a folder: --data {name}:DIR")
    if colon and not kind.folder:
        raise UserError(f"--data {name} takes no folder")
    if options.tokens is not None and not kind.tokens:
        raise UserError(
            f"a network of tokens needs --data synthetic or generated; {name} has images"
        )
    if options.tokens is None and kind.sample not in (None, options.sample):
        raise UserError(
            f"{name} has images of {written(kind.sample)}, the network takes "
            f"{written(options.sample)}; use a network with 32x32 input, for example "
            "resnet18-cifar, or --input 3x32x32"
        )
    return kind.open(options, Path(os.path.expanduser(path)))


def _synthetic(options: Options, folder: Path) -> Data:
    if options.loader:
        check_name(options.loader)
    return Synthetic(options)


def _generated(options: Options, folder: Path) -> Data:
    if options.tokens is not None:
        return GeneratedTokens(options)
    return InMemory("generated", *generated.images(), generated.NORMAL, generated.CLASSES, options)


def _made(options: Options, folder: Path) -> Data:
    from e2e.data.sources.jpegs import cached

    # The parent has made it, and said what there was to say.
    folder = cached(lambda _done, _total: None, lambda _said: None)
    return _folder(options, folder, "made")


def _folder(options: Options, folder: Path, name: str = "folder") -> Data:
    if len(options.sample) != 3 or options.sample[0] != 3:
        raise UserError(
            f"{name} has images of 3 channels, the network takes {written(options.sample)}; "
            "use a network with 3xHxW input"
        )
    return Folder(name, folder, options)


KINDS: dict[str, Kind] = {
    "synthetic": Kind(_synthetic, tokens=True),
    "generated": Kind(_generated, sample=generated.SAMPLE, tokens=True),
    "cifar10": Kind(
        lambda options, folder: InMemory(
            "cifar10", *cifar10.read(folder), cifar10.NORMAL, cifar10.CLASSES, options
        ),
        folder=True,
        sample=cifar10.SAMPLE,
    ),
    "folder": Kind(_folder, folder=True),
    "made": Kind(_made),
}
