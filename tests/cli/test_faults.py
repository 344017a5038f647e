"""The bench of faults: it finds what is planted, and finds nothing in what is here."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import judge
from faults.forks import Attempt, Kind, here, tried

from microbench.selftest import aa

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_stays_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the bench puts in the place of functions that measure is gone after each test."""
    monkeypatch.setattr(multiprocessing, "get_context", multiprocessing.get_context)
    monkeypatch.setattr(aa, "same_kernel_twice", aa.same_kernel_twice)


def complaints(main: Callable[[list[str]], int], limit_s: float = 20.0) -> list[str]:
    """What the bench says of one try of a command."""

    def attempt(_rng: object, folder: Path) -> Attempt:
        before = judge.files_in(folder.parent)
        outcome = here(main, "sample", [])
        found = [*outcome.complaints(), *judge.changed(before, judge.files_in(folder.parent), ())]
        return Attempt("sample", found)

    kind = Kind("sample", attempt, limit_s=limit_s, share=1.0)
    (one,) = tried(kind, 1, range(1), until_s=time.monotonic() + 60, jobs=1)
    return one.attempt.complaints


def right(_words: list[str]) -> int:
    print("a table\tof numbers")
    return 0


def refuses(_words: list[str]) -> int:
    print("error: no such file: x", file=sys.stderr)
    return 2


@pytest.mark.parametrize("main", [right, refuses])
def test_what_is_right_passes(main: Callable[[list[str]], int]) -> None:
    assert complaints(main) == []


def raises(_words: list[str]) -> int:
    raise KeyError("x")


def dies(_words: list[str]) -> int:
    import os

    os._exit(0)


def hangs(_words: list[str]) -> int:
    while True:
        time.sleep(1)


def writes(name: str) -> Callable[[list[str]], int]:
    def main(_words: list[str]) -> int:
        Path(name).write_text("left")
        return 0

    return main


def says(text: str, code: int = 0) -> Callable[[list[str]], int]:
    def main(_words: list[str]) -> int:
        sys.stderr.write(text)
        return code

    return main


def leaves_a_process(_words: list[str]) -> int:
    subprocess.Popen(["sh", "-c", "sleep 60 & exit"], start_new_session=True).wait()
    return 0


def refuses_after_output(_words: list[str]) -> int:
    print("a table")
    return 2


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (raises, "traceback"),
        (dies, "the process ended"),
        (writes("left.txt"), "a file is left"),
        (says("\x1b[31m"), "control characters"),
        (says("\u202e"), "control characters"),
        (says("error: one\ntwo\n", 2), "more than one line"),
        (says("x" * 2001), "more than 2000 characters"),
        (says("odd\n", 3), "exit code 3"),
        (says("odd\n", 2), "exit code 2"),
        (says("error: one\n", 0), "exit code 0 with an error"),
        (says("\u061c"), "control characters"),
        (says("Exception ignored in: x\n"), "Exception ignored"),
        (leaves_a_process, "a process is left"),
        (refuses_after_output, "exit code 2 without an error"),
    ],
)
def test_what_is_planted_is_found(main: Callable[[list[str]], int], expected: str) -> None:
    (found,) = complaints(main)
    assert expected in found


def test_a_command_that_hangs_is_found() -> None:
    (found,) = complaints(hangs, limit_s=1.0)
    assert found == "more than 1 s"


@pytest.mark.parametrize(
    ("find", "bad", "good"),
    [
        (judge.in_csv, 'a\n"=1+1"\n', "a\n-1.5\n+2e3\n"),
        (judge.in_csv, "a,b\n1\n", "a,b\n1,2\n"),
        (judge.in_markdown, "| <b>x</b> |", "| 5 < 6 |"),
        (judge.in_markdown, "[a](http://b)", "0.9 [0.8, 1.0]"),
        (judge.in_markdown, "| a | b |\n| c |\n", "| a | b |\n| \\\\ | \\| |\n\n| c |\n"),
        (judge.in_markdown, "| a | b |\n| \\\\| | b |\n", "| a | b |\n| \\\\\\| | b |\n"),
        (judge.in_xml, "<a name='\x01'/>", "<a name='1'/>"),
        (judge.in_xml, "<svg><set/></svg>", "<svg><text>x</text></svg>"),
        (judge.in_markup, "<p style='a: url(http://b)'>", "<p style='a: url(#b)'>"),
        (judge.in_markup, "<a href='data:text/html,x'>", "<img src='data:image/png,x'>"),
        (judge.in_markup, "<meta http-equiv='refresh'>", "<meta charset='utf-8'>"),
        (judge.in_markup, "<p><script>x</script></p>", "<p>x</p>"),
        (judge.in_markup, "<p onclick='x'>", "<p class='x'>"),
        (judge.in_markup, "<html><p></p></html>", "<svg><text>x</text></svg>"),
    ],
)
def test_bad_files_are_distinguished_from_good_ones(find: object, bad: str, good: str) -> None:
    assert callable(find)
    assert list(find(bad))
    assert not list(find(good))


SAID = b"""[1/2] 32: fp32 0.6, tf32 skipped GFLOP/s
[2/2] 64: fp32 1.2, tf32 skipped GFLOP/s
process 2 of 2: [1/2] 32: fp32 0.6 GFLOP/s
"""


@pytest.mark.parametrize(
    ("results", "processes", "expected"),
    [
        (4, 1, []),
        (3, 1, ["results are lost: measured"]),
        (4, 0, ["results are lost: measured once more"]),
        (None, 0, ["results are lost: measured", "results are lost: measured once more"]),
    ],
)
def test_a_lost_result_is_found(
    tmp_path: Path, results: int | None, processes: int, expected: list[str]
) -> None:
    from faults.ends import lost

    file = tmp_path / "run.json"
    if results is not None:
        found = [{"processes": [1, 2] if i < processes else None} for i in range(results)]
        file.write_text(json.dumps({"results": found}), encoding="utf-8")
    assert list(lost(judge.Outcome(130, SAID, b""), file)) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ""),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "goes on: more than 3 s after SIGTERM"),
        ("open('.draft', 'w').close()", "a temporary file is left: .draft"),
        (
            "subprocess.Popen(['sleep', '60'], start_new_session=True)",
            "a process is left after SIGTERM: 60",
        ),
    ],
)
def test_what_a_signal_leaves_is_found(tmp_path: Path, text: str, complaint: str) -> None:
    from faults.ends import wrong
    from faults.processes import Signal, run

    folder = tmp_path / "work"
    folder.mkdir()
    stopped = "signal.signal(signal.SIGTERM, lambda *_: os._exit(143))"
    program = f"import os, signal, subprocess, time; {stopped}; {text or 0}; print('[1/1] x', "
    program += "flush=True); time.sleep(SECONDS)"
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    program = program.replace("SECONDS", str(4 * busy + 1))
    sent = Signal(signal.SIGTERM, 0.2, True, (1, re.compile(rb"^\[", re.MULTILINE)))
    found = run(["-c", program], folder, sent=sent)
    (folder / "run.json").write_text('{"results": [{}]}', encoding="utf-8")
    assert list(wrong(found, sent, folder)) == ([complaint] if complaint else [])


def test_a_fault_planted_in_the_reading_of_run_files_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from faults.run_files import RUN_FILES

    from microbench.results import codec

    cases = range(40)
    kind = Kind("run files", RUN_FILES.attempt, limit_s=20.0, share=1.0, a_fork=20,
                prepare=RUN_FILES.prepare)  # fmt: skip
    with monkeypatch.context() as planted:
        planted.setattr("multiprocessing.get_context", None)  # put back what `prepare` sets
        planted.setattr(codec, "_check_measurement", lambda *_: 1 / 0)
        found = (
            one.attempt.complaints[0]
            for one in tried(kind, 1, cases, until_s=time.monotonic() + 90, jobs=1)
            if one.attempt.complaints
        )
        assert any("ZeroDivisionError" in complaint for complaint in found)


@pytest.mark.slow
def test_a_short_run_finds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--minutes", "0.5", "--seed", "29", "--jobs", "2"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_short_soak_finds_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--soak", "--minutes", "0.1"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
