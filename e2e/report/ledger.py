"""The ledger of a training: what a recipe changes in a step, term by term, in ms; and its causes.

Nothing is explained of figures that are not good enough (`doubt_of`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from e2e.case import SHORT
from e2e.report.variants import SHORT_WORDS, View, reference, step_word
from e2e.results.baselines import BASELINES
from e2e.results.terms import RESIDUAL
from e2e.results.types import Cause, LedgerLine, Training
from microbench import fmt
from microbench.report.parts import VERBOSE, Column, Part, Row
from microbench.results.types import Json, Ratio

SMALL_SHARE = 0.005  # of the first step: terms under it, in both steps, are shown in one line
SAME = "no difference was measured"
ASKED_FOR = VERBOSE + 1  # the level of what only its topic shows
OTHERS = "other small terms"
MOST_RESIDUAL = 0.05  # of a step: the largest residual without a remark
RUINED_RESIDUAL = 0.20  # of a step or of the difference: a ledger with more explains nothing
DIGITS = 5  # of the longer step, in the numbers shown
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


def has_ledger(variant: Training) -> bool:
    """Whether the variant has a ledger of finite times."""
    return len(variant.ledger) > 1 and all(math.isfinite(line.ms) for line in variant.ledger)


def base_name(variant: Training) -> str:
    """The name of the ledger's baseline: "fp32"."""
    first = fmt.clean(variant.ledger[0].term) if variant.ledger else ""
    return fmt.clean(variant.ledger_base or "") or first.removesuffix(" step") or "the baseline"


def base_words(variant: Training) -> str:
    """The same, where the baseline is float32 with how long algorithms were searched."""
    short = variant.case.search == SHORT and variant.ledger_base in BASELINES["fp32"]
    return base_name(variant) + SHORT_WORDS * short


def ledger_title(view: View, variant: Training) -> str:
    """ "From fp32 to amp (batch 256): where the time of a step goes, in ms"."""
    what = f"where the time of a {step_word(variant)} goes, in ms"
    return f"From {base_name(variant)} to {view.named(variant)}: {what}"


def changes(variant: Training, *, fold: bool) -> list[Change]:
    """The rows of the variant's ledger, the whole steps last; `fold`: small terms share one."""
    first, *between, last = variant.ledger
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
        step_word(variant), first.ms, last.ms, last.ms - first.ms, whole=True, source=last.source
    )
    return [*rows, whole]


def _change(line: LedgerLine) -> Change:
    """A line with the two times that its detail begins with."""
    plain = Change(line.term, None, None, line.ms, source=line.source)
    match = (RESIDUALS.search if line.term == RESIDUAL else FROM_TO.match)(line.detail)
    if match is None:
        return plain
    try:
        base_ms, other_ms = float(match[1]), float(match[2])
    except ValueError:
        return plain
    where = "" if line.term == RESIDUAL else match[3] or ""
    return replace(plain, base_ms=base_ms, other_ms=other_ms, where=fmt.clean(where))


def unexplained(variant: Training) -> tuple[float, float]:
    """The shares that its ledger does not explain: at most of a step, and of the difference."""
    *rows, whole = changes(variant, fold=False)
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


# ---------------------------------------------------------------- the gate


def gain(variant: Training) -> Ratio | None:
    """The speed-up that its ledger explains, or the one over its slowest baseline."""
    recipe = variant.ledger_base or ""
    names = [name for name, recipes in BASELINES.items() if recipe in recipes] or [recipe]
    return next(
        (variant.speedup[n] for n in (*names, "fp32", "first", "tf32") if n in variant.speedup),
        None,
    )


def contradicted(view: View, variant: Training) -> str:
    """The baseline over which the ratio of the rounds and that of the steps say the opposite."""
    group = view.group_of(variant)
    for name, ratio in variant.speedup.items():
        base = reference(variant, name, group)
        if base is None or not base.step_s or not variant.step_s or ratio.no_difference:
            continue
        if (base.step_s / variant.step_s - 1) * (ratio.ratio - 1) < 0:
            return name
    return ""


def doubt_of(view: View, variant: Training) -> str:
    """Why it is not said where its time goes, nor what limits it; "" where it may be said."""
    if ruined_pct := view.group_of(variant).ruined_pct:
        return fmt.too_wide(ruined_pct)
    if name := contradicted(view, variant):
        return f"the steps and the rounds disagree on whether it is faster than {name}"
    ratio = gain(variant)
    if ratio and ratio.no_difference:
        return SAME
    if not has_ledger(variant):
        return ""
    if ratio and (variant.ledger[0].ms / variant.ledger[-1].ms - 1) * (ratio.ratio - 1) < 0:
        return "the recorded steps and the rounds disagree on whether it is faster"
    share = max(unexplained(variant))
    if share > RUINED_RESIDUAL:
        much = f"{100 * share:.0f} %" if math.isfinite(share) else "all"
        return f"{much} is unexplained, the recorded steps are not like the timed ones"
    return ""


def is_sound(view: View, variant: Training) -> bool:
    """Whether what was measured is good enough to say where its time goes."""
    return not doubt_of(view, variant)


# ---------------------------------------------------------------- parts


def ledger_part(view: View, variant: Training, doubt: str) -> Part:
    """A training's ledger: a row a term, with its time in both steps and the change, in ms.

    Under `doubt` it is for those who ask for ledgers.
    """
    rows = changes(variant, fold=False)
    longest = max(abs(rows[-1].base_ms or 0), abs(rows[-1].other_ms or 0))
    decimals = DIGITS - 1 - math.floor(math.log10(longest)) if longest > 0 else 0
    decimals = min(max(decimals, 0), MOST_DECIMALS)

    def ms(value: float, sign: str = "") -> str:
        text = f"{value:{sign}.{decimals}f}"
        if len(text) > WIDEST:
            return f"{value:{sign}.4g}"
        return text if float(text) else f"{0:.{decimals}f}"

    items: list[Json] = [{"words": term_words(row.term), "row": row} for row in rows]
    columns = [
        Column("term", "words"),
        Column(base_name(variant), "row.base_ms", ms, drop=1),
        Column(view.label(variant), "row.other_ms", ms, drop=2),
        Column("change", "row.ms", lambda value: ms(value, "+")),
        Column("most in layers", "row.where", drop=4),
        Column("source", "row.source", drop=5),
    ]
    shown = [Row(item, style="bold" if item["row"].whole else "") for item in items]
    below = account(variant)
    level = VERBOSE
    if doubt:
        below, level = [f"Do not trust it: {doubt}."], ASKED_FOR
    return Part(ledger_title(view, variant), columns, shown, below, level, "ledger")


def account(variant: Training) -> list[str]:
    """Below a ledger: a remark where much is unexplained."""
    share, _ = unexplained(variant)
    much = (
        f"{100 * share:.0f} % of a {step_word(variant)} is unexplained: do not trust single terms "
        f"(a good ledger leaves at most {100 * MOST_RESIDUAL:.0f} %)."
    )
    return [much] * (share > MOST_RESIDUAL)


def causes_part(view: View, variant: Training) -> Part:
    """The causes of a training, in the order of the file."""
    lines: list[str] = []
    for number, cause in enumerate(variant.causes, 1):
        why = f": {cause.why}" if fmt.clean(cause.why) else ""
        gained = gains(cause)
        fix = f" Try: {cause.fix} ({gained or 'not measured'})." if fmt.clean(cause.fix) else ""
        lines.append(f"{number}. {title_words(cause)}{why}.{fix}")
    title = f"What limits {view.named(variant)}"
    return Part(title, below=lines, level=VERBOSE, topic="causes")


def gains(cause: Cause) -> str:
    """ "measured +49.0 %": what was gained or, in older files, predicted; "" if unknown."""
    named = (("predicted", cause.predicted_gain_pct), ("measured", cause.measured_gain_pct))
    return ", ".join(
        f"{how} {fmt.signed_pct(round(pct, 1) + 0.0)}"
        for how, pct in named
        if pct is not None and math.isfinite(pct)
    )


def title_words(cause: Cause) -> str:
    """The cause's title."""
    return fmt.clean(cause.title) or "-"


def explained_parts(view: View) -> list[Part]:
    """Ledgers and causes, variant by variant, and why some variants have none.

    A ledger that is not sound is under --ledger alone, with the doubt below it.
    """
    doubts = [(t, doubt_of(view, t)) for t in view.variants if t.causes or has_ledger(t)]
    ledgers = [ledger_part(view, t, doubt) for t, doubt in doubts if has_ledger(t)]
    causes = [causes_part(view, t) for t, doubt in doubts if t.causes and not doubt]
    lines = [f"{view.named(t)}: {doubt}." for t, doubt in doubts if doubt]
    return [*ledgers, *causes, Part("Not explained", below=lines, level=VERBOSE)]
