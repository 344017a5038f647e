"""--shapes FILE: problems from a CSV file, a line each.

GEMM has the columns m, n, k and perhaps layout. Convolution has n, c, k, h, w, r, s and perhaps
stride, padding, dilation, groups, pass, layout; what is missing or empty is as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kernels import OPS
from kernels.conv import Conv
from kernels.conv.shape import DIMS, LEAST_BY_AXIS, PASSES, ConvShape, of_axes
from kernels.error_words import suggest
from kernels.files import read_regular
from kernels.gemm import Gemm
from kernels.problem import Problem
from microbench.command_line import one_of
from microbench.errors import UserError
from microbench.sweep import MAX_SIZES, parse_axes, parse_number

USUAL: Mapping[str, Mapping[str, str]] = {
    "gemm": {"layout": "nt"},
    "conv": {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "pass": "fprop",
             "layout": "nhwc"},
}  # fmt: skip
NEEDED: Mapping[str, Sequence[str]] = {
    "gemm": ("m", "n", "k"),
    "conv": tuple(name for name in DIMS if name not in USUAL["conv"]),
}


def read_shapes(op: str, file: Path) -> list[Problem]:
    """The problem of each line, in order, without repeats.

    UserError, with the line's number, for what cannot be read or is no such problem.
    """
    problems: dict[Problem, None] = {}
    for number, row in _rows(op, file):
        where = f"--shapes {file.name}, line {number}"
        try:
            problems[_problem(op, row, where)] = None
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
    if not problems:
        raise UserError(f"--shapes {file.name} has no shape")
    if len(problems) > MAX_SIZES:
        raise UserError(f"--shapes {file.name}: {len(problems)} shapes; a run takes {MAX_SIZES}")
    return list(problems)


def _rows(op: str, file: Path) -> Iterator[tuple[int, dict[str, str]]]:
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
    known = (*NEEDED[op], *USUAL[op])
    for name in names:
        if name not in known:
            near = suggest(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"--shapes {file.name}: unknown column {name!r}{near}")
    if len(set(names)) < len(names):
        raise UserError(f"--shapes {file.name} has a column twice")
    lacking = [name for name in NEEDED[op] if name not in names]
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


def _problem(op: str, row: Mapping[str, str], where: str) -> Problem:
    filled = {**USUAL[op], **row}
    layout = filled["layout"]
    one_of(OPS[op].layouts)(f"{where}: layout", layout)

    def number(name: str) -> int:
        return parse_number(filled.get(name, ""), f"{where}: {name} must be a number")

    if op == "gemm":
        return Gemm(*map(number, NEEDED[op]), layout=layout)
    one_of(PASSES)(f"{where}: pass", filled["pass"])
    by_axis = {n: of_axes(*parse_axes(filled[n], f"{where}: {n}")) for n in LEAST_BY_AXIS}
    shape = ConvShape(*map(number, NEEDED[op]), **by_axis, groups=number("groups"))
    return Conv(shape, filled["pass"], layout)
