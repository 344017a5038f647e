"""The time model of a run file in words."""

from __future__ import annotations

from microbench.results.types import TimeModel

LEAST_NAMED = 3  # cases of a path that is named as the worst


def describe(model: TimeModel) -> list[str]:
    """Its error on cases that it was not fitted on, and on which path that is largest."""
    overall = model.overall
    lines = [
        "Model (launch floor + compute in tiles and waves + bytes + conversions): median error "
        f"{100 * overall.median:.0f} % on {overall.count} cases it was not fitted on "
        f"(90 % within {100 * overall.p90:.0f} %)."
    ]
    named = [error for error in model.by_path if error.count >= LEAST_NAMED]
    if named:
        worst = max(named, key=lambda error: error.median)
        lines.append(
            f"It is least certain of {path_text(worst.path)}: median error "
            f"{100 * worst.median:.0f} % on {worst.count}."
        )
    return lines


def path_text(path: tuple[str, ...]) -> str:
    """A path as a person reads it: "conv nhwc fprop cudnn fp16, misaligned"."""
    special, arm = "".join(path[2:3]), path[3:]
    return " ".join(word for word in arm if word) + (f", {special}" if special else "")
