"""`--shapes FILE`: the problems of a sweep from a CSV file, in place of sizes that are crossed.

GEMM has the columns m, n, k and perhaps layout. Convolution has n, c, k, h, w, r, s and perhaps
stride, padding, dilation, groups, pass, layout; what is missing or empty is as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kernels import OPS
from kernels.case import DATA, Case
from kernels.conv.shape import DIMS, PASSES
from kernels.error_words import suggest
from kernels.files import read_regular
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.plans import group_of, plan_arms
from microbench.sweep import MAX_SIZES, Group, parse_choice

USUAL: Mapping[str, Mapping[str, str]] = {
    "gemm": {"layout": "nt"},
    "conv": {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "pass": "fprop",
             "layout": "nhwc"},
}  # fmt: skip
NEEDED: Mapping[str, Sequence[str]] = {
    "gemm": ("m", "n", "k"),
    "conv": tuple(name for name in DIMS if name not in USUAL["conv"]),
}
MOST_DIGITS = 9


def plan_shapes(op: str, asked: Conditions, kind: str, file: Path) -> list[Group]:
    """A comparison for each line of the file, in order, without repeats.

    UserError, with the line's number, for what cannot be read or is no such problem.
    """
    arms = plan_arms(op, asked, kind)
    parse_choice(asked.data, DATA, "--data")
    groups: dict[str, Group] = {}
    for number, row in _rows(op, file):
        where = f"--shapes {file.name}, line {number}"
        case = _case(op, row, where, asked.data)
        try:
            OPS[op].validate(case)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        groups.setdefault(case.group, group_of(case, arms))
    if not groups:
        raise UserError(f"--shapes {file.name} has no shape")
    if len(groups) > MAX_SIZES:
        raise UserError(f"--shapes {file.name}: {len(groups)} shapes; a run takes {MAX_SIZES}")
    return list(groups.values())


def _rows(op: str, file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, column -> text) of each line; lines that begin with # are left out."""
    try:
        text = read_regular(file).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--shapes {file}: cannot read it ({_reason(error)})") from None
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


def _reason(error: Exception) -> str:
    return (error.strerror or "") if isinstance(error, OSError) else "it is not text"


def _case(op: str, row: Mapping[str, str], where: str, data: str) -> Case:
    filled = {**USUAL[op], **row}
    layout = parse_choice(filled.pop("layout"), OPS[op].layouts, f"{where}: layout")
    dims: dict[str, int | str] = {}
    for name in NEEDED["gemm"] if op == "gemm" else (*DIMS, "pass"):
        if name == "pass":
            dims[name] = parse_choice(filled[name], PASSES, f"{where}: pass")
        else:
            dims[name] = _number(filled.get(name, ""), name, where)
    return Case(op, dims, "fp32", OPS[op].library_backend("cuda"), layout, data)


def _number(text: str, name: str, where: str) -> int:
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UserError(f"{where}: {name} must be a number, not {text!r}")
    return int(text)
