"""Progress: plain lines for a file, one changing line for a terminal, silence when quiet."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from samples.kernel_runs import case, measured

from microbench.report.live import LiveProgress
from microbench.results.types import Result
from microbench.sweep import Group

ARMS = (("fp32", "cublas"), ("fp16", "cublas"), ("fp16", "triton"))
GROUPS = [Group(tuple(case(n, *arm) for arm in ARMS)) for n in (256, 512, 1024)]


def results(group: Group) -> list[Result]:
    return [measured(what, 10.0) for what in group.cases]


def followed(console: dict[str, Any], **how: bool) -> str:
    """What is written of three groups."""
    file = io.StringIO()
    with LiveProgress(Console(file=file, width=100, **console), GROUPS, **how) as progress:
        progress.stage("copy", "measuring memory bandwidth")
        for i, group in enumerate(GROUPS):
            progress.stage(group.cases[-1].key, "checking")
            progress.stage(group.cases[0].key, "timing, round 3")
            progress.done(group, results(group), 10.0 - i, 1.0)
    return file.getvalue()


def test_a_file_gets_one_plain_line_a_group() -> None:
    text = followed({})
    assert "256: fp32 10.0, fp16 10.0, fp16 triton 10.0 TFLOP/s" in text.splitlines()[0]
    assert re.findall(r"^\[(.*?)\]", text, re.M) == ["1/3", "2/3", "3/3"]
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text


def test_a_terminal_gets_a_line_that_is_taken_away_again() -> None:
    text = followed({"force_terminal": True})
    assert "\x1b[?25h" in text.split("TFLOP/s")[-1]  # the cursor is back
    assert "[3/3] 1024" in text
    dumb = {"force_terminal": True, "no_color": True, "_environ": {"TERM": "dumb"}}
    assert "\x1b[?25" not in followed(dumb)
    assert followed({"force_terminal": True}, quiet=True) == ""


def test_time_left_counts_what_each_group_costs_beside_sampling() -> None:
    now_s = 0.0
    progress = LiveProgress(Console(file=io.StringIO()), GROUPS, clock=lambda: now_s)
    assert progress.left_s() is None
    now_s = 60.0  # learning the ceilings: no group's cost
    for group, left_s in zip(GROUPS[:2], (20.0, 10.0), strict=True):
        progress.stage(group.cases[0].key, "preparing")
        now_s += 13.0  # 10 s of sampling, 3 s of the rest
        progress.done(group, results(group), left_s, 10.0)
    assert progress.left_s() == 13.0
    now_s += 5.0
    assert progress.left_s() == 8.0
    now_s += 500.0
    assert progress.left_s() == 0.0


def test_the_line_says_how_long_from_the_first_result_on() -> None:
    now_s, file = 0.0, io.StringIO()
    progress = LiveProgress(Console(file=file, width=100), GROUPS, clock=lambda: now_s)
    for group in GROUPS:
        progress.stage(group.cases[0].key, "preparing")
        now_s += 5.0
        progress.done(group, results(group), 20.0 if group is GROUPS[0] else 0.0, 5.0)
    first, second, last = file.getvalue().splitlines()
    assert first.endswith("TFLOP/s; about 20 s left")
    assert second.endswith("TFLOP/s; longer than expected")
    assert last.endswith("TFLOP/s")


def test_an_error_leaves_the_terminal_in_order() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with LiveProgress(Console(file=file, force_terminal=True), GROUPS) as progress:
            progress.stage(GROUPS[0].cases[0].key, "preparing")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().rstrip().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")
