"""JSON values as the types that a dataclass declares; msgspec reads them, and checks every field.

`where` is the name of the field in messages, as "results[3].case". The numbers of a file are finite
(`kernels.files`).
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(kind: type[T], value: object, where: str) -> T:
    """The value as the type `kind`, dataclasses included; fields that it does not have are ignored.

    ValueError names the field that is missing or invalid.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_named(str(error), where)) from None


def _named(message: str, where: str) -> str:
    """msgspec's message with the whole name of the field before it."""
    said, _, place = message.replace("`", "").partition(" - at $")
    place = (where + place).removeprefix(".")
    missing = re.fullmatch(r"Object missing required field (.+)", said)
    if missing:
        return f"{place}.{missing[1]} is missing".removeprefix(".")
    return f"{place or 'the file'}: {said[0].lower()}{said[1:]}"
