"""Plans the cases that a command measures, grouped by comparison: by its options, or by a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from kernels import OPS
from kernels.case import DATA, Case
from kernels.conv.shape import DIMS, LEAST_BY_AXIS, PASSES, by_axis, of_axes
from kernels.error_words import suggest
from kernels.files import read_regular
from kernels.op import OWN
from kernels.precision import PRECISIONS
from microbench.conditions import Conditions
from microbench.errors import UserError
from microbench.sweep import (
    MAX_SIZES,
    Group,
    parse_choice,
    parse_names,
    parse_numbers,
    parse_precisions,
    parse_sizes,
)

Arm = tuple[str, str]  # precision, back end
MOST_DIGITS = 9  # of a number


def plan_arms(op: str, asked: Conditions, kind: str) -> list[Arm]:
    """The variants, as (precision, back end): baselines by the library, then each asked precision.

    `kind` is the device's, "cuda" or "cpu"; it decides the default back ends. `asked.vs` names the
    baselines ("none" for none). UserError for an unknown precision or back end.
    """
    found = OPS[op]
    if asked.backend is not None:
        named = _backends(op, asked.backend, kind)
    else:
        named = list(found.default_backends(kind))
    baselines = [] if asked.vs == "none" else parse_precisions(asked.vs, "--vs")
    arms = [(p, found.library_backend(kind)) for p in baselines]
    return list(dict.fromkeys([*arms, *product(parse_precisions(asked.dtype), named)]))


def _backends(op: str, text: str, kind: str) -> list[str]:
    """The back ends that are named. A user's own, "module:name", brings the libraries beside it."""
    found = OPS[op]
    ours, own = own_backends(op, text)
    known = (
        parse_names(ours, [*found.backends, "module:function"], "--backend")
        if ours or not own
        else []
    )
    beside = [found.library_backend(kind), *(found.libraries if kind == "cuda" else ())]
    return list(dict.fromkeys([*(beside if own else ()), *known, *own]))


def own_backends(op: str, text: str) -> tuple[str, list[str]]:
    """The back ends of halfway that are named, as a list with commas, and the user's own.

    UserError, in one line, for one of the user's that cannot be had.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    own = [name for name in names if OWN in name]
    for name in own:
        try:
            OPS[op].check_own(name)
        except ValueError as error:
            raise UserError(f"--backend {name}: {error}") from None
    return ",".join(name for name in names if name not in own), own


def group_of(problem: Case, arms: Sequence[Arm]) -> Group:
    """The problem in every variant."""
    return Group(tuple(replace(problem, precision_name=p, backend=b) for p, b in arms))


def plan_gemm(asked: Conditions, kind: str, *, sizes: str, layouts: str) -> list[Group]:
    """Every comparison of a GEMM sweep. UserError for an invalid size, layout, data or variant."""
    arms = plan_arms("gemm", asked, kind)
    parse_choice(asked.data, DATA, "--data")
    return [
        group_of(
            Case("gemm", dict(zip("mnk", shape, strict=True)), *arms[0], layout, asked.data), arms
        )
        for shape in parse_sizes(sizes)
        for layout in parse_names(layouts, OPS["gemm"].layouts, "--layout")
    ]


def plan_conv(
    asked: Conditions,
    kind: str,
    *,
    channels: str,
    passes: str,
    layouts: str,
    image: str,
    batch: str,
    kernel: str,
    stride: str,
    padding: str,
    dilation: str,
    groups: str,
) -> list[Group]:
    """Every comparison of a convolution sweep, and the padded twin of each misaligned width.

    `stride`, `padding` and `dilation` are a number, or rows x columns such as "0x15"; `padding` may
    be "same", `groups` "depthwise". UserError for an invalid value, or sizes that fit no
    convolution.
    """
    dilations = _axes(dilation, "--dilation")
    arms = plan_arms("conv", asked, kind)
    parse_choice(asked.data, DATA, "--data")
    problems: list[Case] = []
    for which, layout, (h, w), n, (r, s), (c, k) in product(
        parse_names(passes, PASSES, "--pass"),
        parse_names(layouts, OPS["conv"].layouts, "--layout"),
        parse_sizes(image, "--image", rank=2),
        parse_numbers(batch, "--batch"),
        parse_sizes(kernel, "--kernel", rank=2),
        parse_sizes(channels, "--channels", rank=2),
    ):
        dims: dict[str, int | str] = {
            "n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s,
            "stride": of_axes(*_axes(stride, "--stride")),
            "padding": _padding(padding, (r, s), dilations), "dilation": of_axes(*dilations),
            "groups": c if groups == "depthwise"
            else _number(groups, "--groups must be a number or depthwise"),
            "pass": which,
        }  # fmt: skip
        case = Case("conv", dims, "fp32", "cudnn", layout, asked.data)
        try:
            OPS["conv"].validate(case)
        except ValueError as error:
            size = OPS["conv"].size(case)
            raise UserError(f"{size} channels, image {h}x{w}: {error}") from None
        problems.append(case)
    twins = _padded(problems, asked.dtype, kind)
    return [*(group_of(problem, arms) for problem in problems), *twins]


def _padding(text: str, kernel: tuple[int, int], dilations: tuple[int, int]) -> int | str:
    if text != "same":
        return of_axes(*_axes(text, "--padding", or_same=" or same"))
    if not all(size % 2 for size in kernel):
        raise UserError(
            f"--padding same needs kernels of odd size, not {kernel[0]}x{kernel[1]}; give a number"
        )
    rows, columns = (step * (size - 1) // 2 for step, size in zip(dilations, kernel, strict=True))
    return of_axes(rows, columns)


def _axes(text: str, name: str, or_same: str = "") -> tuple[int, int]:
    """(of rows, of columns) of a number, or of a pair as 1x2. UserError for another text."""
    try:
        if len(text) <= 2 * MOST_DIGITS:
            return by_axis(text)
    except ValueError:
        pass
    raise UserError(f"{name} must be a number{or_same}, or rows x columns as 1x2, not {text!r}")


def _number(text: str, what: str) -> int:
    """The number. UserError, with `what` must be one, for another text."""
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UserError(f"{what}, not {text!r}")
    return int(text)


def _padded(problems: Sequence[Case], dtypes: str, kind: str) -> list[Group]:
    """The padded twins of misaligned widths, measured for comparison."""
    op = OPS["conv"]
    planned = {problem.group for problem in problems}
    found: dict[str, Group] = {}
    for problem, name in product(problems, parse_precisions(dtypes)):
        if "cudnn" not in PRECISIONS[name].min_capability:
            continue
        case = replace(problem, precision_name=name, backend=op.library_backend(kind))
        twin = op.aligned(case)
        if twin.group not in planned and twin.key not in found:
            found[twin.key] = Group((twin,))
    return list(found.values())


# ---------------------------------------------------------------- --shapes FILE

# GEMM has the columns m, n, k and perhaps layout. Convolution has n, c, k, h, w, r, s and perhaps
# stride, padding, dilation, groups, pass, layout; what is missing or empty is as usual.

USUAL: Mapping[str, Mapping[str, str]] = {
    "gemm": {"layout": "nt"},
    "conv": {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "pass": "fprop",
             "layout": "nhwc"},
}  # fmt: skip
NEEDED: Mapping[str, Sequence[str]] = {
    "gemm": ("m", "n", "k"),
    "conv": tuple(name for name in DIMS if name not in USUAL["conv"]),
}


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
        elif name in LEAST_BY_AXIS:
            dims[name] = of_axes(*_axes(filled[name], f"{where}: {name}"))
        else:
            dims[name] = _number(filled.get(name, ""), f"{where}: {name} must be a number")
    return Case(op, dims, "fp32", OPS[op].library_backend("cuda"), layout, data)
