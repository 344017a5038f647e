"""The summary of a long run: where each precision is faster, and the back ends side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import geometric_mean

from kernels import is_library
from kernels.op import TUNED
from microbench import fmt
from microbench.break_even import Payoff, payoffs
from microbench.libraries import Summary, is_rival, summaries
from microbench.report.arms import arms_of, groups_of
from microbench.report.table import Column, Row, Table
from microbench.results.types import Run

BETTER = "Times faster than the better of the libraries measured at each size"
MOST_BOTTLENECKS = 2
MOST_ROWS = 48  # of a run's table; with more, its screen is a summary


def is_long(run: Run) -> bool:
    """Whether the screen has the summary in place of all rows, which --verbose prints."""
    convolutions = any(result.case.op == "conv" for result in run.results)
    rows = len(groups_of(run)) if convolutions else len(run.results)
    return not run.network and rows > MOST_ROWS and bool(settings_table(run).rows)


def settings_table(run: Run) -> Table[Payoff]:
    """For each setting and baseline, where a precision is faster.

    A block for each precision asked for, or a column for them where no setting varies. Ratios are
    times faster, sizes the first number of a case.
    """
    found = {name: payoffs(run, name) for name in arms_of(run).asked}
    every = [payoff for some in found.values() for payoff in some]
    if not any(payoff.subject for payoff in every):
        precision = Column[Payoff]("precision", lambda payoff: fmt.clean(payoff.precision))
        return Table([precision, *_SETTINGS[1:]], [Row(payoff) for payoff in every])
    table = Table(_SETTINGS)
    for name, some in found.items():
        table.block(fmt.clean(name) if len(found) > 1 else "", map(Row, some))
    return table


def backends_table(run: Run) -> Table[str]:
    """How many times faster than one library the vendor's others are, a row for each precision.

    Geometric means over the problems that both computed. Empty where a run has none of them.
    """
    library = next((r.case.backend for r in run.results if is_library(r.case)), None)
    ratios: dict[tuple[str, str], list[float]] = {}
    for result in run.results:
        if library and library in result.vs_backend and not is_rival(result):
            arm = (result.case.precision_name, result.case.backend)
            ratios.setdefault(arm, []).append(result.vs_backend[library].ratio)

    def column(backend: str) -> Column[str]:
        def cell(precision: str) -> str:
            some = ratios.get((precision, backend))
            return f"{geometric_mean(some):.2f}" if some else "-"

        return Column(fmt.clean(backend), cell, right=True)

    backends = dict.fromkeys(backend for _, backend in ratios)
    found = Table([Column[str]("precision", fmt.clean), *map(column, backends)])
    if ratios:
        heading = f"Times faster than {library}, geometric mean over the sizes"
        found.block(heading, map(Row, dict.fromkeys(name for name, _ in ratios)))
    return found


def rivals_table(run: Run) -> Table[Summary]:
    """Our kernels, and the user's, against the better library: a row for the tuned sizes of each
    precision, one for the others. Empty where none was measured beside a library.
    """
    table = Table(_RIVALS)
    rows = [Row(found) for found in summaries(run)]
    if rows:
        table.block(BETTER, rows)
    return table


def _sizes(found: Summary) -> str:
    """ "6 tuned", "2 others", "2 unknown"; "6" where nothing is tuned."""
    count = len(found.rows)
    if found.backend != TUNED:
        return str(count)
    kinds = {True: "tuned", False: "other" + "s" * (count != 1), None: "unknown"}
    return f"{count} {kinds[found.tuned]}"


def _libraries(found: Summary) -> str:
    absent = f" ({found.not_measured})" if found.not_measured else ""
    return ", ".join(found.libraries) + absent


def _mean(found: Summary) -> str:
    return f"{found.mean:.3f}{fmt.UNCERTAIN * bool(found.ruined_pct)}"


def _faster_from(payoff: Payoff) -> str:
    if payoff.uncertain:
        return fmt.UNCERTAIN
    return fmt.size(payoff.from_start[0][0].case) if payoff.from_start else "-"


def _speedup_there(payoff: Payoff) -> str:
    known = payoff.from_start and not payoff.uncertain
    return fmt.ratio(payoff.from_start[0][1]) if known else ""


def _highest(payoff: Payoff) -> str:
    result, ratio = payoff.best
    return f"{fmt.ratio(ratio)} at {fmt.size(result.case)}"


def _count(gain: str) -> Callable[[Payoff], str]:
    return lambda payoff: str(payoff.gains.count(gain) or "")


def _bottlenecks(payoff: Payoff) -> str:
    """The most common ones: "alignment 64, mixed 5"."""
    found = Counter(fmt.clean(result.bound or "") for result, _ in payoff.rows)
    return ", ".join(f"{bound} {n}" for bound, n in found.most_common(MOST_BOTTLENECKS) if bound)


_SETTINGS: Sequence[Column[Payoff]] = (
    Column("setting", lambda payoff: fmt.clean(payoff.subject), bold=True),
    Column("vs", lambda payoff: fmt.clean(payoff.baseline)),
    Column("faster\nfrom", _faster_from, right=True),
    Column("speed-up\nthere", _speedup_there, right=True, drop=2),
    Column("highest\nspeed-up", _highest, right=True),
    Column("sizes", lambda payoff: str(len(payoff.rows)), right=True, drop=3),
    Column("faster", _count("faster"), right=True),
    Column("within\n2 %", _count("same"), right=True, drop=4),
    Column("slower", _count("slower"), right=True),
    Column("bottlenecks", _bottlenecks, drop=5),
)

_RIVALS: Sequence[Column[Summary]] = (
    Column("back end", lambda found: fmt.clean(found.backend)),
    Column("precision", lambda found: fmt.clean(found.precision)),
    Column("sizes", _sizes),
    Column("libraries", _libraries),
    Column("geometric\nmean", _mean, right=True),
    Column("least", lambda found: f"{found.least.ratio.ratio:.2f}", right=True),
    Column("at", lambda found: fmt.size(found.least.result.case), right=True),
    Column("library\nthere", lambda found: found.least.library, drop=1),
)
