"""The break-even map as text: channels down, image and batch across."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from kernels import OPS
from microbench import fmt
from microbench.break_even import BASELINES, Payoff, Row, library_or_best, subject_of
from microbench.report.arms import arms_of
from microbench.report.table import Column, Table, screen
from microbench.report.table import Row as TableRow
from microbench.results.types import Result, Run
from microbench.verdict import uncertain

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
        table.block("", map(TableRow, reversed(sizes)))
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
    mark = fmt.UNCERTAIN * bool(ratio.ruined_pct)
    return f"{sign * (not mark)}{ratio.ratio:.2g}{mark}{f'/{cause}' * bool(cause)}"


def map_verdict(run: Run) -> list[str]:
    """The break-even width of the precision, over all image and batch sizes."""
    lines: list[str] = []
    doubt: dict[str, float] = {}
    for subject, name, baseline, found in _maps(run):
        columns = _columns(subject, name, baseline, found)
        unknown = [payoff for payoff in columns if payoff.uncertain]
        title = f"{subject} {name} against {baseline}".strip()
        for payoff in unknown:
            doubt[title] = max(doubt.get(title, 0), *payoff.uncertain.values())
        if len(unknown) < len(columns):
            known = [payoff for payoff in columns if not payoff.uncertain]
            more = f" ({len(unknown)} more: see below)" if unknown else ""
            lines.append(_summary(f"{subject}: " * bool(subject), known) + more)
    return lines + uncertain(doubt)


def _columns(subject: str, name: str, baseline: str, results: Sequence[Result]) -> list[Payoff]:
    """The widths of each image and batch size, narrowest first."""
    columns: dict[Place, list[Row]] = {}
    for result in sorted(results, key=lambda result: result.flops):
        if ratio := result.speedup.get(baseline):
            columns.setdefault(_place(result), []).append((result, ratio))
    return [Payoff(subject, name, baseline, rows) for rows in columns.values()]


def _summary(subject: str, columns: Sequence[Payoff]) -> str:
    known = [_number(fmt.size(c.from_start[0][0].case)) for c in columns if c.from_start]
    never = len(columns) - len(known)
    parts = [f"from {width} channels up for {known.count(width)}" for width in sorted(set(known))]
    if never:
        parts.append(f"at no width for {never}")
    parts[0] += f" of {len(columns)} image and batch sizes"
    name, baseline = columns[0].precision, columns[0].baseline
    return f"{subject}{name} is faster than {baseline} {'; '.join(parts)}."
