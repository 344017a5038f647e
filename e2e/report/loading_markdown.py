"""Loaders, and recipes fed by them, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.report.joint import Joint, joints
from e2e.report.joint_table import gain_cell
from e2e.report.loaders_table import Telling, ahead, telling_of
from e2e.results.loader_types import Loading
from microbench import fmt
from microbench.results.types import Run

RATES = ("img/s", "±", "img/s a core", "MB/s read")


def loading_markdown(run: Run) -> str:
    """A table of the loaders alone, and one for each picture of recipes and workers."""
    tables = [loaders_markdown(run), *(joint_markdown(joint) for joint in joints(run))]
    return "\n".join(tables)


def loaders_markdown(run: Run) -> str:
    """One row a loader and number of workers; what did not run says why."""
    telling = telling_of(run.of(Loading))
    settings = ["workers", *["batch"] * telling.batch, *["ahead"] * telling.ahead]
    rows = [_loader(loading, telling) for loading in run.of(Loading)]
    rules = ["---", "---", *["---:"] * (len(settings) + len(RATES))]
    return _table(["loader", "files", *settings, *RATES], rules, rows)


def joint_markdown(joint: Joint) -> str:
    """Workers x recipes in images a second, as foretold and as measured."""
    base, *others = joint.recipes
    header = ["workers", "loader alone"]
    for name in joint.recipes:
        header += [f"{fmt.clean(name)}, foretold", "measured", "error"]
    header += [f"{fmt.clean(name)} x {fmt.clean(base)}" for name in others]
    rows: list[list[str]] = []
    for count in joint.workers:
        alone = joint.loading.get(count)
        row = [str(count), fmt.throughput(alone.per_s) if alone and alone.per_s else ""]
        for name in joint.recipes:
            arm = joint.at(name, count)
            told, per_s = (arm.predicted_per_s, arm.per_s) if arm else (None, None)
            row += [fmt.throughput(told) if told else "", fmt.throughput(per_s) if per_s else ""]
            row.append(f"{100 * (told / per_s - 1):+.1f} %" if told and per_s else "")
        for name in others:
            row.append(gain_cell(joint.speedup(name, base, count)))
        rows.append(row)
    return _table(header, ["---:"] * len(header), rows)


def _loader(loading: Loading, telling: Telling) -> list[str]:
    case, per_s, read = loading.case, loading.per_s, loading.bytes_per_s
    name = [fmt.clean(case.loader), "cold" if case.cold else "warm"]
    more = [*[str(case.batch)] * telling.batch, *[ahead(case)] * telling.ahead]
    if per_s is None:
        reason = f"{loading.status}: {fmt.clean(loading.reason or '')}"
        return [*name, reason, *[""] * (len(more) + len(RATES))]
    return [
        *name,
        str(case.workers),
        *more,
        fmt.throughput(per_s),
        fmt.half_interval(per_s, loading.ci95_per_s),
        fmt.throughput(loading.per_s_per_core) if loading.per_s_per_core else "",
        fmt.throughput(read / 1e6) if read is not None else "",
    ]


def _table(header: Sequence[str], rule: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, rule, *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
