"""Which images a folder holds, of which classes, and which of them are held out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.data.types import ImageFile
from microbench.errors import UserError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)
MOST_KINDS = 6  # of what is left out that a note names
TRAIN = "train"
HELD_OUT = ("val", "valid", "validation", "test")  # the first one there is taken
LAYOUT = "expected are train/CLASS/*.jpg and val/CLASS/*.jpg in it, or CLASS/*.jpg"
HELD_OUT_SHARE = 0.1  # where no folder says what to hold out


@dataclass(frozen=True)
class Listing:
    """The images of a folder, by their names: which are broken is found when they are loaded."""

    root: Path
    classes: tuple[str, ...]
    train: tuple[ImageFile, ...]
    held_out: tuple[ImageFile, ...]
    notes: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """The images below a folder. UserError if it is missing, empty or laid out otherwise.

    The order and the held-out part depend on names alone, not on the file system.
    """
    train_root, kept_root = _parts(root)
    left_out = Counter[str]()  # what is no image, by kind
    by_class = _by_class(train_root, left_out)
    classes = tuple(name for name, paths in by_class.items() if paths)
    if not classes:
        raise UserError(f"{train_root} has no class folders with images; {LAYOUT}")
    notes = [f"no image in {train_root / name}" for name, paths in by_class.items() if not paths]
    if len(classes) == 1:
        notes.append(f"only one class, {classes[0]}: accuracy is meaningless")
    kept = _by_class(kept_root, left_out) if kept_root else {}
    if unknown := [name for name, paths in kept.items() if paths and name not in classes]:
        raise UserError(
            f"{kept_root} has classes that the train folder lacks: {', '.join(unknown[:3])}"
        )
    if left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in left_out.most_common(MOST_KINDS))
        notes.append(f"left out, as no images: {printable(kinds)}")

    def labelled(paths: dict[str, list[str]]) -> list[ImageFile]:
        return [ImageFile(p, label) for label, c in enumerate(classes) for p in paths.get(c, [])]

    train, held_out = labelled(by_class), labelled(kept)
    if not held_out:
        train, held_out = _split(train, root)
        notes.append(f"no {HELD_OUT[0]} images: {len(held_out):,} of {TRAIN} are held out instead")
    if not train or not held_out:
        raise UserError(
            f"{root} has too few images: {len(train)} for training, {len(held_out)} held out"
        )
    return Listing(root, classes, tuple(train), tuple(held_out), tuple(notes))


def _parts(root: Path) -> tuple[Path, Path | None]:
    """Where the images to train on are, and those held out, where they have a folder."""
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise UserError(f"{root} {what}; {LAYOUT}")
    if not _names(root):
        raise UserError(f"{root} is empty; {LAYOUT}")
    kept_root = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
    if (root / TRAIN).is_dir():
        return root / TRAIN, kept_root
    if kept_root:
        raise UserError(f"{root} has {kept_root.name} but no {TRAIN}; {LAYOUT}")
    return root, None


def printable(name: str) -> str:
    """A name on one line, with unprintable characters as "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _by_class(root: Path, left_out: Counter[str]) -> dict[str, list[str]]:
    """The image files below each folder of a folder, in the order of their names; what else is
    there is counted by kind.
    """
    classes: dict[str, list[str]] = {}
    for name in sorted(_names(root)):
        path = root / name
        leads = path.exists() and not root.resolve().is_relative_to(path.resolve())
        if path.is_symlink() and not leads:
            left_out["link that leads nowhere or up"] += 1
        elif path.is_dir():
            classes[name] = sorted(_files(path, left_out))
    return classes


def _files(folder: Path, left_out: Counter[str]) -> Iterator[str]:
    def unreadable(_: OSError) -> None:
        left_out["folder that cannot be read"] += 1

    for here, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for _link in (name for name in folders if os.path.islink(os.path.join(here, name))):
            left_out["link to a folder"] += 1
        for name in (name for name in files if not name.startswith(".")):
            path, suffix = os.path.join(here, name), os.path.splitext(name)[1].lower()
            if suffix in SUFFIXES and os.path.isfile(path):  # opening a pipe would never end
                yield path
            else:
                left_out[suffix or "no suffix"] += 1


def _names(folder: Path) -> list[str]:
    """What is in a folder and not hidden. UserError when it cannot be read."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise UserError(f"folder {folder} cannot be read: {error.strerror}") from None


def _split(pictures: Sequence[ImageFile], root: Path) -> tuple[list[ImageFile], list[ImageFile]]:
    """Of each class HELD_OUT_SHARE is held out, at least one image where there are two.

    Chosen by a hash of the name, so that the same images are held out on every machine.
    """

    def rank(picture: ImageFile) -> bytes:
        name = os.path.relpath(picture.path, root).encode(errors="surrogateescape")
        return hashlib.sha256(name).digest()

    held_out: set[ImageFile] = set()
    by_label: dict[int, list[ImageFile]] = {}
    for picture in pictures:
        by_label.setdefault(picture.label, []).append(picture)
    for some in by_label.values():
        count = max(1, round(HELD_OUT_SHARE * len(some))) if len(some) > 1 else 0
        held_out.update(sorted(some, key=rank)[:count])
    return [p for p in pictures if p not in held_out], [p for p in pictures if p in held_out]
