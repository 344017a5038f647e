"""Folders of images with something wrong in them: left out and counted, or refused in one line."""

from __future__ import annotations

import os
import pickle
import random
import sys
from contextlib import suppress
from pathlib import Path

from .command_lines import prepare
from .ends import picture_folders
from .forks import Attempt, Kind, here
from .hostile import TEXTS
from .judge import changed, files_in
from .processes import run

TRAINED = 0.02  # of the folders are loaded too, by a process of its own
LOADER = ("-m", "e2e", "loader", "--workers", "1", "--batch", "4", "--budget", "0.5", "--backend",
          "torchvision", "--device", "cpu", "--data", "folder:data")  # fmt: skip


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One folder, listed; now and then loaded."""
    from e2e.data.sources import cifar10
    from e2e.data.sources.listing import list_images
    from microbench.errors import UserError

    data = folder / "data"
    picture_folders(data, rng.randint(1, 3), rng.choice((0, 1, 2, 12)))
    data.mkdir(exist_ok=True)
    deeds = [rng.choice(DEEDS) for _ in range(rng.choice((1, 1, 2, 4)))]
    for deed in deeds:
        _done(rng, deed, data)
    reads = cifar10.read if "pickle" in deeds else list_images
    before = files_in(folder.parent)

    def use(_words: list[str]) -> int:
        try:
            found = reads(data)
            print(*getattr(found, "notes", ()), sep="\n")
        except UserError as error:
            from microbench.streams import message

            print(message(f"error: {error}"), file=sys.stderr)
            return 2
        return 0

    complaints = here(use, "list", []).complaints()
    wrong = [*complaints, *changed(before, files_in(folder.parent), ())]
    if rng.random() < TRAINED and not wrong:
        found = run(LOADER, folder, limit_s=90)
        wrong = [f"loaded: {one}" for one in found.outcome.complaints()]
        wrong += [f"a process is left: {command}" for command in found.left]
    return Attempt(f"{data.name}: {', '.join(deeds)}", wrong)


DEEDS = (
    "link loop", "dangling link", "link to itself", "empty", "cut off", "text", "huge header",
    "pipe", "folder for a picture", "odd name", "long name", "no folder", "a file", "one class",
    "pickle", "socket", "deep", "wrong bytes", "hidden", "outside", "device",
)  # fmt: skip


def _done(rng: random.Random, deed: str, data: Path) -> None:
    """Damage a folder; what cannot be done any more is left out."""
    with suppress(OSError, ValueError):
        _damage(rng, deed, data)


def _damage(rng: random.Random, deed: str, data: Path) -> None:
    some = sorted(data.glob("class*"))
    home = rng.choice(some) if some else data
    pictures = sorted(one for one in home.glob("*.jpg") if one.is_file() and not one.is_symlink())
    picture = rng.choice(pictures) if pictures else home / "new.jpg"
    content = picture.read_bytes() if pictures else b"\xff\xd8\xff"
    i = rng.randrange(len(content))
    header = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\x7f\xff\xff\xff" * 2 + b"\x08\x02\0\0\0" + b"x" * 9
    )
    {
        "link loop": lambda: (home / "again").symlink_to(data),
        "dangling link": lambda: (home / "gone.jpg").symlink_to("nowhere.jpg"),
        "link to itself": lambda: (data / "self").symlink_to("self"),
        "empty": lambda: picture.write_bytes(b""),
        "cut off": lambda: picture.write_bytes(content[:i]),
        "text": lambda: picture.write_text("no picture"),
        "huge header": lambda: picture.write_bytes(header),
        "pipe": lambda: os.mkfifo(home / "pipe.jpg"),
        "folder for a picture": lambda: (home / "folder.jpg").mkdir(),
        "odd name": lambda: (home / rng.choice(TEXTS).replace("/", "_")).with_suffix(
            ".jpg").write_bytes(content),
        "long name": lambda: (home / ("x" * 250 + ".jpg")).write_bytes(content),
        "no folder": lambda: data.rename(data.with_name("other")),
        "a file": lambda: (data.rename(data.with_name("other")), data.write_text("x")),
        "one class": lambda: [one.rename(data.parent / one.name) for one in some[1:]],
        "pickle": lambda: (data / "data_batch_1").write_bytes(
            pickle.dumps({"data": content, "labels": [1]}) if i % 2 else content),
        "socket": lambda: os.mknod(home / "socket.jpg", 0o140644),
        "deep": lambda: (home / "/".join("d" * 40)).mkdir(parents=True),
        "wrong bytes": lambda: picture.write_bytes(content[:i] + b"\xff" * 30 + content[i + 30 :]),
        "hidden": lambda: picture.rename(home / ".hidden.jpg"),
        "outside": lambda: (home / "outside").symlink_to("/proc/self"),
        "device": lambda: (home / "zero.jpg").symlink_to("/dev/zero"),
    }[deed]()  # fmt: skip


DATA_FOLDERS = Kind("data folders", attempt, limit_s=100.0, share=0.06, a_fork=20, prepare=prepare)
