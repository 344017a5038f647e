"""The conclusion in sentences: break-even size, speed-up, and why smaller sizes are not faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels import is_library
from microbench.break_even import BASELINES, RUINED, Payoff, Row, library_or_best, payoffs
from microbench.fmt import listed, rate_unit
from microbench.libraries import sentence, summaries
from microbench.results.types import Ratio, Result, Run
from microbench.results.values import RUINED_PCT
from microbench.timing.stats import excludes_one

MOST_REASONS = 3
MOST_SIZES = 6


def verdict(run: Run, *, beside: bool = True) -> list[str]:
    """Sentences for the end of the screen; empty when nothing was measured against a baseline.

    `beside`: with how our kernels and the user's do beside the libraries.
    """
    lines: list[str] = []
    doubt: dict[str, float] = {}
    for found in summaries(run) if beside else []:
        if found.ruined_pct:
            doubt[f"{found.backend} in {found.precision}"] = found.ruined_pct
        else:
            lines.append(sentence(found))
    for name in asked_for(run):
        results = [r for r in run.results if r.case.precision_name == name]
        timed = library_or_best(results)
        if not timed:
            reason = next((r.reason for r in results if r.reason), "not measured")
            lines.append(f"{name}: no verdict ({reason}).")
            continue
        compared = payoffs(run, name)
        lines += [] if compared else _highest(name, timed)
        for payoff in compared:
            if payoff.uncertain:
                title = " ".join(filter(None, (payoff.subject, name, "against", payoff.baseline)))
                doubt[title] = max(payoff.uncertain.values())
            else:
                lines += _against(payoff)
        if any("tf32" in r.speedup for r in timed) and name != "tf32":
            lines.append(
                "  tf32 keeps float32 data and rounds it on input to the Tensor Cores: "
                "one setting in torch, no change of data type."
            )
        lines += _skipped(name, results)
        lines += _price(name, timed, run)
    return lines + uncertain(doubt)


def uncertain(found: Mapping[str, float]) -> list[str]:
    """What stands in place of verdicts on ruined figures: the figure, the likely reason, a remedy.

    `found` has half of the widest interval, in per cent, by what there is no verdict on.
    """
    if not found:
        return []
    most = max(found.values())
    half = f"±{most:.0f} %" if most < 999 else "beyond ±999 %"
    return [
        f"No verdict on {listed([*found])}: too uncertain. The widest 95 % interval is {half}; "
        f"a verdict needs ±{RUINED_PCT:.0f} %.",
        "Likely reason: other work on the machine, or clocks that changed.",
        "Try: repeat on a quiet machine, or raise --budget.",
    ]


def _highest(name: str, timed: Sequence[Result]) -> list[str]:
    """The highest rate, of a precision that was compared with no other."""
    best = max(timed, key=lambda r: (not r.ruined_pct, r.flop_per_s or 0.0))
    if best.ruined_pct:
        return []
    unit = rate_unit([best.flop_per_s or 0.0], integers=name.startswith("int"))
    at = f"{best.case.problem.size} {best.case.problem.layout}"
    rate = f"{unit.text(best.flop_per_s or 0.0)} {unit.name}"
    return [f"{name}: at most {rate}, at {at} by {best.case.backend}."]


def asked_for(run: Run) -> list[str]:
    """The precisions that the user asked about: all but BASELINES; if none, all but fp32."""
    names = list(dict.fromkeys(r.case.precision_name for r in run.results))
    others = [name for name in names if name not in BASELINES]
    return others or [name for name in names if name != "fp32"]


def _against(payoff: Payoff) -> list[str]:
    rows, gains, start = payoff.rows, payoff.gains, payoff.start
    first = _faster(payoff) if start < len(rows) else _not_faster(payoff)
    also = _faster_at(payoff, rows[:start]) if start < len(rows) else []
    if also:
        also = [f"  also faster at {listed(also, MOST_SIZES)}."]
    prefix = f"{payoff.subject}: " if payoff.subject else ""
    most = 1 if payoff.subject else MOST_REASONS
    below = _why_not_below(payoff.baseline, rows[:start], gains[:start], most)
    return [prefix + first, *also, *below]


def _faster(payoff: Payoff) -> str:
    rows, start = payoff.rows, payoff.start
    where = f"from {rows[start][0].case.problem.size} up" if start else "at every size measured"
    first = rows[start]
    best = max(rows[start:], key=lambda row: row[1].ci95[0] if row[1].ci95 else 0.0)
    much = f"{_factor(first[1])} at {first[0].case.problem.size}"
    if _factor(best[1]) != _factor(first[1]):
        much += f", {_factor(best[1])} at {best[0].case.problem.size}"
    return f"{payoff.precision} is faster than {payoff.baseline} {where}: {much}."


def _not_faster(payoff: Payoff) -> str:
    name, baseline, rows, gains = payoff.precision, payoff.baseline, payoff.rows, payoff.gains
    best, gain = max(zip(rows, gains, strict=True), key=lambda row: row[0][1].ratio)
    at_best = f"{_below(best[1], gain)} at {best[0].case.problem.size}"
    if gains[-1] == "unknown":
        return (
            f"Unknown whether {name} is faster than {baseline}: only one round was measured "
            f"({_times(best[1])} at {best[0].case.problem.size}). Raise --budget."
        )
    if also := _faster_at(payoff, rows):
        return f"{name} is faster than {baseline} only at some sizes: {', '.join(also)}."
    return f"{name} is not faster than {baseline} at any size measured; closest: {at_best}."


def _faster_at(payoff: Payoff, rows: Sequence[Row]) -> list[str]:
    """The sizes at which these first rows are faster, and how much."""
    return [
        f"{result.case.problem.size} ({_factor(ratio)})"
        for (result, ratio), gain in zip(rows, payoff.gains, strict=False)
        if gain == "faster"
    ]


def _factor(ratio: Ratio) -> str:
    """ "13.5 times": of a ratio that is faster."""
    return f"{ratio.ratio:.3g} times"


def _times(ratio: Ratio) -> str:
    """ "13.5 times faster", "8.3 times slower"."""
    slower = ratio.ratio < 1
    times = f"{1 / ratio.ratio if slower else ratio.ratio:.3g}"
    if times == "1":
        return "as fast"
    return f"{times} times {'slower' if slower else 'faster'}"


def _below(ratio: Ratio, gain: str) -> str:
    """In words, by the table's rule: no difference is seen where the interval holds 1."""
    if ratio.ci95 is None:
        return _times(ratio) + ", from one round"
    if not excludes_one(ratio.ci95):
        return "no difference seen"
    low, high = ratio.ci95
    near = f", 95 % interval [{low:.3g}, {high:.3g}]" if gain == "same" else ""
    return _times(ratio) + near


def _why_not_below(
    baseline: str, rows: Sequence[Row], gains: Sequence[str], most: int
) -> list[str]:
    told = ("faster", RUINED)
    below = [(row, gain) for row, gain in zip(rows, gains, strict=True) if gain not in told]
    return [
        f"  at {result.case.problem.size} against {baseline}: {_below(ratio, gain)}"
        f"{'; ' + result.why if result.why else ''}."
        for (result, ratio), gain in below[-most:]
    ]


def _skipped(name: str, results: Sequence[Result]) -> list[str]:
    without = [r for r in results if r.measurement is None and is_library(r.case)]
    if not without:
        return []
    sizes = listed([r.case.problem.size for r in without], MOST_SIZES)
    return [f"  {name} was not measured at {sizes}: {without[0].reason}."]


def _price(name: str, timed: Sequence[Result], run: Run) -> list[str]:
    """What the precision costs in accuracy, at the largest size that fp32 was measured at too."""
    for result in reversed(timed):
        base = next(
            (r for r in run.results if r.case.group == result.case.group
             and r.case.precision_name == "fp32" and r.total_error is not None),
            None,
        )  # fmt: skip
        if base is not None and result.total_error is not None and name != "fp32":
            return [
                f"Accuracy at {result.case.problem.size}: relative error {result.total_error:.1e} "
                f"against {base.total_error:.1e} in fp32, including input rounding."
            ]
    return []
