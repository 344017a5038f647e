"""The report of a study: the author's tables and claims beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from e2e.report import ranks
from e2e.report.arms import grouped, view_of
from e2e.report.figures import BOTTLENECKS
from e2e.report.ledger import term_words
from e2e.results.baselines import scaled
from e2e.studies import answers
from e2e.studies.answers import Answer, answer
from e2e.studies.cells import NAMED, RAN, UNTESTABLE, Cell, differing
from e2e.studies.figures import figure
from e2e.studies.measures import COLUMNS
from e2e.studies.run import RUNS, STATE, State
from e2e.studies.tables import table_of
from e2e.studies.tasks import Plan
from e2e.studies.types import Claim, Puzzle, Study
from microbench import fmt
from microbench.errors import UserError
from microbench.report.page import report_page, write_page
from microbench.report.table import Column, Part, Row, Table, markdown, records, write_csv
from microbench.results.runfile import write_text
from microbench.results.types import Run

MOST_CAUSES = 3
PAGE, TEXT, CELLS = "report.html", "report.md", "cells.csv"
VERDICTS = {  # (what the test found, what the claim holds if so) -> verdict
    (answers.YES, "confirmed"): "confirmed", (answers.NO, "confirmed"): "contradicted",
    (answers.YES, "contradicted"): "contradicted", (answers.NO, "contradicted"): "confirmed",
}  # fmt: skip

SHOWN = {answers.YES: "shown", answers.NO: "not so"}  # of a hypothesis


@dataclass(frozen=True)
class Found:
    """Everything that a report is made of. `run` is one of the run files; None: none yet."""

    study: Study
    plan: Plan
    state: State
    cells: Sequence[Cell]
    run: Run | None

    @property
    def device(self) -> str:
        """The name of the device."""
        return fmt.clean(str(self.run.device.get("name"))) if self.run else "nothing yet"


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    answer: Answer
    why: str


def judged(study: Study, cells: Sequence[Cell]) -> list[Judged]:
    """The verdict on each claim: confirmed, contradicted, cannot tell, or not testable here."""
    found: list[Judged] = []
    for claim in study.claims:
        said = (
            answer(claim.test, cells) if claim.test else Answer(UNTESTABLE, reason=claim.untestable)
        )
        verdict = VERDICTS.get((said.answer, claim.holds), said.answer)
        why = said.reason
        if claim.cause and said.answer in (answers.YES, answers.NO):
            shown = answer(claim.cause, cells)
            why = claim.because if shown.answer == answers.YES else (
                f"its cause is not shown ({claim.cause.text}: {shown.answer})"
            )  # fmt: skip
        found.append(Judged(claim, verdict, said, why))
    return found


def write_report(found: Found, out: Path) -> list[Part]:
    """Write page, Markdown and CSV into a folder; returns the parts. UserError if it cannot."""
    parts = parts_of(found)
    title = f"{found.study.title}, on {found.device}"
    about = about_of(found)
    said = answer_of(found)
    write_page(report_page(title, about, said, parts, found.run), out / PAGE)
    lines = [f"# {title}", "", *about, "", *(f"**{line}**" for line in said), ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        lines += [markdown(part.table)] if part.table else []
        lines += [f"{line}\n" for line in part.below]
    try:
        write_text("\n".join(lines).rstrip("\n"), out / TEXT)
        write_text(write_csv([records(cells_table(found.cells))]).rstrip("\n"), out / CELLS)
    except OSError as error:
        raise UserError(f"cannot write the report in {out} ({error.strerror})") from None
    return parts


def about_of(found: Found) -> list[str]:
    """What was run: the study's question, its seed, profile and data."""
    state = found.state
    data = ", ".join(dict.fromkeys(str(c.factors.get("data")) for c in found.cells))
    ran = sum(cell.status == RAN for cell in found.cells)
    made = any(cell.generated for cell in found.cells if cell.status == RAN)
    return [
        *([found.study.question] if found.study.question else []),
        f"Study {found.study.name}, profile {state.profile}, data: {data}"
        + " (generated: accuracies are not the author's)" * made
        + f"; {fmt.count(ran, 'cell')} of {len(found.cells)} measured.",
    ]


def answer_of(found: Found) -> list[str]:
    """The answer in three sentences: verdicts, what stands out, what was left out."""
    verdicts = judged(found.study, found.cells)
    counts = {name: sum(j.verdict == name for j in verdicts) for name in
              ("confirmed", "contradicted", answers.UNKNOWN, UNTESTABLE)}  # fmt: skip
    of = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    lines = [f"{fmt.count(len(verdicts), 'claim')}: {of}."] if verdicts else []
    gains = [c for c in found.cells if c.speedup and c.status == RAN]
    if gains:
        best = max(gains, key=lambda cell: cell.speedup[0] if cell.speedup else 0.0)
        assert best.speedup
        lines.append(
            f"Largest measured speedup: {best.speedup[0]:.3g} times, "
            f"{', '.join(best.words(NAMED))} ({best.id})."
        )
    lost = sum(cell.status != RAN for cell in found.cells)
    left_out = [
        *([f"{fmt.count(lost, 'cell')} without a measurement"] if lost else []),
        *([f"{fmt.count(len(found.plan.cuts), 'cut')} for the budget"] if found.plan.cuts else []),
    ]
    if left_out:
        lines.append(f"{' and '.join(left_out)}: listed in the report.")
    return lines


def parts_of(found: Found) -> list[Part]:
    """All parts of the report, in its order."""
    study = found.study
    by_name = {one.table: one for one in study.published}
    parts: list[Part] = []
    for form in study.tables:
        table, below = table_of(form, by_name[form.published], found.cells, found.device)
        parts.append(Part(form.title, table, below))
    for one in study.figures:
        published = by_name.get(one.published)
        try:
            chart = figure(one, published, found.cells, found.device)
            below = [] if chart is not None else ["Not drawn: nothing of it was measured."]
        except UserError as error:
            chart, below = None, [f"No chart: {error}."]
        parts.append(Part(one.title, None, below, chart))
    if study.claims:
        parts.append(Part("What the author says", claims_table(judged(study, found.cells))))
    parts += [_puzzle(one, found.cells) for one in study.puzzles]
    parts += [part for one in study.parts for part in _scaling(one.id, found)]
    parts.append(Part("Every cell", cells_table(found.cells), [f"{CELLS} has all columns."]))
    parts += _left_out(found)
    again = f"python -m e2e study {study.name} --profile {found.state.profile}"
    parts.append(Part("Run it again", None, [
        f"{again}; the report alone: python -m e2e study report DIR.",
        f"{STATE} and {RUNS}/ hold what was measured; sha256 of the study: {study.sha256}.",
    ]))  # fmt: skip
    return parts


def _scaling(part: str, found: Found) -> list[Part]:
    """How a part of the study scales over GPUs, and what its exchange of gradients costs."""
    trainings = [cell.training for cell in found.cells if cell.part == part and cell.training]
    if found.run is None or not scaled(trainings):
        return []
    view = view_of(replace(found.run, others=tuple(trainings)))
    return [
        replace(one, title=f"{one.title}, part {part}", below=one.notes)
        for one in (ranks.scaling_part(view), ranks.exchange_part(view))
    ]


def _left_out(found: Found) -> list[Part]:
    """Cuts, factors that training lacks, what failed, and what differs from the original."""
    parts: list[Part] = []
    if found.plan.cuts:
        columns: list[Column[Any]] = [
            Column(name, partial(_read, name), csv={name: partial(_read, name)})
            for name in ("part", "factor", "asked", "done")
        ]
        rows = [Row(vars(cut)) for cut in found.plan.cuts]
        parts.append(Part("Cut to fit the budget", Table(columns, list(rows))))
    lacking = [f"{name}: {why}." for name, why in found.plan.lacking.items()]
    differences = [*found.study.differences, *lacking]
    if differences:
        parts.append(Part("What differs from the original", None, differences))
    reasons: dict[str, list[str]] = {}
    for cell in found.cells:
        if cell.status != RAN:
            reasons.setdefault(f"{cell.status}: {cell.reason}", []).append(cell.id)
    if reasons:
        lines = [f"{reason}: {', '.join(ids)}." for reason, ids in reasons.items()]
        parts.append(Part("Cells without a measurement", None, lines))
    return parts


def _read(name: str, row: dict[str, Any]) -> str:
    return str(row[name])


def claims_table(found: Sequence[Judged]) -> Table[Judged]:
    """The claims with their verdicts."""

    def column(title: str, read: Callable[[Judged], str], **more: Any) -> Column[Judged]:
        return Column(title, read, csv={title: read}, **more,
                      faint=lambda row: row.verdict == UNTESTABLE)  # fmt: skip

    columns = [
        column("claim", lambda row: row.claim.id, key=True),
        column("verdict", lambda row: row.verdict, bold=True),
        column("measured", lambda row: row.answer.number),
        column("cell", lambda row: row.answer.cell, drop=3),
        column("test", lambda row: row.claim.test.text if row.claim.test else "", drop=2),
        column("why", lambda row: row.why, drop=4),
        column("the author's words", lambda row: row.claim.text, drop=1),
    ]
    return Table(columns, [Row(one) for one in found])


def _puzzle(puzzle: Puzzle, cells: Sequence[Cell]) -> Part:
    """What the author could not explain: what the numbers say, and what our measurements say."""
    below = [f'"{puzzle.text}"']
    below += [f"The published numbers: {puzzle.numbers}"] if puzzle.numbers else []
    if puzzle.test:
        said = answer(puzzle.test, cells)
        verdict = SHOWN.get(said.answer, said.answer).capitalize()
        more = f" ({said.reason})" if said.reason else ""
        number = f", {said.number} in {said.cell}" if said.number else ""
        below.append(f"Hypothesis: {puzzle.answer}. {verdict}{number}{more}.")
    elif puzzle.answer:
        below.append(f"Likely, not tested: {puzzle.answer}")
    if puzzle.untestable:
        below.append(f"Not testable here: {puzzle.untestable}.")
    ours = [cell for cell in cells if cell.part == puzzle.part]
    below += _bottlenecks(ours)
    below += [line for cell in ours for line in _explained(cell)]
    return Part(f"Puzzle {puzzle.id}", None, below)


def _bottlenecks(cells: Sequence[Cell]) -> list[str]:
    """ "Bottleneck data loading: one-1, fp32; one-2, amp." for each bottleneck."""
    limited = [(c.training.limit, c) for c in cells if c.training and c.training.limit]
    names = differing(cells)
    return [
        f"Bottleneck {BOTTLENECKS[limit]}: "
        + "; ".join(", ".join([cell.id, *cell.words(names)]) for cell in those) + "."
        for limit, those in grouped(limited).items()
    ]  # fmt: skip


def _explained(cell: Cell) -> list[str]:
    """The largest terms of the ledger and the causes of a cell."""
    training = cell.training
    if training is None:
        return []
    found: list[str] = []
    inner = sorted(training.ledger[1:-1], key=lambda line: -abs(line.ms))[:MOST_CAUSES]
    if inner:
        terms = ", ".join(f"{term_words(line.term)} {line.ms:+.2f} ms" for line in inner)
        found.append(f"{cell.id}: from {training.ledger_base} to here: {terms}.")
    found += [f"{cell.id}: {one.title}: {one.why}" for one in training.causes[:MOST_CAUSES]]
    return found


def cells_table(cells: Sequence[Cell]) -> Table[Cell]:
    """Every cell with its factors and columns; a column that nothing has is left out."""
    factors = list(dict.fromkeys(name for cell in cells for name in cell.factors))
    others = dict.fromkeys(n for c in cells for n in c.values if n not in COLUMNS)
    names = [
        name
        for name in [*COLUMNS, *others]
        if any(cell.values.get(name) is not None for cell in cells)
    ]

    def value(name: str, cell: Cell) -> Any:
        return cell.values.get(name)

    def text(name: str, cell: Cell) -> str:
        found = cell.values.get(name)
        return "" if found is None else COLUMNS[name].text(found) if name in COLUMNS else (
            fmt.number(found)
        )  # fmt: skip

    def factor(name: str, cell: Cell) -> str:
        return str(cell.factors.get(name, ""))

    hidden = ("why", "accuracy", "losses")
    columns: list[Column[Cell]] = [
        Column("cell", lambda cell: cell.id, key=True, csv={"cell": lambda cell: cell.id}),
        *(Column(name, partial(factor, name), key=True, csv={name: partial(factor, name)})
          for name in factors),
        Column("status", lambda cell: cell.status, csv={
            "status": lambda cell: cell.status, "reason": lambda cell: cell.reason,
        }),
        *(
            Column(
                COLUMNS[name].title if name in COLUMNS else name,
                None if name in hidden else partial(text, name), right=True, drop=9,
                csv={name: partial(value, name)},
            )
            for name in names
        ),
    ]  # fmt: skip
    return Table(columns, [Row(cell) for cell in cells])
