"""Checks of training options: each raises UserError in one line for a value that cannot be."""

from __future__ import annotations

import math
import re

from e2e.schedule import parse_schedule
from microbench.errors import UserError

MAX_SCALE = 2.0**24  # beyond it a loss near 1 is no finite float16 gradient any more


def check_smoothing(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise UserError(f"{name} takes a number from 0 to below 1, not {share}")


def check_scale(name: str, scale: float) -> None:
    if not 0 < scale <= MAX_SCALE:
        raise UserError(f"{name} takes a number above 0, at most {MAX_SCALE:.0f}, not {scale:g}")


def check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise UserError(f"{name} takes a number above 0, not {value:g}")


def check_schedule(_: str, text: str) -> None:
    parse_schedule(text)


def check_memory(_: str, text: str) -> None:
    parse_memory(text)


def parse_memory(text: str) -> int:
    """Bytes of such as "16GB" or "15.9 GiB". UserError for what is no size above 0."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*([MG])(i?)B", text.strip(), re.IGNORECASE)
    size = 0
    if found:
        number, prefix, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** (2 if prefix in "mM" else 3))
    if not size:
        raise UserError(f"--memory-limit: cannot read {text!r}; write 16GB or 800MB")
    return size


def check_cpus(name: str, cores: int) -> None:
    from microbench.device.host import usable_cores

    if not 1 <= cores <= usable_cores():
        raise UserError(f"{name} {cores}: this process may use 1 to {usable_cores()} cores")
