"""The line of the user's script that made the CPU wait for the GPU, from the Python stack."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from e2e.profile.idle import idle_term
from e2e.profile.pieces import Piece
from e2e.profile.reader import Recording, Span
from e2e.results.terms import SYNC

CALLED_FROM = "CallFrom"  # "train.py:88", since torch 2.11 or so
# "train.py(80): forward" has the line where the function begins.
_LINE = re.compile(r"(?P<file>[^<].*\.py)(?:\((?P<first>\d+)\): .*|:(?P<line>\d+))", re.DOTALL)
_PACKAGES = re.compile(r"(^|/)(site-packages|dist-packages|python3[.\d]*)/|^torch/")
_OURS = "halfway_watch.py"


def sync_lines(recording: Recording, pieces: Sequence[Piece]) -> Mapping[str, int]:
    """Nanoseconds of these pieces of synchronisation by line ("train.py:88"); {} without a stack.

    Of a path only the file's name is kept.
    """
    syncs = sorted(_with_stack(recording), key=lambda found: found[0].start)
    starts = [span.start for span, _ in syncs]
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        last = bisect_left(starts, piece.end) - 1  # the call that this time is the price of
        if last >= 0 and (line := _users_line(syncs[last][1])):
            found[line] += piece.ns
    return found


def _with_stack(recording: Recording) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Each synchronisation with the Python functions that are open where it begins."""
    syncs = [span for span in recording.launches if idle_term(span) == SYNC]
    wanted = {id(span) for span in syncs}
    lanes = {span.lane for span in syncs}
    spans = [span for span in recording.stack if span.lane in lanes]
    open_now: dict[str, list[Span]] = defaultdict(list)
    for span in sorted([*spans, *syncs], key=lambda span: (span.start, -span.end)):
        inside = [other for other in open_now[span.lane] if other.end > span.start]
        if id(span) in wanted:
            yield span, tuple(inside)
        else:
            inside.append(span)
        open_now[span.lane] = inside


def _users_line(stack: Sequence[Span]) -> str:
    """The innermost line outside torch, the standard library and other packages; "" for none."""
    for span in reversed(stack):
        for text in (span.args.get(CALLED_FROM), span.name):
            match = _LINE.fullmatch(text) if isinstance(text, str) else None
            if match and _is_users(match["file"]):
                return f"{PurePath(match['file']).name}:{match['line'] or match['first']}"
    return ""


def _is_users(file: str) -> bool:
    path = PurePath(file)
    library = len(path.parts) == 1 and path.stem in sys.stdlib_module_names
    return not (library or path.name == _OURS or _PACKAGES.search(file))
