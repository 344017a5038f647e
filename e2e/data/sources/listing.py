"""Which images a folder holds, of which classes, and which of them are held out."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.data.types import Picture
from microbench.errors import UserError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)
MOST_KINDS = 5  # of other files that a note names
TRAIN = "train"
HELD_OUT = ("val", "valid", "validation", "test")  # the first one there is taken
LAYOUT = "expected are train/CLASS/*.jpg and val/CLASS/*.jpg in it, or CLASS/*.jpg"
HELD_OUT_SHARE = 0.1  # where no folder says what to hold out
# Looking into a file takes 10 us when its folder is cached and milliseconds when it is not: of more
# files than this only the sizes are looked at, and the rest is found out when they are loaded.
MAX_OPENED = 50_000
SIGNATURES = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*",
    b"P1", b"P2", b"P3", b"P4", b"P5", b"P6",
)  # fmt: skip


@dataclass(frozen=True)
class Listing:
    """The images of a folder. `broken` maps paths of files that are no images to the reasons."""

    root: Path
    classes: tuple[str, ...]
    train: tuple[Picture, ...]
    held_out: tuple[Picture, ...]
    broken: dict[str, str]
    notes: tuple[str, ...]


def list_images(root: Path) -> Listing:
    """The images below a folder. UserError if it is missing, empty or laid out otherwise.

    The order and the held-out part depend on names alone, not on the file system.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise UserError(f"{root} {what}; {LAYOUT}")
    if not _entries(root):
        raise UserError(f"{root} is empty; {LAYOUT}")
    train_root = root / TRAIN if (root / TRAIN).is_dir() else root
    kept_root = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
    if kept_root is not None and train_root is root:
        raise UserError(f"{root} has {kept_root.name} but no {TRAIN}; {LAYOUT}")
    left_out, unread = Counter[str](), Counter[str]()
    found = _by_class(train_root, left_out, unread)
    classes = tuple(name for name, paths in found.items() if paths)
    if not classes:
        raise UserError(f"{train_root} has no class folders with images; {LAYOUT}")
    notes = [f"no image in {train_root / name}" for name, paths in found.items() if not paths]
    if len(classes) == 1:
        notes.append(f"only one class, {classes[0]}: accuracy is meaningless")
    train = _labelled(found, classes)
    held_out: list[Picture] = []
    if kept_root:
        held_out = _labelled(_known_only(kept_root, classes, left_out, unread), classes)
    notes += _left_out_notes(left_out)
    notes += [f"left out, {what}: {count:,}" for what, count in unread.items()]
    files = [picture.path for picture in (*train, *held_out)]
    reasons = ((path, _trouble(path, opened=len(files) <= MAX_OPENED)) for path in files)
    broken = {path: reason for path, reason in reasons if reason}
    train = [picture for picture in train if picture.path not in broken]
    held_out = [picture for picture in held_out if picture.path not in broken]
    if not held_out:
        train, held_out = _split(train, root)
        notes.append(f"no {HELD_OUT[0]} images: {len(held_out):,} of {TRAIN} are held out instead")
    if not train or not held_out:
        first = next((f", {printable(path, root)} ({why})" for path, why in broken.items()), "")
        raise UserError(
            f"{root} has too few images: {len(train)} for training, {len(held_out)} held out, "
            f"{len(broken)} broken{first}"
        )
    return Listing(root, classes, tuple(train), tuple(held_out), broken, tuple(notes))


def _left_out_notes(left_out: Counter[str]) -> list[str]:
    """A note on the files in class folders without the suffix of an image: they are not loaded."""
    if not left_out:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in left_out.most_common(MOST_KINDS))
    more = f" and {len(left_out) - MOST_KINDS} more kinds" if len(left_out) > MOST_KINDS else ""
    return [f"left out, for their names are no images': {printable_name(kinds)}{more}"]


def printable(path: str, root: Path) -> str:
    """A file's name below a folder, on one line, unprintable characters as "?"."""
    return printable_name(os.path.relpath(path, root))


def printable_name(name: str) -> str:
    """A name with unprintable characters as "?"."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _by_class(root: Path, left_out: Counter[str], unread: Counter[str]) -> dict[str, list[str]]:
    """The image files below each folder of a folder, in the order of their names; what else is
    there is counted by kind, and folders that cannot be read or are links that lead nowhere or up.
    """
    names: list[str] = []
    for entry in _entries(root):
        leads = _leads(entry)
        if leads is None or (leads and entry.is_symlink() and _is_above(entry, root)):
            unread["links that lead nowhere, or to a folder above"] += 1
        elif leads:
            names.append(entry.name)
    return {name: sorted(_files(root / name, left_out, unread)) for name in sorted(names)}


def _leads(entry: os.DirEntry[str]) -> bool | None:
    """Whether it is a folder or a link to one; None for a link that leads nowhere."""
    try:
        return entry.is_dir() or (None if entry.is_symlink() and not entry.is_file() else False)
    except OSError:  # links in a circle
        return None


def _is_above(link: os.DirEntry[str], folder: Path) -> bool:
    return folder.resolve().is_relative_to(Path(link.path).resolve())


def _files(folder: Path, left_out: Counter[str], unread: Counter[str]) -> Iterator[str]:
    try:
        entries = _entries(folder)
    except UserError:
        unread["folders that cannot be read"] += 1
        return
    for entry in entries:
        suffix = os.path.splitext(entry.name)[1].lower()
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), left_out, unread)
        elif suffix in SUFFIXES:
            yield entry.path
        else:
            left_out["link to a folder" if _leads(entry) else suffix or "no suffix"] += 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder and not hidden. UserError when it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(f"folder {folder} cannot be read: {error.strerror}") from None


def _known_only(
    root: Path, classes: Sequence[str], left_out: Counter[str], unread: Counter[str]
) -> dict[str, list[str]]:
    found = {name: paths for name, paths in _by_class(root, left_out, unread).items() if paths}
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise UserError(f"{root} has classes that the train folder lacks: {', '.join(unknown[:3])}")
    return found


def _labelled(found: dict[str, list[str]], classes: Sequence[str]) -> list[Picture]:
    return [
        Picture(path, label) for label, name in enumerate(classes) for path in found.get(name, [])
    ]


def _split(pictures: Sequence[Picture], root: Path) -> tuple[list[Picture], list[Picture]]:
    """Of each class HELD_OUT_SHARE is held out, at least one image where there are two.

    Chosen by a hash of the name, so that the same images are held out on every machine.
    """

    def rank(picture: Picture) -> bytes:
        return hashlib.sha256(
            os.path.relpath(picture.path, root).encode(errors="surrogateescape")
        ).digest()

    held_out: set[str] = set()
    by_label: dict[int, list[Picture]] = {}
    for picture in pictures:
        by_label.setdefault(picture.label, []).append(picture)
    for some in by_label.values():
        count = max(1, round(HELD_OUT_SHARE * len(some))) if len(some) > 1 else 0
        held_out.update(picture.path for picture in sorted(some, key=rank)[:count])
    return (
        [picture for picture in pictures if picture.path not in held_out],
        [picture for picture in pictures if picture.path in held_out],
    )


def _trouble(path: str, opened: bool) -> str | None:
    """What is wrong with a file that is no image, as far as it is quick to see."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return "not a file"
        if not status.st_size:
            return "empty"
        if not opened:
            return None
        with open(path, "rb", buffering=0) as file:
            head = file.read(12)
    except OSError as error:
        return error.strerror or "unreadable"
    webp = head[:4] == b"RIFF" and head[8:] == b"WEBP"
    return None if webp or head.startswith(SIGNATURES) else "not an image"
