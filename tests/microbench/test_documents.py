"""Files that are not runs: show prints every kind that is published, nothing else takes them."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from samples.traces import Made

from e2e.__main__ import main as training
from microbench.__main__ import main
from microbench.device.device import describe
from microbench.errors import UserError
from microbench.results.kinds import DOCUMENTS, document_of
from microbench.selftest.ncu import ncu_medians

H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"
# Not published: two runs, as `compare --json` writes them, and a trace, as `diagnose --json` does.
COMPARED, DIAGNOSED = MADE = ("compared", "diagnosed")
KINDS = [
    "aa", "timer-vs-ncu", "compare-aa", "compare-power", DIAGNOSED, "selftest", COMPARED,
    "timm/amp", "by-hand/plain1",
]  # fmt: skip
WITH_ROWS = ("aa", "timer-vs-ncu", "compare-aa", "compare-power", "selftest", COMPARED)
# By tests/cli/test_compare_cli.py, tests/cli/test_scenarios.py and tests/microbench/test_fleet.py.
WRITTEN_ELSEWHERE = {"compare --json of several runs", "tests.scenarios", "fleet"}
PathOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> PathOf:
    folder = tmp_path_factory.mktemp("documents")
    runs = [str(H200 / f"{name}.json") for name in ("gemm-fp16", "gemm-all")]
    assert main(["compare", *runs, "--json", str(folder / f"{COMPARED}.json")]) == 0
    made = Made()
    made.steps(10_000, 20_000)
    made.op("aten::mm", 12_000, 18_000)
    trace = made.write(folder / "trace.json")
    assert training(["diagnose", str(trace), "--json", str(folder / f"{DIAGNOSED}.json")]) == 0
    return lambda name: (folder if name in MADE else H200) / f"{name}.json"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_each_kind_is_known(path_of: PathOf) -> None:
    found = [document_of(json.loads(path_of(name).read_text())) for name in KINDS]
    assert found == [one for one in DOCUMENTS if one.written_by not in WRITTEN_ELSEWHERE]
    assert document_of(json.loads(path_of("gemm-fp16").read_text())) is None


@pytest.mark.parametrize("name", WITH_ROWS)
def test_every_row_is_in_every_whole_table(
    name: str, path_of: PathOf, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(path_of(name).read_text())["rows"]
    markdown = shown(capsys, str(path_of(name)), "--markdown")
    assert len(markdown.splitlines()) == 2 + len(rows)
    table = list(csv.DictReader(io.StringIO(shown(capsys, str(path_of(name)), "--csv"))))
    assert len(table) == len(rows)
    for written, row in zip(table, rows, strict=True):
        for field in written.keys() & row.keys():
            value = row[field]
            if isinstance(value, float):
                assert float(written[field]) == pytest.approx(value, rel=1e-8)
            elif isinstance(value, str):
                assert written[field] == value
    whole = shown(capsys, str(path_of(name)), "--verbose").splitlines()
    brief = shown(capsys, str(path_of(name))).splitlines()
    assert len(brief) <= len(whole)
    assert len(whole) >= len(rows)
    assert max(map(len, [*brief, *whole])) <= 100


@pytest.mark.parametrize(
    ("name", "said"),
    [("aa", "282 of 300 tries"), ("timer-vs-ncu", "of 24 within 2 %"),
     ("selftest", "61 of 61 diagnosed correctly"), (COMPARED, "B against A, 30 cases:"),
     ("compare-aa", "57 of 13,048 pairs"), ("compare-power", "3.3 to 4.1 %"),
     ("timm/amp", "5975.96"), ("by-hand/plain1", "3269.5")],
)  # fmt: skip
def test_the_screen_says_the_result(
    name: str, said: str, path_of: PathOf, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in " ".join(shown(capsys, str(path_of(name))).split())


@pytest.mark.parametrize(
    "words", [["compare", "aa", "selftest"], ["compare", "gemm-fp16", "aa"], ["explain", "aa"]]
)
def test_other_commands_say_in_a_line_that_it_is_no_run(
    words: list[str], path_of: PathOf, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *names = words
    assert main([command, *(str(path_of(name)) for name in names)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "aa.json is not a run file, but the output of validate aa" in said


@pytest.mark.parametrize(
    "document",
    [
        {"check": "aa"},
        {"check": "aa", "tries": 1, "holding_1": 1, "rows": [{"case": 3}]},
        {"check": "timer", "within_target": 1,
         "rows": [{"case": "x", "ours_s": 1.0, "ncu_s": 0.0, "within_target": True}]},
        {"check": "compare", "rows": []},
        {"check": "power", "processes": 3, "tries": 1, "seed": 1, "rows": [{"case": "x"}]},
        {"check": "selftest", "rows": {}},
        {"check": "selftest", "rows": [], "device": []},
        {"counts": {}, "noise_pct": 3, "rows": [{}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [[], ["--csv"]])
def test_a_damaged_one_is_refused_in_a_line(
    document: dict[str, object], form: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    code = main(["show", str(path), *form])
    said = capsys.readouterr()
    if code == 0:  # CSV does not need the device
        assert "device" in document
        assert form
    else:
        assert code == 2
        assert said.err.count("\n") == 1
        assert "damaged" in said.err


def test_the_same_kernel_twice_is_counted_by_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(heavy: bool, holds: bool) -> dict[str, object]:
        turns_s = [1.1e-3, *[1e-3] * 5]
        return {"case": "gemm", "ratio": 1.0, "ci95": [0.9, 1.1], "rounds": 3, "holds_1": holds,
                "heavy": heavy, "order": "abbaab", "turns_s": turns_s}  # fmt: skip

    rows = [row(False, i > 7) for i in range(150)] + [row(True, i > 19) for i in range(150)]
    path = tmp_path / "aa.json"
    path.write_text(json.dumps({"check": "aa", "tries": 300, "holding_1": 272, "rows": rows}))
    said = " ".join(shown(capsys, str(path), "--verbose").split())
    assert "Light: 142 of 150, 94.7 % (89.8 to 97.3 %)" in said
    assert "Heavy: 130 of 150, 86.7 % (80.3 to 91.2 %, not 95 %)" in said
    assert "Heavy: the first 6 turns against the median turn, mean: +10.0, +0.0" in said


def test_a_check_prints_what_show_prints_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "aa.json"
    words = ["--device", "cpu", "--tries", "2", "--budget", "0.02", "--json", str(path)]
    assert main(["validate", "aa", *words]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"File: {path}\n")
    assert said.removesuffix(f"File: {path}\n") in shown(capsys, str(path))
    assert main(["validate", "aa", *words]) == 2  # the file is there
    assert main(["validate", "timer", "--device", "cpu", "--json", str(tmp_path / "t.json")]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "option"), [("timer", "--tries"), ("timer", "--budget"), ("compare", "--budget")]
)
def test_a_check_refuses_options_that_it_would_not_use(
    what: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "check.json"
    assert main(["validate", what, option, "1", "--json", str(path)]) == 2
    assert f"validate {what} takes no {option}" in capsys.readouterr().err
    assert not path.exists()


def test_an_ncu_that_writes_no_log_is_an_error_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho no permission >&2\nexit 1\n", encoding="utf-8")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match="no permission"):
        ncu_medians(describe("cpu"), ["fp32:cublas:64"])
