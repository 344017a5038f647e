"""The break-even map as text: channels down, image and batch across."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from kernels import OPS
from microbench import fmt
from microbench.break_even import BASELINES, gain, library_or_best, subject_of
from microbench.report.arms import arms_of
from microbench.report.table import Column, Row, Table, screen
from microbench.results.types import Result, Run

Place = tuple[str, str]  # image, batch
ACROSS = ("image", "batch")
# A letter a cause, beside the number.
CAUSES = {"launch": "l", "memory": "m", "layout": "t", "alignment": "a", "waves": "w",
          "compute": "c", "power": "p", "mixed": "-", "no hardware": "n"}  # fmt: skip


def is_map(run: Run) -> bool:
    """Whether the run searched for a boundary instead of measuring every cell."""
    return "payoff" in run.command


def _maps(run: Run) -> Iterator[tuple[str, str, str, list[Result]]]:
    """(subject, precision, baseline, results) of each map: one for each baseline and remaining
    setting.
    """
    for name in arms_of(run).asked:
        subjects: dict[str, list[Result]] = {}
        for result in library_or_best([r for r in run.results if r.case.precision_name == name]):
            subjects.setdefault(subject_of(result, run, without=ACROSS), []).append(result)
        for subject, found in subjects.items():
            for baseline in BASELINES:
                if any(baseline in r.speedup for r in found):
                    yield subject, name, baseline, found


def map_tables(run: Run, width: int) -> list[Text]:
    """Tables of times faster, with a letter for the bottleneck, at most `width` characters wide."""
    lines: list[Text] = []
    for subject, name, baseline, found in _maps(run):
        lines += _map(f"{subject} {name} against {baseline}", found, baseline, width)
    if not lines:
        return []
    key = ", ".join(f"{letter} {cause}" for cause, letter in CAUSES.items())
    notes = (
        "times faster; = no difference seen; . not measured (same side of break-even)",
        "after the slash, the bottleneck:",
        f"  {key}",
    )
    return [*lines, *(Text(note, "dim") for note in notes)]


def _map(title: str, results: Sequence[Result], baseline: str, width: int) -> list[Text]:
    found: dict[Place, dict[str, Result]] = {}  # by size
    for result in results:
        found.setdefault(_place(result), {})[fmt.size(result.case)] = result
    places = sorted(found, key=lambda place: tuple(map(_number, place)))
    sizes = sorted({size for by_size in found.values() for size in by_size}, key=_number)
    most = max(1, (width - 12) // 7)
    lines: list[Text] = []
    for some in (places[i : i + most] for i in range(0, len(places), most)):
        table = Table(
            [
                Column[str]("image\nbatch", lambda size: size, right=True, bold=True),
                *(Column("\n".join(p), _cells(found[p], baseline), right=True) for p in some),
            ]
        )
        table.block("", map(Row, reversed(sizes)))
        lines += [Text(fmt.clean(title), "bold"), *screen(table, width).lines, Text()]
    return lines


def _cells(by_size: Mapping[str, Result], baseline: str) -> Callable[[str], str]:
    return lambda size: _cell(by_size.get(size), baseline)


def _place(result: Result) -> Place:
    setting = OPS[result.case.op].setting(result.case)
    return setting["image"], setting["batch"]


def _number(text: str) -> int:
    return int(text.split("x")[0])


def _cell(result: Result | None, baseline: str) -> str:
    ratio = result.speedup.get(baseline) if result else None
    if result is None or ratio is None:
        return "."
    sign = "=" if ratio.no_difference else ""
    cause = CAUSES.get(result.bound or "", "")
    return f"{sign}{ratio.ratio:.2g}{f'/{cause}' * bool(cause)}"


def map_verdict(run: Run) -> list[str]:
    """The break-even width of the precision, over all image and batch sizes."""
    return [
        _summary(f"{subject}: " * bool(subject), name, baseline, _starts(found, baseline))
        for subject, name, baseline, found in _maps(run)
    ]


def _starts(results: Sequence[Result], baseline: str) -> Mapping[Place, int | None]:
    """The boundary of every column: the narrowest measured width from which all are faster."""
    columns: dict[Place, list[Result]] = {}
    for result in results:
        if baseline in result.speedup:
            columns.setdefault(_place(result), []).append(result)
    starts: dict[Place, int | None] = {}
    for column, found in columns.items():
        start: int | None = None
        for result in sorted(found, key=lambda r: -r.flops):
            if gain(result.speedup[baseline]) != "faster":
                break
            start = _number(fmt.size(result.case))
        starts[column] = start
    return starts


def _summary(subject: str, name: str, baseline: str, starts: Mapping[Place, int | None]) -> str:
    known = [start for start in starts.values() if start is not None]
    never = len(starts) - len(known)
    parts = [f"from {width} channels up for {known.count(width)}" for width in sorted(set(known))]
    if never:
        parts.append(f"at no width for {never}")
    parts[0] += f" of {len(starts)} image and batch sizes"
    return f"{subject}{name} is faster than {baseline} {'; '.join(parts)}."
