"""Sizes as people write them, and the cases they make.

`256..8192` doubles, `64..1024:+32` steps, `64..4096:*4` multiplies, `63,64,65` lists, and
`4096x11008x4096` is MxNxK. All can be mixed with commas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernels import OPS
from kernels.case import DATA, Case
from kernels.gemm import LAYOUTS
from kernels.precision import precision
from microbench.errors import UserError

Shape = tuple[int, int, int]
MAX_SIZES = 4096
_NUMBER = r"(-?\d{1,9})"  # more digits than any memory holds would only overflow something
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}(?::([+*]){_NUMBER})?")
_SHAPE = re.compile(rf"{_NUMBER}x{_NUMBER}x{_NUMBER}")
_FORMS = "write 256..8192, 64..1024:+32, 63,64,65 or MxNxK such as 4096x11008x4096"


@dataclass(frozen=True)
class Group:
    """The arms of one comparison: the same problem in several precisions and back ends."""

    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """The identity that its cases share."""
        return self.cases[0].group


def parse_sizes(text: str) -> list[Shape]:
    """(M, N, K) of each size in the text, in order, without repeats; UserError says what is off."""
    text = " ".join(text.split())
    shapes: list[Shape] = []
    for part in text.split(","):
        shapes += _parse_part(part.strip(), text)
    if len(shapes) > MAX_SIZES:
        raise UserError(f"--sizes {text}: {len(shapes)} sizes; at most {MAX_SIZES} in one run")
    return list(dict.fromkeys(shapes))


def _parse_part(part: str, text: str) -> list[Shape]:
    if not part:
        raise UserError(f"--sizes {text!r} has an empty part; {_FORMS}")
    if found := _RANGE.fullmatch(part):
        return [(n, n, n) for n in _expand(part, found)]
    if found := _SHAPE.fullmatch(part):
        m, n, k = (_positive(int(number), part) for number in found.groups())
        return [(m, n, k)]
    if re.fullmatch(_NUMBER, part):
        n = _positive(int(part), part)
        return [(n, n, n)]
    shown = part if len(part) <= 40 else f"{part[:40]}..."
    raise UserError(f"--sizes: cannot read {shown!r}; {_FORMS}")


def _expand(part: str, found: re.Match[str]) -> list[int]:
    start, end = (_positive(int(found[i]), part) for i in (1, 2))
    if start > end:
        raise UserError(f"--sizes {part}: the range runs backwards; write {end}..{start}")
    sign, step = found[3] or "*", int(found[4] or 2)
    if step < (2 if sign == "*" else 1):
        raise UserError(f"--sizes {part}: the step {sign}{step} never reaches the end")
    sizes = [start]
    while (following := sizes[-1] * step if sign == "*" else sizes[-1] + step) <= end:
        sizes.append(following)
        if len(sizes) > MAX_SIZES:
            raise UserError(f"--sizes {part}: more than {MAX_SIZES} sizes; use a larger step")
    return sizes


def _positive(number: int, part: str) -> int:
    if number < 1:
        raise UserError(f"--sizes {part}: sizes start at 1, not {number}")
    return number


def parse_names(text: str, choices: Sequence[str], option: str) -> list[str]:
    """A comma-separated list, each of the choices; UserError names the choices."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} is empty; choose from {', '.join(choices)}")
    for name in names:
        if name not in choices:
            raise UserError(f"{option}: unknown {name!r}; choose from {', '.join(choices)}")
    return list(dict.fromkeys(names))


def parse_choice(text: str, choices: Sequence[str], option: str) -> str:
    """One of the choices, exactly; UserError names them."""
    if text not in choices:
        raise UserError(f"{option} takes one of {', '.join(choices)}, not {text!r}")
    return text


def parse_precisions(text: str, option: str = "--dtype") -> list[str]:
    """Precision names (aliases resolved) of a comma-separated list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option} is empty; try {option} fp16")
    try:
        return list(dict.fromkeys(precision(part).name for part in parts))
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def plan_gemm(
    *, sizes: str, dtypes: str, backends: str | None, layouts: str, data: str, vs: str, kind: str
) -> list[Group]:
    """Every case of a GEMM sweep, grouped so that the arms of a comparison stand together.

    `kind` is the device's, "cuda" or "cpu"; it decides the default back ends. `vs` names the
    baselines ("none" for none); each is measured with the library's back end.
    """
    op = OPS["gemm"]
    asked = parse_precisions(dtypes)
    named = (
        parse_names(backends, list(op.backends), "--backend")
        if backends is not None
        else list(op.default_backends(kind))
    )
    baselines = [] if vs == "none" else parse_precisions(vs, "--vs")
    arms = [(p, op.library_backend(kind)) for p in baselines]
    arms += [(p, backend) for p in asked for backend in named]
    parse_choice(data, DATA, "--data")
    return [
        Group(
            tuple(
                Case("gemm", {"m": m, "n": n, "k": k}, p, backend, layout, data)
                for p, backend in dict.fromkeys(arms)
            )
        )
        for m, n, k in parse_sizes(sizes)
        for layout in parse_names(layouts, LAYOUTS, "--layout")
    ]
