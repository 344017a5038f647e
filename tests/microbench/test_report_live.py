"""Progress: words, plain lines for a file, one changing line for a terminal, silence when quiet."""

from __future__ import annotations

import io
import re

from rich.console import Console
from samples.kernel_runs import case, measured

from microbench.report.live import LiveProgress, describe, summary
from microbench.results.types import Result
from microbench.sweep import Group

ARMS = (("fp32", "cublas"), ("fp16", "cublas"), ("fp16", "triton"))
GROUPS = [Group(tuple(case(n, *arm) for arm in ARMS)) for n in (256, 512, 1024)]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def results(group: Group) -> list[Result]:
    return [measured(what, 10.0) for what in group.cases]


def go_through(progress: LiveProgress) -> None:
    with progress:
        progress.stage("copy", "measuring memory bandwidth")
        for i, group in enumerate(GROUPS):
            progress.stage(group.cases[-1].key, "checking")
            progress.stage(group.cases[0].key, "timing, round 3")
            progress.done(group, results(group), 10.0 - i)


def test_a_search_counts_what_it_did_and_knows_no_total() -> None:
    file = io.StringIO()
    go_through(LiveProgress(Console(file=file, width=100), GROUPS, counted=False))
    assert re.findall(r"^\[(.*?)\]", file.getvalue(), re.M) == [
        str(n) for n in range(1, len(GROUPS) + 1)
    ]


def test_a_file_gets_one_plain_line_a_group() -> None:
    file = io.StringIO()
    go_through(LiveProgress(Console(file=file, width=100), GROUPS))
    lines = file.getvalue().splitlines()
    assert lines[0] == "[1/3] 256: fp32 10.0, fp16 10.0, fp16 triton 10.0 TFLOP/s"
    assert len(lines) == 3
    assert "\x1b" not in file.getvalue()


def test_a_terminal_gets_a_line_that_is_taken_away_again() -> None:
    file = io.StringIO()
    go_through(LiveProgress(Console(file=file, width=100, force_terminal=True), GROUPS))
    text = file.getvalue()
    assert "\x1b[?25h" in text.split("TFLOP/s")[-1]  # the cursor is back
    assert "[3/3] 1024" in text


def test_a_dumb_terminal_gets_plain_lines() -> None:
    file = io.StringIO()
    console = Console(
        file=file, width=100, force_terminal=True, no_color=True, _environ={"TERM": "dumb"}
    )
    go_through(LiveProgress(console, GROUPS))
    assert "\x1b[?25" not in file.getvalue()


def test_quiet_is_silent() -> None:
    file = io.StringIO()
    go_through(LiveProgress(Console(file=file, force_terminal=True), GROUPS, quiet=True))
    assert file.getvalue() == ""


def test_stages_in_words() -> None:
    key = GROUPS[0].cases[2].key
    assert describe(key, "trying 2 of 7", GROUPS[0]) == "fp16 256 triton: trying 2 of 7"
    assert describe(key, "timing, round 3", GROUPS[0]) == "256 in fp32, fp16: timing, round 3"
    assert describe("copy", "measuring memory bandwidth", None) == (
        "device ceilings: measuring memory bandwidth"
    )


def test_summary_of_what_was_not_measured() -> None:
    skipped = Result(case(256, "int8", "triton"), "skipped", "triton has no int8")
    assert summary([skipped]) == "256: int8 skipped"
    assert summary([]) == "nothing measured"


def test_time_left_counts_what_each_group_costs_beside_sampling() -> None:
    clock = Clock()
    progress = LiveProgress(Console(file=io.StringIO()), GROUPS, clock=clock)
    assert progress.left_s() is None
    clock.now_s = 60.0  # learning the ceilings: no group's cost
    for group, left_s in zip(GROUPS[:2], (20.0, 10.0), strict=True):
        progress.stage(group.cases[0].key, "preparing")
        clock.now_s += 13.0  # 10 s of sampling, 3 s of the rest
        progress.done(group, results(group), left_s)
    assert progress.left_s() == 13.0
    clock.now_s += 5.0
    assert progress.left_s() == 8.0
    clock.now_s += 500.0
    assert progress.left_s() == 0.0


def test_an_error_leaves_the_terminal_in_order() -> None:
    file = io.StringIO()
    try:
        with LiveProgress(Console(file=file, force_terminal=True), GROUPS) as progress:
            progress.stage(GROUPS[0].cases[0].key, "preparing")
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert file.getvalue().rstrip().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")
