"""The ledger of a training: what a recipe changes in a step, term by term, in ms and words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from e2e.case import SHORT
from e2e.report.arms import SHORT_WORDS, Group, View, arms_of, step_word
from e2e.report.table import raw
from e2e.results.baselines import BASELINES
from e2e.results.terms import RESIDUAL
from e2e.results.types import LedgerLine, Training
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table
from microbench.results.types import Ratio

SMALL_SHARE = 0.005  # of the first step: terms under it, in both steps, are shown in one line
NOTHING_SHARE = 0.001  # of it: changes up to it are not named
OTHERS = "other small terms"
MOST_RESIDUAL = 0.05  # of a step: the largest residual without a remark
RUINED_RESIDUAL = 0.20  # of a step or of the difference: a ledger with more explains nothing
MOST_SENTENCES = 4
DIGITS = 4  # of the longer step, in the numbers shown
MOST_DECIMALS, WIDEST = 9, 16
FROM_TO = re.compile(r"(-?[\d.e+-]+) to (-?[\d.e+-]+) ms(?:; (.*))?")
RESIDUALS = re.compile(r"base ([+-][\d.]+), other ([+-][\d.]+)")

# Terms of a run file that reports call otherwise.
TERM_WORDS = {
    RESIDUAL: "unexplained",
    "host and launch gaps": "CPU launch gaps",
    "loader wait": "data loading wait",
    "matrix products": "matrix multiplications",
    "products": "GEMMs and convolutions",
}


def term_words(term: str) -> str:
    """A ledger's term as reports name it: "CPU launch gaps"."""
    return TERM_WORDS.get(term, fmt.clean(term)) or "-"


@dataclass(frozen=True)
class Change:
    """A row of a ledger, in ms: a term in both steps, where known, and what it changes.

    `where` names the layers that changed most; `whole` is the row of the steps themselves.
    """

    term: str
    base_ms: float | None
    other_ms: float | None
    ms: float
    where: str = ""
    source: str = ""
    whole: bool = False


def has_ledger(arm: Training) -> bool:
    """Whether the arm has a ledger of finite times."""
    return len(arm.ledger) > 1 and all(math.isfinite(line.ms) for line in arm.ledger)


def base_name(arm: Training) -> str:
    """The name of the ledger's baseline: "fp32"."""
    first = fmt.clean(arm.ledger[0].term) if arm.ledger else ""
    return fmt.clean(arm.ledger_base or "") or first.removesuffix(" step") or "the baseline"


def base_words(arm: Training) -> str:
    """The same, where the baseline is float32 with how long algorithms were searched."""
    short = arm.case.search == SHORT and arm.ledger_base in BASELINES["fp32"]
    return base_name(arm) + SHORT_WORDS * short


def ledger_title(view: View, arm: Training) -> str:
    """ "From fp32 to amp (batch 256): where the time of a step goes, in ms"."""
    what = f"where the time of a {step_word(arm)} goes, in ms"
    return f"From {base_name(arm)} to {view.full_label(arm)}: {what}"


def changes(arm: Training, *, fold: bool) -> list[Change]:
    """The rows of the arm's ledger, the whole steps last; `fold`: small terms share one."""
    first, *between, last = arm.ledger
    rows = [_change(line) for line in between]
    if fold:
        least_ms = SMALL_SHARE * first.ms
        small = [
            row
            for row in rows
            if row.term != RESIDUAL
            and all(abs(ms or 0.0) < least_ms for ms in (row.base_ms, row.other_ms, row.ms))
        ]
        if len(small) > 1:
            sums = [
                math.fsum(ms) if None not in (ms := [getattr(row, name) for row in small]) else None
                for name in ("base_ms", "other_ms", "ms")
            ]
            place = next((i for i, row in enumerate(rows) if row.term == RESIDUAL), len(rows))
            rows.insert(place, Change(OTHERS, *sums))  # pyright: ignore[reportArgumentType]
            rows = [row for row in rows if row not in small]
    whole = Change(
        step_word(arm), first.ms, last.ms, last.ms - first.ms, whole=True, source=last.source
    )
    return [*rows, whole]


def _change(line: LedgerLine) -> Change:
    """A line with the two times that its detail begins with."""
    plain = Change(line.term, None, None, line.ms, source=line.source)
    found = (RESIDUALS.search if line.term == RESIDUAL else FROM_TO.match)(line.detail)
    if found is None:
        return plain
    try:
        base_ms, other_ms = float(found[1]), float(found[2])
    except ValueError:
        return plain
    where = "" if line.term == RESIDUAL else found[3] or ""
    return replace(plain, base_ms=base_ms, other_ms=other_ms, where=fmt.clean(where))


def unexplained(arm: Training) -> tuple[float, float]:
    """The shares that its ledger does not explain: at most of a step, and of the difference."""
    *rows, whole = changes(arm, fold=False)
    rest = [row for row in rows if row.term == RESIDUAL]
    of_steps = [
        abs(ms) / step_ms
        for row in rest
        for ms, step_ms in (
            (row.base_ms, whole.base_ms), (row.other_ms, whole.other_ms), (row.ms, whole.other_ms)
        )
        if ms is not None and step_ms
    ]  # fmt: skip
    rest_ms = math.fsum(row.ms for row in rest)
    return max(of_steps, default=0.0), abs(rest_ms / whole.ms) if whole.ms else math.inf


def gain(arm: Training) -> Ratio | None:
    """The speed-up that its ledger explains, or the one over its slowest baseline."""
    base = [name for name, recipes in BASELINES.items() if arm.ledger_base in recipes]
    return next(
        (arm.speedup[n] for n in (*base, "fp32", "first", "tf32") if n in arm.speedup), None
    )


def is_unclear(arm: Training) -> bool:
    """Whether the interval of its speed-up holds 1, or its steps say the opposite."""
    ratio = gain(arm)
    if ratio is None:
        return False
    seen = arm.ledger[0].ms / arm.ledger[-1].ms if has_ledger(arm) else ratio.ratio
    return ratio.no_difference or (seen - 1) * (ratio.ratio - 1) < 0


def is_explained(view: View, arm: Training) -> bool:
    """Whether it is said where its time goes, or what limits it."""
    return bool(has_ledger(arm) or arm.causes) and is_sound(view, arm)


def is_sound(view: View, arm: Training) -> bool:
    """Whether what was measured is good enough to say where its time goes."""
    if view.group_of(arm).ruined_pct or is_unclear(arm):
        return False
    return not has_ledger(arm) or max(unexplained(arm)) <= RUINED_RESIDUAL


def doubts_part(view: View) -> Part:
    """Why there is no ledger and no cause of some arms; the verdict says it of ruined groups."""
    arms = [
        arm for arm in view.arms
        if (arm.causes or has_ledger(arm)) and not view.group_of(arm).ruined_pct
    ]  # fmt: skip
    same = [view.full_label(arm) for arm in arms if is_unclear(arm)]
    unlike = [
        f"{view.full_label(arm)} {100 * max(unexplained(arm)):.0f} %"
        for arm in arms
        if not is_unclear(arm) and not is_sound(view, arm)
    ]
    lines = [
        f"No clear difference was measured: {fmt.listed(same, MOST_SENTENCES)}." * bool(same),
        f"More than {100 * RUINED_RESIDUAL:.0f} % is unexplained, the recorded steps are not like "
        f"the timed ones: {fmt.listed(unlike, MOST_SENTENCES)}." * bool(unlike),
        "Measure again on an idle machine, or longer (--budget); the figures are in the run file.",
    ]
    return Part("Not explained", None, [line for line in lines if line] if same or unlike else [])


# ---------------------------------------------------------------- the table


def ledger_part(view: View, arm: Training, *, fold: bool) -> Part:
    """A training's ledger as a table; `fold`: small terms share a row."""
    if not has_ledger(arm):
        return Part()
    label = view.label(arm)
    return Part(ledger_title(view, arm), ledger_table(arm, label, fold=fold), account(arm, label))


def ledger_table(arm: Training, label: str, *, fold: bool) -> Table[Change]:
    """One row per term: its time in both steps and the change, in ms."""
    rows = changes(arm, fold=fold)
    longest = max(abs(rows[-1].base_ms or 0), abs(rows[-1].other_ms or 0))
    digits = DIGITS + (not fold)
    decimals = digits - 1 - math.floor(math.log10(longest)) if longest > 0 else 0
    decimals = min(max(decimals, 0), MOST_DECIMALS)

    def ms(value: float | None, sign: str = "") -> str:
        if value is None:
            return ""
        text = f"{value:{sign}.{decimals}f}"
        if len(text) > WIDEST:
            return f"{value:{sign}.4g}"
        return text if float(text) else f"{0:.{decimals}f}"

    columns: list[Column[Change]] = [
        Column("term", lambda row: term_words(row.term), key=True),
        Column(base_name(arm), lambda row: ms(row.base_ms), right=True, drop=1),
        Column(label, lambda row: ms(row.other_ms), right=True, drop=2),
        Column("change", lambda row: ms(row.ms, "+"), right=True),
        Column("most in layers", lambda row: row.where, drop=4),
        Column("source", markdown=lambda row: fmt.clean(row.source)),
    ]
    return Table(columns, [Row(row, style="bold" if row.whole else "") for row in rows])


def raw_columns() -> list[Column[Training]]:
    """The ledger in CSV: its baseline, Amdahl's bound (a ratio), and each term with its ms."""
    return [Column(csv={
        **raw("", "ledger_base", ledger_bound="bound"),
        "ledger_ms": lambda arm: "; ".join(f"{line.term}: {line.ms:.9g}" for line in arm.ledger),
    })]  # fmt: skip


# ---------------------------------------------------------------- sentences


def account(arm: Training, label: str) -> list[str]:
    """Below a ledger: Amdahl's bound, and a remark where much is unexplained."""
    step = step_word(arm)
    found: list[str] = []
    if arm.bound and math.isfinite(arm.bound):
        seen = arm.ledger[0].ms / arm.ledger[-1].ms
        also = ", because other terms got shorter too" if seen > arm.bound else ""
        is_now = f"{fmt.number(max(seen, 1 / seen))} times {'faster' if seen >= 1 else 'slower'}"
        found.append(
            f"Amdahl's bound: if GEMMs, convolutions and attention took no time in "
            f"{base_words(arm)}, the {step} would be {fmt.number(arm.bound)} times faster; "
            f"{label} is {is_now}{also}."
        )
    share, _ = unexplained(arm)
    if share > MOST_RESIDUAL:
        found.append(
            f"{100 * share:.0f} % of a {step} is unexplained: do not trust single terms (a good "
            f"ledger leaves at most {100 * MOST_RESIDUAL:.0f} %)."
        )
    return found


def ledger_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: each ledger of the family in a sentence."""
    found = [arm for arm in arms_of(family) if has_ledger(arm) and is_sound(view, arm)]
    shown = view.first_of(found)
    lines = [_in_short(arm, view.full_label(arm)) for arm in shown]
    if len(found) > len(shown) and not view.evaluates:
        lines.append(f"  And {fmt.count(len(found) - len(shown), 'more ledger')}, above.")
    return lines


def _in_short(arm: Training, label: str) -> str:
    """What was saved or added, and which term saved and which took most."""
    first, *between, last = arm.ledger
    whole = f"{fmt.hundredths(first.ms)} ms of a {step_word(arm)} in {base_words(arm)}"
    saved_ms = first.ms - last.ms
    if saved_ms > 0:
        parts = [f"Of the {whole}, {label} saves {fmt.hundredths(saved_ms)} ms"]
    else:
        parts = [f"{label} takes {fmt.hundredths(-saved_ms)} ms more than the {whole}"]
    for what, sign in (("saved", -1), ("added", 1)):
        most = max(between, key=lambda line: sign * line.ms, default=first)
        if sign * most.ms > NOTHING_SHARE * first.ms and most is not first:
            name = "the unexplained part" if most.term == RESIDUAL else term_words(most.term)
            parts.append(f"most is {what} in {name} ({fmt.hundredths(abs(most.ms))} ms)")
    return "; ".join(parts) + "."
