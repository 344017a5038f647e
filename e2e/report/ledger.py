"""The ledger of a training: what a recipe changes in a step, term by term, in ms and words.

Drawn by `waterfall` (characters) and `plot_waterfall` (a chart).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.report.arms import Group, View, arms_of
from e2e.report.figures import bottleneck_of
from e2e.results.terms import PRODUCT_TERMS, RESIDUAL
from e2e.results.types import LedgerLine, Training
from microbench import fmt

SMALL_SHARE = 0.005  # of the first step: terms under it are shown in one line
NOTHING_SHARE = 1e-6  # of it: terms up to it are said to change nothing
OTHERS = "other small terms"
GAP = "missing from the ledger"
DIGITS = 4  # of the longer step, in the numbers shown
_SHORTEST_MS, _LONGEST_MS = 1e-4, 1e6  # of a step shown in digits that add up
MOST_RESIDUAL = 0.05  # of a step: the largest residual without a remark
MOST_SENTENCES = 4
PRODUCTS = "GEMMs and convolutions"


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


def is_residual(line: LedgerLine | Bar) -> bool:
    """Whether the term is the unexplained rest."""
    return line.term in (RESIDUAL, TERM_WORDS[RESIDUAL])


@dataclass(frozen=True)
class Bar:
    """One line of a waterfall: from `start_ms` to `end_ms`; a whole step starts at 0.

    `text` is `ms` as digits, signed for a change.
    """

    term: str
    ms: float
    start_ms: float
    end_ms: float
    text: str
    source: str
    detail: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Waterfall:
    """A ledger ready to draw; `small` are the terms that the line OTHERS sums up."""

    base: str
    bars: tuple[Bar, ...]
    small: tuple[LedgerLine, ...]

    @property
    def range_ms(self) -> tuple[float, float]:
        """(lowest, highest) level in ms; the lowest is at most 0."""
        ends = [end for bar in self.bars for end in (bar.start_ms, bar.end_ms)]
        return min(0.0, *ends), max(0.0, *ends)

    @property
    def unit(self) -> str:
        """The longest whole step with its unit, for the end of an axis."""
        return f"{_plain(self.range_ms[1])} ms"


def has_ledger(arm: Training) -> bool:
    """Whether the arm has a ledger of finite times."""
    return len(arm.ledger) > 1 and all(math.isfinite(line.ms) for line in arm.ledger)


def ledger_title(view: View, arm: Training) -> str:
    """ "From fp32 to amp (batch 256): what changes in a step, in ms"."""
    name = view.full_label(arm)
    return f"From {base_name(arm)} to {name}: what changes in a step, in ms"


def base_name(arm: Training) -> str:
    """The name of the ledger's baseline: "fp32"."""
    first = fmt.clean(arm.ledger[0].term) if arm.ledger else ""
    return fmt.clean(arm.ledger_base or "") or first.removesuffix(" step") or "the baseline"


def waterfall(arm: Training, *, fold: bool = True) -> Waterfall:
    """The arm's ledger, rounded so that its digits add up.

    `fold`: small terms share a line; else all terms have lines and one more digit.
    """
    first, *between, last = arm.ledger
    between, small = _folded(first.ms, between) if fold else (between, [])
    missing = last.ms - math.fsum(line.ms for line in arm.ledger[:-1])
    changes = [line.ms for line in between]
    texts, visible = _digits(first.ms, changes, last.ms, missing, DIGITS + (not fold))
    if visible:
        between.append(LedgerLine(GAP, missing, ""))
    bars = [_bar(first, 0.0, texts[0], whole=True)]
    for line, text in zip(between, texts[1:-1], strict=True):
        bars.append(_bar(line, bars[-1].end_ms, text))
    bars.append(_bar(last, 0.0, texts[-1], whole=True))
    return Waterfall(base_name(arm), tuple(bars), tuple(small))


def _bar(line: LedgerLine, start_ms: float, text: str, whole: bool = False) -> Bar:
    return Bar(
        term_words(line.term), line.ms, start_ms, start_ms + line.ms, text,
        fmt.clean(line.source), fmt.clean(line.detail), whole,
    )  # fmt: skip


def _folded(
    first_ms: float, between: Sequence[LedgerLine]
) -> tuple[list[LedgerLine], list[LedgerLine]]:
    """The lines to show, and those that one of them stands for; it stands before the residual."""
    small = [
        line for line in between if abs(line.ms) < SMALL_SHARE * first_ms and not is_residual(line)
    ]
    if len(small) < 2:
        return list(between), []
    kept = [line for line in between if line not in small]
    sources = dict.fromkeys(line.source for line in small)
    source = sources.popitem()[0] if len(sources) == 1 else "mixed"
    others = LedgerLine(OTHERS, math.fsum(line.ms for line in small), source)
    end = next((i for i, line in enumerate(kept) if is_residual(line)), len(kept))
    return [*kept[:end], others, *kept[end:]], small


# ---------------------------------------------------------------- digits


def _digits(
    first_ms: float, between_ms: Sequence[float], last_ms: float, missing_ms: float,
    digits: int,
) -> tuple[list[str], bool]:  # fmt: skip
    """The numbers in digits that add up as they are read, and whether `missing_ms` is one of them.

    Each is rounded up or down, by the method of the largest remainder.
    """
    largest = max(first_ms, last_ms)
    longest = max(largest, *map(abs, between_ms), abs(missing_ms))
    if largest < _SHORTEST_MS or not longest < _LONGEST_MS:
        return _rough(first_ms, between_ms, last_ms, missing_ms)
    decimals = digits - 1 - math.floor(math.log10(largest))
    unit = 10.0**decimals
    ends = round(first_ms * unit), round(last_ms * unit)
    # A gap that cannot be seen at these digits is spread like the rounding.
    visible = abs(missing_ms) * unit >= 1
    exact = [ms * unit for ms in (*between_ms, *([missing_ms] if visible else []))]
    whole = [math.floor(value) for value in exact]
    left = ends[1] - ends[0] - sum(whole)
    by_remainder = sorted(range(len(whole)), key=lambda i: whole[i] - exact[i])
    for i in (by_remainder * 2)[:left] if left > 0 else by_remainder[::-1][:-left]:
        whole[i] += 1 if left > 0 else -1
    shown = max(0, decimals)
    changes = [f"{value / unit:+.{shown}f}" if value else f"{0:.{shown}f}" for value in whole]
    return [f"{ends[0] / unit:.{shown}f}", *changes, f"{ends[1] / unit:.{shown}f}"], visible


def _rough(
    first_ms: float, between_ms: Sequence[float], last_ms: float, missing_ms: float
) -> tuple[list[str], bool]:
    """Times beyond any step's, each rounded for itself."""
    visible = missing_ms != 0
    changes = [*between_ms, *([missing_ms] if visible else [])]
    texts = [f"{'+' * (ms > 0)}{fmt.number(ms)}" for ms in changes]
    return [fmt.number(first_ms), *texts, fmt.number(last_ms)], visible


def _plain(ms: float) -> str:
    return f"{ms:.0f}" if 99.5 <= ms < _LONGEST_MS else fmt.number(ms)


# ---------------------------------------------------------------- sentences


def account(arm: Training, label: str) -> list[str]:
    """Notes below a waterfall: Amdahl's bound, and how much of the GEMMs' gain reaches the step."""
    base = base_name(arm)
    found = [_bound(arm, base, label), _products(arm)]
    if any(map(is_residual, arm.ledger)):
        share = 100 * _residual_share(arm)
        found.append(f"Unexplained: {share:.1f} % of the {label} step.")
    return [sentence for sentence in found if sentence]


def _residual_share(arm: Training) -> float:
    """Of the arm's own step."""
    residual_ms = math.fsum(line.ms for line in arm.ledger[1:-1] if is_residual(line))
    return abs(residual_ms) / arm.ledger[-1].ms


def _bound(arm: Training, base: str, label: str) -> str:
    if not arm.bound or not math.isfinite(arm.bound):
        return ""
    seen = arm.ledger[0].ms / arm.ledger[-1].ms
    also = ", because other terms got shorter too" if seen > arm.bound else ""
    return (
        f"Amdahl's bound: if GEMMs, convolutions and attention took no time in {base}, the step "
        f"would be {fmt.number(arm.bound)} times faster; {label} is {_times_faster(seen)}{also}."
    )


def _times_faster(ratio: float) -> str:
    factor, what = (ratio, "faster") if ratio >= 1 else (1 / ratio, "slower")
    return f"{fmt.number(factor)} times {what}"


def _products(arm: Training) -> str:
    """How much of what GEMMs and convolutions save is saved in the step."""
    products = [line.ms for line in arm.ledger[1:-1] if line.term in PRODUCT_TERMS]
    if not products:
        return ""
    saved, arrived = -math.fsum(products), arm.ledger[0].ms - arm.ledger[-1].ms
    if saved <= 0:
        return (
            f"{PRODUCTS} save nothing"
            f"{f': they take {fmt.hundredths(-saved)} ms more' * (saved < 0)}."
        )
    text = f"{PRODUCTS} save {fmt.hundredths(saved)} ms"
    if arrived <= 0:
        longer = f", which takes {fmt.hundredths(-arrived)} ms more" * (arrived < 0)
        return f"{text}; other terms cancel all of it in the step{longer}."
    if arrived >= saved:
        more = fmt.hundredths(arrived - saved)
        return f"{text}; the other terms together save {more} ms more."
    if saved - arrived < SMALL_SHARE * saved:
        return f"{text}; the other terms together change almost nothing."
    return (
        f"{text}; the other terms together add {fmt.hundredths(saved - arrived)} ms, so the step "
        f"gets {fmt.hundredths(arrived)} ms shorter ({100 * arrived / saved:.0f} %)."
    )


def ledger_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: each ledger of the family in a sentence or two."""
    found = list(filter(has_ledger, arms_of(family)))
    lines: list[str] = []
    for arm in found[:MOST_SENTENCES]:
        label = view.label_among(arm, family)
        lines += [_in_short(arm, label), *_unexplained(arm, label)]
    if len(found) > MOST_SENTENCES:
        lines.append(f"  And {fmt.count(len(found) - MOST_SENTENCES, 'more ledger')}, drawn above.")
    return lines


def _in_short(arm: Training, label: str) -> str:
    """What was saved or added, which term saved and which took most, and what limits the rest."""
    first, *between, last = arm.ledger
    saved_ms = first.ms - last.ms
    least_ms = NOTHING_SHARE * first.ms
    saving = _largest([line for line in between if line.ms < -least_ms])
    taking = _largest([line for line in between if line.ms > least_ms])
    whole = f"{fmt.hundredths(first.ms)} ms of a step in {base_name(arm)}"
    limit = bottleneck_of(arm)
    rest = f"{fmt.hundredths(last.ms)} ms remain{f' (bottleneck: {limit})' * bool(limit)}"
    if saved_ms > 0:
        text = f"Of the {whole}, {label} saves {fmt.hundredths(saved_ms)} ms"
        text += f", most in {saving}" * bool(saving)
        back = f"most is added in {taking}" if taking else "no term adds time"
    else:
        more = f"{fmt.hundredths(-saved_ms)} ms more than" if saved_ms else "exactly"
        text = f"{label} takes {more} the {whole}"
        text += f", most in {taking}" * bool(taking)
        back = f"most is saved in {saving}" if saving else "no term saves time"
    return f"{text}; {back}; {rest}."


def _largest(lines: Sequence[LedgerLine]) -> str:
    """ "casts (0.94 ms)"; "" for none."""
    if not lines:
        return ""
    line = max(lines, key=lambda line: abs(line.ms))
    name = "the unexplained part" if is_residual(line) else term_words(line.term)
    return f"{name} ({fmt.hundredths(abs(line.ms))} ms)"


def _unexplained(arm: Training, label: str) -> list[str]:
    share = _residual_share(arm)
    if share <= MOST_RESIDUAL:
        return []
    return [f"  {100 * share:.0f} % of the {label} step are unexplained: do not trust single terms "
            f"(a good ledger leaves at most {100 * MOST_RESIDUAL:.0f} %)."]  # fmt: skip
