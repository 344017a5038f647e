"""What is to be made: how many images of how many classes, and which file each of them is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from e2e.data.synthetic_jpeg.class_attributes import CLASSES
from microbench.errors import UserError

TRAIN, HELD_OUT = "train", "val"
MOST_IMAGES = 10_000_000
HELD_OUT_OF = 10  # rounds of all classes, in one of which the images are held out
HELD_OUT_ROUND = 1  # the second, so that every class has one of each
NAME = re.compile(r"(\d{8})\.jpg")


@dataclass(frozen=True)
class Plan:
    """Images are numbered from 0 and the classes take turns: a shorter plan is a part of it."""

    images: int
    classes: int
    seed: int

    def label(self, index: int) -> int:
        """The class of an image."""
        return index % self.classes

    def is_held_out(self, index: int) -> bool:
        """Whether an image is one of val."""
        return index // self.classes % HELD_OUT_OF == HELD_OUT_ROUND

    def held_out_images(self) -> int:
        """How many images are held out."""
        return sum(map(self.is_held_out, range(self.images)))

    def path(self, index: int) -> str:
        """An image's file below the folder; names of classes sort as their numbers do."""
        return f"{self.folder(self.label(index), self.is_held_out(index))}/{index:08}.jpg"

    def folder(self, label: int, held_out: bool) -> str:
        """The folder of a class, to train on or held out."""
        return f"{HELD_OUT if held_out else TRAIN}/class-{label:04}"

    def index_of(self, path: str) -> int | None:
        """The number of the image whose file this is; None when it is no image's."""
        found = NAME.fullmatch(PurePosixPath(path).name)
        index = int(found[1]) if found else self.images
        return index if index < self.images and path == self.path(index) else None

    def in_words(self) -> str:
        """ "200 images of 10 classes, seed 1"."""
        return f"{self.images:,} images of {self.classes:,} classes, seed {self.seed}"


def checked_plan(images: int, classes: int, seed: int) -> Plan:
    """The plan. UserError for what cannot be made."""
    if not 1 <= classes <= CLASSES:
        raise UserError(f"--classes takes 1 to {CLASSES:,}, not {classes:,}")
    if images < 2 * classes:
        raise UserError(
            f"--images {images:,} is too few: each of {classes:,} classes needs one to train on "
            f"and one held out, {2 * classes:,} in all"
        )
    if images > MOST_IMAGES:
        raise UserError(f"--images takes at most {MOST_IMAGES:,}, not {images:,}")
    if seed < 0:
        raise UserError(f"--seed starts at 0, not {seed}")
    return Plan(images, classes, seed)
