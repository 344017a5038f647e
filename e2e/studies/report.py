"""The report of a study: the published tables beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from e2e.report.figures import ratio
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from e2e.studies.cells import COLUMNS, DEVIATION, HALF, HERE, Cell, differing, gain_of, written
from e2e.studies.run import RUNS, read_folder
from e2e.studies.schema import Published, Study
from microbench import fmt
from microbench.errors import UserError
from microbench.report.parts import VERBOSE, Column, Line, Part, Report, Row
from microbench.report.writers import page, to_csv, to_markdown, write_page
from microbench.results.runfile import read_run, write_text
from microbench.results.types import RUINED_PCT, Run

PAGE, TEXT, CELLS = "report.html", "report.md", "cells.csv"
NAMED = ("network", "recipe", "batch", "workers", "loader", "gpus", "compress")
ALWAYS = ("network", "recipe", "batch", "gpus", "data")  # of a case, among all cells
UNSEEN = ("reason", "key", "losses", DEVIATION, HALF)  # of cells, in cells.csv only


def report(out: Path, console: Console) -> int:
    """Write page, Markdown and CSV of a folder from its run files, and print what stands out.

    Returns how many cells were measured. UserError where it holds no study, or cannot be written.
    """
    study = read_folder(out)
    cells = cells_of(study, out)
    run = next(map(read_run, sorted((out / RUNS).glob("*.json"))), None)
    made = _report(study, cells, run)
    write_page(page({"": made}), out / PAGE)
    about = "\n".join(made.about)
    try:
        write_text(f"# {made.title}\n\n{about}\n\n{to_markdown(made).rstrip()}", out / TEXT)
        write_text(to_csv(made).rstrip("\n"), out / CELLS)
    except OSError as error:
        raise UserError(f"cannot write the report in {out} ({error.strerror})") from None
    console.print()
    for line in made.answer:
        console.print(line.text, style="bold")
    console.print(f"Page: {out / PAGE}; also {TEXT} and {CELLS}")
    return sum(cell.measured for cell in cells)


def _report(study: Study, cells: Sequence[Cell], run: Run | None) -> Report:
    """The published tables, then every cell; `run` is one of its runs, for the environment."""
    device = fmt.clean(str(run.device.get("name"))) if run else "nothing yet"
    raw = _raw(cells)
    names = [name for name in (raw[0] if raw else ()) if not name.endswith(UNSEEN)]
    texts = [[_text(name, cell) for name in names] for cell in cells if cell.case]
    every = _table(names, texts, range(names.index("status") + 1 if names else 0, len(names)))
    lost = [f"{c.cell}: {c.status}: {c.reason}." for c in cells if not c.measured]
    measured = [cell for cell in cells if cell.measured]
    data = ", ".join(dict.fromkeys(str(cell.value("data")) for cell in measured))
    return Report(
        f"{study.title or study.name}, on {device}",
        _answer(cells),
        [
            *(_part(table, cells, device) for table in study.published),
            Part("Every cell", *every, [
                f"{CELLS} has them too; halfway show {RUNS}/ID.json has the rest of a run: time by "
                "term, charts, how it scales over GPUs.",
            ], VERBOSE),
            Part("What differs from the original", below=study.differences),
            Part("Not measured", below=lost),
        ],
        [
            *[study.question] * bool(study.question),
            f"Study {study.name}, profile {study.run[0].profile}, data: {data}; "
            f"{fmt.count(len(measured), 'cell')} measured.",
        ],
        device=device,
        raw=[(list(raw[0]) if raw else [], raw)],
    )  # fmt: skip


def cells_of(study: Study, out: Path) -> list[Cell]:
    """All cells of a folder: every result of each run, and a cell for what a run lacks.

    UserError for a damaged file.
    """
    cells: list[Cell] = []
    for run in study.run:
        path = out / RUNS / f"{run.id}.json"
        read = read_run(path) if path.exists() else None
        results = read.others if read else ()
        epochs = read and read.settings.get("training", {}).get("epochs")
        for number, result in enumerate(results, 1):
            values = dict[str, Any]()
            if isinstance(result, Training):
                values |= {name: read_from(result) for name, read_from in COLUMNS.items()}
                values["epochs"] = epochs if result.repeats else None
                if epochs and run.of_epochs and values["iterations_s"] is not None:
                    values["projected_s"] = values["iterations_s"] * run.of_epochs / epochs
            elif isinstance(result, Loading):
                values["per_s"] = result.per_s
            training = result if isinstance(result, Training) else None
            name, reason = f"{run.id}-{number}", result.reason or ""
            cells.append(Cell(name, run.id, result.status, reason, result.case, values, training))
        if not run.done:
            why = run.why or ("broken off" if results else "not run yet")
            cells.append(Cell(run.id, run.id, "not run", why))
    return cells


def _raw(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every cell with the fields of its case and its values, as far as any cell has them."""
    fields = list(dict.fromkeys([*ALWAYS, *differing(cells)]))
    names = [name for name in COLUMNS if any(c.values.get(name) is not None for c in cells)]
    return [
        {"cell": cell.cell, **{name: getattr(cell.case, name, None) for name in fields},
         "status": cell.status, "reason": cell.reason, "key": cell.case.key if cell.case else "",
         **{name: cell.values.get(name) for name in names}}
        for cell in cells
    ]  # fmt: skip


def _answer(cells: Sequence[Cell]) -> list[Line]:
    """What stands out, and what was left out.

    Only a speedup whose interval is wholly above 1, and narrow enough, stands out.
    """
    lines: list[str] = []
    gains = [(gain, c) for c in cells if c.training and (gain := gain_of(c.training))]
    proven = [(g, c) for g, c in gains if g.ci95 and g.ci95[0] > 1 and not g.ruined_pct]
    if proven:
        best, cell = max(proven, key=lambda pair: pair[0].ratio)
        named = ", ".join(cell.words(NAMED))
        lines.append(f"Largest speedup: {ratio(best)} times, {named} ({cell.cell}).")
    elif gains:
        lines.append("No cell is faster than float32 beyond doubt.")
    lost = len({cell.run for cell in cells if not cell.measured})
    if lost:
        lines.append(f"{fmt.count(lost, 'run')} not measured, or not all of it: see below.")
    return [Line("", line) for line in lines]


def _part(published: Published, cells: Sequence[Cell], device: str) -> Part:
    """A row a published row, then a row a cell of its runs; and why some do not compare."""
    ours = [cell for cell in cells if cell.run in published.runs and cell.case]
    keys, columns = published.keys, published.columns
    theirs = {ours: word for word, ours in published.words.items()}  # the author's, by ours
    rows = () if published.template else published.rows
    lines = [[*map(str, row), "published"] for row in rows]
    beside = [name for name in differing(ours) if name not in keys.values()]
    for cell in ours:
        own = [HERE if name == HERE else str(cell.value(name)) for name in keys.values()]
        line = [theirs.get(text, text) for text in own]
        for column in columns:
            text = _text(column.value, cell)
            line.append((text and text + column.unit) if cell.measured else cell.status)
        lines.append([*line, ", ".join([cell.cell, *cell.words(beside)])])
    titles = [*keys, *(column.title for column in columns), "cell"]
    numbers = range(len(keys), len(titles) - 1)
    notes = [f"{HERE}: {device}."]
    if published.template:
        notes.append("The published table is a template without numbers.")
    steps = {repeat.steps for c in ours if c.training for repeat in c.training.repeats}
    if steps:
        notes.append(f"A training here has {' or '.join(f'{n:,}' for n in sorted(steps))} steps.")
    notes += [published.note] * bool(published.note)
    notes += [f"{column.title}: {column.reason}." for column in columns if column.reason]
    notes += dict.fromkeys(f"{cell.cell}: {cell.reason}." for cell in ours if cell.reason)
    if any(text.endswith(fmt.UNCERTAIN) for line in lines for text in line):
        notes.append(f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, too uncertain for a verdict.")
    return Part(published.title, *_table(titles, lines, numbers), notes)


def _table(
    titles: Sequence[str], lines: Sequence[Sequence[str]], numbers: range
) -> tuple[list[Column], list[Row]]:
    """Lines under titles; figures are at `numbers`, as a tuple, so that they are on the right."""
    columns = [
        Column(title, str(i), itemgetter(0) if i in numbers else str)
        for i, title in enumerate(titles)
    ]
    return columns, [
        Row([(text,) if i in numbers else text for i, text in enumerate(line)]) for line in lines
    ]


def _text(name: str, cell: Cell) -> str:
    """A value of a cell, with the deviation of repeats, or the interval of a speedup."""
    if name == "speedup":
        gain = cell.training and gain_of(cell.training)
        return ratio(gain) if gain else ""
    value, deviation = cell.value(name), cell.values.get(name + DEVIATION)
    if value is None:
        return ""
    return written(name, value) + ("" if deviation is None else f" ± {deviation:.2f}")
