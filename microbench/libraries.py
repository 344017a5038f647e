"""Our kernels, and the user's, against the better of the vendor's libraries measured beside them.

Sizes that a configuration was tuned for and other sizes are summed up apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from kernels import OPS
from kernels.op import OWN, TUNED
from microbench.results.types import Ratio, Result, Run

ORDER = (True, False, None)  # tuned sizes, others, and those of which it is not known


@dataclass(frozen=True)
class Beside:
    """A result and the better library: the one with the shorter time for this very problem.

    `ratio` is that library's time over the result's. `absent` are the libraries that were not
    measured for the problem.
    """

    result: Result
    library: str
    ratio: Ratio
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """One back end in one precision, over the sizes that were tuned, or the others.

    `tuned` is None where nothing is tuned, or it is not known. `which` is what else they share.
    """

    backend: str
    precision: str
    which: str
    tuned: bool | None
    rows: Sequence[Beside]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios; above 1 the back end is faster."""
        return geometric_mean([row.ratio.ratio for row in self.rows])

    @property
    def ruined_pct(self) -> float:
        """As `Ratio.ruined_pct`, of the mean: the sizes' ratios are independent."""
        halves = [math.log(r.ci95[1] / r.ratio) for row in self.rows if (r := row.ratio).ci95]
        half = math.hypot(*halves) / len(self.rows)
        return Ratio(1.0, (math.exp(-half), math.exp(half))).ruined_pct

    @property
    def least(self) -> Beside:
        """The size where it does worst."""
        return min(self.rows, key=lambda row: row.ratio.ratio)

    @property
    def most(self) -> Beside:
        """The size where it does best."""
        return max(self.rows, key=lambda row: row.ratio.ratio)

    @property
    def _lacking(self) -> dict[str, int]:
        """Each library that is for them, and at how many it was not measured."""
        names = _libraries(self.rows[0].result)
        return {name: sum(name in row.absent for row in self.rows) for name in names}

    @property
    def libraries(self) -> list[str]:
        """Those that were measured beside any of them."""
        return [name for name, count in self._lacking.items() if count < len(self.rows)]

    @property
    def against(self) -> str:
        """ "cublas", or "the better of cublas and cublaslt" where both were measured."""
        names = self.libraries
        return names[0] if len(names) == 1 else f"the better of {' and '.join(names)}"

    @property
    def not_measured(self) -> str:
        """ "cublaslt was not measured"; where it was for some, at how many it was not; "" if all
        libraries were."""
        return "; ".join(
            f"{name} was not measured" + f" at {count}" * (count < len(self.rows))
            for name, count in self._lacking.items()
            if count
        )

    def count(self, noun: str = "size") -> str:
        """ "6 tuned sizes", "1 size that was not tuned"; "6 sizes" where nothing is tuned."""
        count = len(self.rows)
        nouns = noun + "s" * (count != 1)
        if self.tuned:
            return f"{count} tuned {nouns}"
        if self.backend != TUNED:
            return f"{count} {nouns}"
        if self.tuned is None:
            return f"{count} {nouns}, not known whether tuned"
        return f"{count} {nouns} that {'was' if count == 1 else 'were'} not tuned"


def is_rival(result: Result) -> bool:
    """Whether the result is of a kernel of ours or of the user's."""
    return result.case.backend == TUNED or OWN in result.case.backend


def summaries(run: Run, which: Callable[[Result], str] = lambda _: "") -> list[Summary]:
    """Every back end of ours or of the user's against the better library, in the run's order.

    `which` names what else is summed up apart: passes, say.
    """
    found: dict[tuple[str, str, str], dict[bool | None, list[Beside]]] = {}
    for result in run.results:
        row = beside(result) if is_rival(result) else None
        if row:
            key = (result.case.backend, result.case.precision_name, which(result))
            found.setdefault(key, {}).setdefault(result.tuned, []).append(row)
    return [
        Summary(*key, tuned, rows)
        for key, kinds in found.items()
        for tuned in ORDER
        if (rows := kinds.get(tuned))
    ]


def beside(result: Result) -> Beside | None:
    """The result and the better library; None where none was measured beside it."""
    names = _libraries(result)
    known = {name: result.vs_backend[name] for name in names if name in result.vs_backend}
    if not known:
        return None
    better = min(known, key=lambda name: known[name].ratio)
    absent = tuple(name for name in names if name not in known)
    return Beside(result, better, known[better], absent)


def libraries_beside_own(run: Run) -> list[str]:
    """The libraries that were measured beside a back end of the user's."""
    own = [r for r in run.results if OWN in r.case.backend]
    return list(dict.fromkeys(
        name for result in own for name in _libraries(result) if name in result.vs_backend
    ))  # fmt: skip


def _libraries(result: Result) -> tuple[str, ...]:
    """The vendor's libraries for the result's op, on the kind of device that it ran on."""
    return ("cpu",) if "cpu" in result.vs_backend else OPS[result.case.op].libraries


def sentence(found: Summary) -> str:
    """ "triton in int8 is 1.05 times as fast as the better of cublas and cublaslt (geometric mean
    of 6 tuned sizes; least 0.96 at 256, most 1.19 at 512)." """
    least, most = (f"{row.ratio.ratio:.2f} at {row.result.case.problem.size}"
                   for row in (found.least, found.most))  # fmt: skip
    over = f"geometric mean of {found.count()}; least {least}, most {most}"
    if len(found.rows) == 1:
        over = f"{found.count()}, {found.least.result.case.problem.size}"
    which = f" {found.which}" if found.which else ""
    note = f"; {found.not_measured}" if found.not_measured else ""
    if found.libraries == [*OPS["conv"].libraries]:
        note = "; there is no other library for convolutions"
    return (
        f"{found.backend} in {found.precision}{which} is {found.mean:.2f} times as fast as "
        f"{found.against} ({over}){note}."
    )
