"""What a recipe changes in a step, term by term: the numbers and sentences of a training's ledger.

How it is drawn is in `waterfall` (characters) and `plot_training` (a picture).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.report.arms import Group, View, arms_of
from e2e.report.figures import limit_words
from e2e.results.types import PRODUCT_TERMS, RESIDUAL, LedgerLine, Training
from microbench import fmt

SMALL_SHARE = 0.005  # of the first step: terms under it are shown in one line
NOTHING_SHARE = 1e-6  # of it: terms up to it are said to change nothing
OTHERS = "other small terms"
GAP = "not accounted for"
DIGITS = 4  # of the longer step, in the numbers shown
_SHORTEST_MS, _LONGEST_MS = 1e-4, 1e6  # of a step shown in digits that add up
MOST_RESIDUAL = 0.05  # of a step: what a ledger may leave unexplained
MOST_SENTENCES = 4


def is_residual(line: LedgerLine | Bar) -> bool:
    """Whether the term is what the others do not explain."""
    return line.term == RESIDUAL


@dataclass(frozen=True)
class Bar:
    """One line of a waterfall: from `start_ms` to `end_ms`, a whole step from 0.

    `text` is `ms` in digits, signed where it is a change.
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
    """A ledger ready to draw; `small` are the terms that OTHERS stands for."""

    base: str
    bars: tuple[Bar, ...]
    small: tuple[LedgerLine, ...]

    @property
    def range_ms(self) -> tuple[float, float]:
        """From 0, or below it where a level is, to the highest level."""
        ends = [end for bar in self.bars for end in (bar.start_ms, bar.end_ms)]
        return min(0.0, *ends), max(0.0, *ends)

    @property
    def unit(self) -> str:
        """The digits of a whole step with its unit, for the end of an axis."""
        return f"{_plain(self.range_ms[1])} ms"


def has_ledger(arm: Training) -> bool:
    """Whether it has a ledger of finite times."""
    return len(arm.ledger) > 1 and all(math.isfinite(line.ms) for line in arm.ledger)


def ledger_title(view: View, arm: Training) -> str:
    """ "From fp32 to amp (batch 256): where the time of a step went, in ms"."""
    name = view.full_label(arm)
    return f"From {base_name(arm)} to {name}: where the time of a step went, in ms"


def base_name(arm: Training) -> str:
    """What the ledger starts from: "fp32"."""
    first = fmt.clean(arm.ledger[0].term) if arm.ledger else ""
    return fmt.clean(arm.ledger_base or "") or first.removesuffix(" step") or "the baseline"


def waterfall(arm: Training, *, fold: bool = True) -> Waterfall:
    """The arm's ledger; its digits add up as its numbers do. `fold`: small terms in one line, else
    all of them and a digit more."""
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
        fmt.clean(line.term) or "-", line.ms, start_ms, start_ms + line.ms, text,
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
    """What stands under a waterfall: Amdahl's bound, and how much of the products' gain arrived."""
    base = base_name(arm)
    found = [_bound(arm, base, label), _products(arm)]
    if any(map(is_residual, arm.ledger)):
        share = 100 * _residual_share(arm)
        found.append(f"Residual, what no other term explains: {share:.1f} % of the {label} step.")
    return [sentence for sentence in found if sentence]


def _residual_share(arm: Training) -> float:
    """Of the arm's own step."""
    residual_ms = math.fsum(line.ms for line in arm.ledger[1:-1] if is_residual(line))
    return abs(residual_ms) / arm.ledger[-1].ms


def _bound(arm: Training, base: str, label: str) -> str:
    if not arm.bound or not math.isfinite(arm.bound):
        return ""
    seen = arm.ledger[0].ms / arm.ledger[-1].ms
    also = ", since other terms got shorter too" if seen > arm.bound else ""
    return (
        f"If products (convolutions with the layout changes inside them, matrix products, "
        f"attention) took no time and all else stayed as in {base}, the step would be at most "
        f"{fmt.number(arm.bound)} times faster "
        f"(Amdahl's law); {label} makes it {_times_faster(seen)}{also}."
    )


def _times_faster(ratio: float) -> str:
    factor, what = (ratio, "faster") if ratio >= 1 else (1 / ratio, "slower")
    return f"{fmt.number(factor)} times {what}"


def _products(arm: Training) -> str:
    """How much of what products save in the ledger is saved in the step."""
    products = [line.ms for line in arm.ledger[1:-1] if line.term in PRODUCT_TERMS]
    if not products:
        return ""
    saved, arrived = -math.fsum(products), arm.ledger[0].ms - arm.ledger[-1].ms
    if saved <= 0:
        return (
            f"Products save nothing{f': they take {fmt.hundredths(-saved)} ms more' * (saved < 0)}."
        )
    text = f"Products save {fmt.hundredths(saved)} ms"
    if arrived <= 0:
        longer = f": it takes {fmt.hundredths(-arrived)} ms more" * (arrived < 0)
        return f"{text}, none of which reaches the step{longer}."
    if arrived >= saved:
        more = fmt.hundredths(arrived - saved)
        return f"{text}, all of which reaches the step; the other terms together save {more} ms."
    if saved - arrived < SMALL_SHARE * saved:
        return f"{text}, practically all of which reaches the step."
    return (
        f"{text}, of which {fmt.hundredths(arrived)} ms ({100 * arrived / saved:.0f} %) reach the "
        f"step; the other terms together take {fmt.hundredths(saved - arrived)} ms back."
    )


def ledger_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: what each ledger of the family says, in a sentence or two."""
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
    limit = limit_words(arm)
    rest = f"what is left is {fmt.hundredths(last.ms)} ms{f', limited by {limit}' * bool(limit)}"
    if saved_ms > 0:
        text = f"Of the {whole}, {label} saves {fmt.hundredths(saved_ms)} ms"
        text += f", most of all in {saving}" * bool(saving)
        back = f"of what is added, most is in {taking}" if taking else "no term adds any"
    else:
        more = f"{fmt.hundredths(-saved_ms)} ms more than" if saved_ms else "all of"
        text = f"{label} takes {more} the {whole}"
        text += f", most of all in {taking}" * bool(taking)
        back = f"of what is saved, most is in {saving}" if saving else "no term saves any"
    return f"{text}; {back}; {rest}."


def _largest(lines: Sequence[LedgerLine]) -> str:
    """ "casts (0.94 ms)"; "" for none."""
    if not lines:
        return ""
    line = max(lines, key=lambda line: abs(line.ms))
    name = "the residual" if is_residual(line) else fmt.clean(line.term) or "-"
    return f"{name} ({fmt.hundredths(abs(line.ms))} ms)"


def _unexplained(arm: Training, label: str) -> list[str]:
    share = _residual_share(arm)
    if share <= MOST_RESIDUAL:
        return []
    return [f"  The residual is {100 * share:.0f} % of the step of {label}: its account explains "
            f"less than a ledger should (all but {100 * MOST_RESIDUAL:.0f} %)."]  # fmt: skip
