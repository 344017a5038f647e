"""The answer in words: from which size a precision pays off, how much, and why not below."""

from __future__ import annotations

from collections.abc import Sequence

from kernels import OPS
from microbench.explain import shape_text
from microbench.results import Ratio, Result, Run

BASELINES = ("fp32", "tf32")
MOST_REASONS = 3
MIN_GAIN = 1.02  # between runs, ratios of small products move by more than their intervals say
LIBRARY = tuple(OPS["gemm"].library_backend(kind) for kind in ("cuda", "cpu"))


def verdict(run: Run) -> list[str]:
    """Sentences for the end of the screen; empty when nothing was measured against a baseline."""
    lines: list[str] = []
    for name in asked_for(run):
        results = [r for r in run.results if r.case.precision_name == name]
        timed = [r for r in _library_or_best(results) if r.measurement]
        if not timed:
            reason = next((r.reason for r in results if r.reason), "not measured")
            lines.append(f"{name}: no verdict ({reason}).")
            continue
        for baseline in BASELINES:
            lines += _against(name, baseline, timed)
        if "tf32" in timed[-1].speedup and name != "tf32":
            lines.append(
                "  tf32 keeps float32 data and rounds it on the way to the Tensor Cores: "
                "one switch in torch, no change of data type."
            )
        lines += _skipped(name, results)
        lines += _price(name, timed, run)
    return lines


def asked_for(run: Run) -> list[str]:
    """The precisions that the user asked about: all that are not only baselines."""
    names = list(dict.fromkeys(r.case.precision_name for r in run.results))
    others = [name for name in names if name not in BASELINES]
    return others or [name for name in names if name != "fp32"]


def _library_or_best(results: Sequence[Result]) -> list[Result]:
    """One result a problem: the library's, which a user gets; else the fastest."""
    chosen: dict[str, Result] = {}
    for result in results:
        if result.measurement is None:
            continue
        before = chosen.get(result.case.group)
        faster = before is None or (
            before.case.backend not in LIBRARY and (result.median_s or 0) < (before.median_s or 0)
        )
        if faster or result.case.backend in LIBRARY:
            chosen[result.case.group] = result
    return sorted(chosen.values(), key=lambda r: r.flops)


def _gain(ratio: Ratio | None) -> str:
    """ "faster" or "slower" by at least MIN_GAIN, else "same"; "unknown" without an interval."""
    if ratio is None or ratio.ci95 is None:
        return "unknown"
    low, high = ratio.ci95
    return "faster" if low > MIN_GAIN else "slower" if high < 1 / MIN_GAIN else "same"


def _against(name: str, baseline: str, timed: Sequence[Result]) -> list[str]:
    if name == baseline:
        return []
    rows = [(r, r.speedup[baseline]) for r in timed if baseline in r.speedup]
    if not rows:
        return []
    gains = [_gain(ratio) for _, ratio in rows]
    start = len(rows)
    while start and gains[start - 1] == "faster":
        start -= 1
    if start < len(rows):
        first = _pays_off(name, baseline, rows, start)
    else:
        first = _does_not_pay_off(name, baseline, rows, gains)
    also = [
        f"  at {shape_text(result.case)} too: {_times(ratio)}."
        for (result, ratio), gain in zip(rows[:start], gains, strict=False)
        if gain == "faster" and start < len(rows)
    ]
    return [first, *also, *_why_not_below(baseline, rows[:start], gains[:start])]


Row = tuple[Result, Ratio]


def _pays_off(name: str, baseline: str, rows: Sequence[Row], start: int) -> str:
    where = f"from {shape_text(rows[start][0].case)} up" if start else "at every size measured"
    first, best = rows[start], max(rows[start:], key=lambda row: _at_least(row[1]))
    much = f"{_times(first[1])} at {shape_text(first[0].case)}"
    if _times(best[1]) != _times(first[1]):
        much += f", {_times(best[1])} at {shape_text(best[0].case)}"
    return f"{name} pays off against {baseline} {where}: {much}."


def _does_not_pay_off(name: str, baseline: str, rows: Sequence[Row], gains: Sequence[str]) -> str:
    best = max(rows, key=lambda row: row[1].ratio)
    at_best = f"{_times(best[1])} at {shape_text(best[0].case)}"
    if gains[-1] == "unknown":
        return (
            f"Whether {name} pays off against {baseline} cannot be told from one round "
            f"(seen: {at_best}); raise --budget."
        )
    if "faster" in gains:
        sizes = ", ".join(
            f"{shape_text(result.case)} ({_times(ratio)})"
            for (result, ratio), gain in zip(rows, gains, strict=True)
            if gain == "faster"
        )
        return f"{name} pays off against {baseline} only at some sizes: {sizes}."
    return f"{name} does not pay off against {baseline} at the sizes measured: {at_best} at best."


def _at_least(ratio: Ratio) -> float:
    return ratio.ci95[0] if ratio.ci95 else 0.0


def _times(ratio: Ratio) -> str:
    """ "13.5 times faster", "8.3 times slower"."""
    if ratio.ratio < 1:
        return f"{1 / ratio.ratio:.3g} times slower"
    return f"{ratio.ratio:.3g} times faster"


def _below(ratio: Ratio, gain: str) -> str:
    if gain == "same":
        return "no difference seen"
    return _times(ratio) + (", from one round" if gain == "unknown" else "")


def _why_not_below(baseline: str, rows: Sequence[Row], gains: Sequence[str]) -> list[str]:
    below = [(row, gain) for row, gain in zip(rows, gains, strict=True) if gain != "faster"]
    return [
        f"  at {shape_text(result.case)} against {baseline}: {_below(ratio, gain)}"
        f"{'; ' + result.why if result.why else ''}."
        for (result, ratio), gain in below[-MOST_REASONS:]
    ]


def _skipped(name: str, results: Sequence[Result]) -> list[str]:
    without = [r for r in results if r.measurement is None and r.case.backend in LIBRARY]
    if not without:
        return []
    sizes = ", ".join(shape_text(r.case) for r in without[:6])
    more = f" and {len(without) - 6} more" if len(without) > 6 else ""
    return [f"  {name} was not measured at {sizes}{more}: {without[0].reason}."]


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
                f"The price at {shape_text(result.case)}: relative error {result.total_error:.1e} "
                f"against {base.total_error:.1e} in fp32, rounding of the inputs included."
            ]
    return []
