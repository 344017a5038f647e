"""Parses sizes as people write them, lists of names, and files of shapes.

`256..8192` doubles, `64..1024:+32` steps, `64..4096:*4` multiplies, `63,64,65` lists, and numbers
joined by x are one size of several dimensions: `4096x11008x4096` is MxNxK, `64x512x512x128` a batch
of 64. Commas mix them. `--shapes FILE` takes problems from a CSV file, a line each. Its columns are
the op's: GEMM has m, n, k and perhaps batch, layout; what is missing or empty is as usual.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernels import OPS
from kernels.case import Case
from kernels.conv.shape import MOST_DIGITS, by_axis
from kernels.files import read_regular
from kernels.messages import suggest
from kernels.precision import precision
from kernels.problem import Problem
from microbench.errors import UserError

Shape = tuple[int, ...]
MAX_SIZES = 4096
MOST_SAID = 12  # names that an error lists
_NUMBER = rf"(-?\d{{1,{MOST_DIGITS}}})"
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}(?::([+*]){_NUMBER})?")
NUMBERS = "32, 8..256 or 1..16:+1"
_FORMS = {
    "--sizes": "256..8192, 64..1024:+32, 63,64,65, MxNxK such as 4096x11008x4096 or BxMxNxK",
    "--channels": "8..2048, 1..72:+1, 60,64 or CxK such as 64x256",
    "--heads": "16x64 or, with key/value heads in between, 32x8x128",
    "--image": "28, 7..56 or HxW such as 28x56",
    "--kernel": "3, 1,3 or RxS such as 1x7",
}


@contextmanager
def refused(about: str, between: str = ": ") -> Generator[None]:
    """A ValueError within is a UserError that says what it is about."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{about}{between}{error}") from None


@dataclass(frozen=True)
class Group:
    """The variants of one comparison: the same problem in several precisions and back ends."""

    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """The identity of the problem, which all cases share."""
        return self.cases[0].group


def parse_sizes(text: str, option: str = "--sizes", rank: int = 3, *, more: int = 0) -> list[Shape]:
    """The sizes in the text, each of `rank` numbers, or up to `more` of them before these, in
    order, without repeats.

    One number stands for all `rank` of them. UserError for what cannot be read, and above
    MAX_SIZES.
    """
    text = " ".join(text.split())
    shapes: list[Shape] = []
    for part in text.split(","):
        shapes += _shapes(part.strip(), text, option, rank, more)
    if len(shapes) > MAX_SIZES:
        raise UserError(f"{option} {text}: {len(shapes)} sizes; one run takes at most {MAX_SIZES}")
    return list(dict.fromkeys(shapes))


def parse_numbers(text: str, option: str) -> list[int]:
    """The numbers in the text, in order, without repeats. UserError as in `parse_sizes`."""
    return [shape[0] for shape in parse_sizes(text, option, rank=1)]


def _shapes(part: str, whole: str, option: str, rank: int, more: int) -> list[Shape]:
    """The sizes of one part of a list: the text between two commas."""
    forms = f"write {_FORMS[option] if rank > 1 else NUMBERS}"
    if not part:
        raise UserError(f"{option} {whole!r} has an empty part; {forms}")
    about = f"{option} {part}"
    if match := _RANGE.fullmatch(part):
        return [(n,) * rank for n in _expanded(match, about)]
    if re.fullmatch(_NUMBER, part):
        return [(_positive(part, about),) * rank]
    numbers = part.split("x")
    if 1 < rank <= len(numbers) <= rank + more and all(re.fullmatch(_NUMBER, n) for n in numbers):
        return [tuple(_positive(number, about) for number in numbers)]
    shown = part if len(part) <= 40 else f"{part[:40]}..."
    raise UserError(f"{option}: cannot read {shown!r}; {forms}")


def _expanded(match: re.Match[str], about: str) -> list[int]:
    start, end = (_positive(match[i], about) for i in (1, 2))
    if start > end:
        raise UserError(f"{about}: the range runs backwards; write {end}..{start}")
    sign, step = match[3] or "*", int(match[4] or 2)
    if step < (2 if sign == "*" else 1):
        raise UserError(f"{about}: the step {sign}{step} never reaches the end")
    sizes = [start]
    while (following := sizes[-1] * step if sign == "*" else sizes[-1] + step) <= end:
        sizes.append(following)
        if len(sizes) > MAX_SIZES:
            raise UserError(f"{about}: more than {MAX_SIZES} sizes; use a larger step")
    return sizes


def _positive(number: str, about: str) -> int:
    if int(number) < 1:
        raise UserError(f"{about}: a size must be at least 1, not {int(number)}")
    return int(number)


def parse_names(text: str, choices: Sequence[str], option: str) -> list[str]:
    """The names in a comma-separated list. UserError, with the choices, if unknown or none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} is empty; choose from {', '.join(choices)}")
    for name in names:
        if name not in choices:
            listed = ", ".join(choices[:MOST_SAID]) + ", ..." * (len(choices) > MOST_SAID)
            raise UserError(f"{option}: unknown {name!r}; choose from {listed}")
    return list(dict.fromkeys(names))


def parse_axes(text: str, option: str) -> tuple[int, int]:
    """(of rows, of columns) of a number, or of a pair as 1x2. UserError for another text."""
    with refused(option, " "):
        return by_axis(text)


def parse_number(text: str, name: str) -> int:
    """The number. UserError, with `what` must be one, for another text."""
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UserError(f"{name}, not {text!r}")
    return int(text)


def parse_precisions(text: str, option: str = "--dtype") -> list[str]:
    """Precision names of a comma-separated list, aliases resolved. UserError: unknown, or none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option} is empty; try {option} fp16")
    with refused(option):
        return list(dict.fromkeys(precision(part).name for part in parts))


# ---------------------------------------------------------------- --shapes FILE


def read_shapes(op: str, file: Path) -> list[Problem]:
    """The problem of each line, in order, without repeats.

    UserError, with the line's number, for what cannot be read or is no such problem.
    """
    problems: dict[Problem, None] = {}
    for number, row in _rows(OPS[op].problem, file):
        where = f"--shapes {file.name}, line {number}"
        try:
            problems[_problem(OPS[op].problem, row, where)] = None
        except ValueError as error:
            raise UserError(str(error)) from None
    if not problems:
        raise UserError(f"--shapes {file.name} has no shape")
    if len(problems) > MAX_SIZES:
        raise UserError(f"--shapes {file.name}: {len(problems)} shapes; a run takes {MAX_SIZES}")
    return list(problems)


def _rows(kind: type[Problem], file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, column -> text) of each line; lines that begin with # are left out."""
    try:
        text = read_regular(file).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else "it is not text"
        raise UserError(f"--shapes {file}: cannot read it ({why})") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1)
             if line.strip() and not line.startswith("#")]  # fmt: skip
    if not lines:
        return
    names = [name.strip().lower() for name in lines[0][1].split(",")]
    known = (*kind.NUMBERS, *kind.USUAL)
    for name in names:
        if name not in known:
            near = suggest(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"--shapes {file.name}: unknown column {name!r}{near}")
    if len(set(names)) < len(names):
        raise UserError(f"--shapes {file.name} has a column twice")
    lacking = [name for name in kind.NUMBERS if name not in names]
    if lacking:
        raise UserError(f"--shapes {file.name} lacks the column {lacking[0]}")
    for number, line in lines[1:]:
        values = line.split(",")
        if len(values) != len(names):
            raise UserError(
                f"--shapes {file.name}, line {number}: {len(values)} values for "
                f"{len(names)} columns"
            )
        yield number, {n: v.strip() for n, v in zip(names, values, strict=True) if v.strip()}


def _problem(kind: type[Problem], row: Mapping[str, str], where: str) -> Problem:
    from microbench.results.codec import decode

    named: dict[str, object] = {
        name: int(value) if value.isdecimal() and len(value) <= MOST_DIGITS else value
        for name, value in {**kind.USUAL, **row}.items()
    }
    for name in kind.NUMBERS:
        named[name] = parse_number(row.get(name, ""), f"{where}: {name} must be a number")
    return decode(kind, kind.fields_of(named), where)
