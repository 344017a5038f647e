"""The command line as a user meets it: real processes, real files, the CPU."""

from __future__ import annotations

import getpass
import json
import re
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from samples.commands import ROOT, Ran, environment, interrupted, on_a_terminal, run_here

from microbench.__main__ import main
from microbench.results.runfile import read_run
from microbench.run_output import command_line

TINY = ("--dtype", "fp32", "--vs", "none", "--sizes", "16", "--device", "cpu", "--budget", "0.3")


def microbench(*words: object, **environment: str) -> Ran:
    return run_here(main, "microbench", *words, **environment)


def process(*words: object, more: Mapping[str, str] | None = None, **options: Any) -> Ran:
    """The same in a process of its own, where that is the point."""
    return subprocess.run(
        [sys.executable, "-m", "microbench", *map(str, words)], capture_output=True, text=True,
        timeout=120, cwd=ROOT, env=environment(**(more or {})), **options,
    )  # fmt: skip


def check_complaint(ran: Ran, *said: str) -> None:
    """Exit code 2 and one line on stderr that says what; nothing else."""
    lines = ran.stderr.splitlines()
    assert ran.returncode == 2, ran.stderr
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("error: ")
    assert ran.stdout == ""
    for words in said:
        assert words in lines[0]


def report_of(stdout: str) -> str:
    """What `gemm` printed, without progress and the line that names the file."""
    lines = stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if not re.match(r"\[\d+/\d+\]", line))
    last = next(i for i, line in enumerate(lines) if line.startswith("Run file: "))
    return "\n".join(lines[first:last]).strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def measured(folder: Path) -> Ran:
    """One small run for real; most tests below look at what it left."""
    return microbench(
        "gemm", "--dtype", "fp16", "--sizes", "16,24x32x40", "--device", "cpu", "--budget", "1",
        "--json", folder / "run.json", "--csv", folder / "run.csv", "--seed", "3",
    )  # fmt: skip


# ---------------------------------------------------------------- one run


def test_a_run_of_several_processes_is_of_several_and_resumed_to_more(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert microbench("gemm", *TINY, "--processes", "2", "--json", file).returncode == 0
    (first,) = read_run(file).results
    assert microbench("gemm", "--resume", file, "--processes", "3").returncode == 0
    (more,) = read_run(file).results
    counts = [[p.number for p in r.measurement.processes] for r in (first, more) if r.measurement]
    assert counts == [[0, 1], [0, 1, 2]]
    again = microbench("gemm", "--resume", file, "--processes", "3")
    assert "nothing to measure" in " ".join(again.stdout.split())
    assert microbench("compare", file, file, "--fail-on", "slower,faster").returncode == 0


def test_a_run_ends_well_and_keeps_what_it_was_asked(measured: Ran, folder: Path) -> None:
    assert measured.returncode == 0, measured.stderr
    assert measured.stderr == ""
    run = read_run(folder / "run.json")
    assert run.finished_at is not None
    assert run.started_at <= run.finished_at
    assert run.settings["seed"] == 3
    statuses = {(r.case.dim("m"), r.case.precision_name): r.status for r in run.results}
    assert statuses == {
        (16, "fp32"): "ok", (16, "tf32"): "skipped", (16, "fp16"): "ok",
        (24, "fp32"): "ok", (24, "tf32"): "skipped", (24, "fp16"): "ok",
    }  # fmt: skip
    for result in run.results:
        if result.status == "skipped":
            assert result.reason
            continue
        assert result.measurement is not None
        assert result.bound
        assert result.rel_error is not None
        interval = result.measurement.ci95_s
        assert interval is None or 0 < interval[0] <= result.measurement.median_s <= interval[1]


def test_it_says_that_it_is_a_cpu_and_where_the_file_is(measured: Ran, folder: Path) -> None:
    assert "CPU" in measured.stdout or "Processor" in measured.stdout
    assert str(folder / "run.json") in measured.stdout.replace("\n", "")
    assert "24x32x40" in measured.stdout


def test_no_terminal_no_control_codes(measured: Ran) -> None:
    assert "\x1b" not in measured.stdout
    assert "\r" not in measured.stdout
    assert all(len(line) <= 100 for line in report_of(measured.stdout).splitlines())


def test_show_prints_the_same_again(measured: Ran, folder: Path) -> None:
    again = microbench("show", folder / "run.json")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.strip() == report_of(measured.stdout)


def test_show_survives_a_terminal_that_knows_ascii_only(measured: Ran, folder: Path) -> None:
    plain = process("show", folder / "run.json", more={"PYTHONIOENCODING": "ascii"})
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.isascii()


def test_the_csv_is_what_show_gives(measured: Ran, folder: Path) -> None:
    again = microbench("show", folder / "run.json", "--csv")
    assert again.stdout.rstrip("\n") == (folder / "run.csv").read_text().rstrip("\n")
    assert len(again.stdout.strip().splitlines()) == 1 + 6


def test_the_document_tells_nothing_of_the_owner(measured: Ran, folder: Path) -> None:
    document = json.loads((folder / "run.json").read_text())
    assert document["command"][:3] == ["python", "-m", "microbench"]
    del document["command"]
    text = json.dumps(document)
    assert socket.gethostname() not in text
    assert str(Path.home()) + "/" not in text
    assert str(ROOT) not in text
    assert str(folder) not in text
    if getpass.getuser() != "root":
        assert getpass.getuser() not in text


def test_a_run_compared_with_itself_is_the_same(measured: Ran, folder: Path) -> None:
    file = folder / "run.json"
    ran = microbench("compare", file, file, "--fail-on", "slower,faster")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_slower_run_fails_when_asked_to(measured: Ran, folder: Path) -> None:
    document = json.loads((folder / "run.json").read_text())
    for factor, name in ((1.0, "a"), (4.0, "b")):
        for result in document["results"]:
            if result["status"] == "ok":
                result["median_s"] = 1e-3 * factor
                result["ci95_s"] = [0.99e-3 * factor, 1.01e-3 * factor]
        (folder / f"{name}.json").write_text(json.dumps(document))
    a, b = folder / "a.json", folder / "b.json"
    assert microbench("compare", a, b).returncode == 0
    slower = microbench("compare", a, b, "--fail-on", "slower")
    assert slower.returncode == 1
    assert "slower" in slower.stdout
    assert microbench("compare", b, a, "--fail-on", "slower").returncode == 0
    assert microbench("compare", b, a, "--fail-on", "faster").returncode == 1


def test_a_reader_that_leaves_early_is_no_traceback(measured: Ran, folder: Path) -> None:
    command = f"{sys.executable} -m microbench show {folder / 'run.json'} --verbose | head -n 1"
    ran = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=60
    )
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38|4[0-7])(?:;\d+)*m")


def test_no_color_is_kept_to_on_a_terminal(measured: Ran, folder: Path) -> None:
    file = str(folder / "run.json")
    assert COLOUR.search(on_a_terminal(main, "microbench", "show", file))
    assert not COLOUR.search(on_a_terminal(main, "microbench", "show", file, NO_COLOR="1"))


def test_nothing_is_left_to_resume_in_a_whole_run(measured: Ran, folder: Path) -> None:
    """And --csv is written all the same: the user asked for it."""
    ran = microbench(
        "gemm", "--dtype", "fp16", "--sizes", "16,24x32x40", "--device", "cpu", "--budget", "1",
        "--resume", folder / "run.json", "--csv", folder / "again.csv",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (folder / "again.csv").exists()


# ---------------------------------------------------------------- quiet, and where files go


def test_quiet_says_nothing_and_keeps_the_run_in_the_state_folder(tmp_path: Path) -> None:
    ran = microbench("gemm", *TINY, "--quiet", XDG_STATE_HOME=str(tmp_path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    (file,) = tmp_path.rglob("*.json")
    assert read_run(file).finished_at
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [file]


# ---------------------------------------------------------------- Ctrl-C and resume


def test_ctrl_c_keeps_what_is_done_and_the_command_it_names_ends_the_run(tmp_path: Path) -> None:
    file = tmp_path / "my run.json"
    words = ["gemm", "--dtype", "fp32", "--vs", "none", "--sizes", "16,24,32", "--device", "cpu",
             "--budget", "3", "--json", str(file)]  # fmt: skip
    ran = interrupted(
        main, "microbench", *words, when=lambda: file.exists() and read_run(file).results
    )
    assert ran.returncode == 130
    stderr = ran.stderr
    assert "Traceback" not in stderr
    assert "--resume" in stderr
    kept = read_run(file)
    assert 1 <= len(kept.results) < 3
    assert kept.finished_at is None
    (command,) = [line for line in stderr.splitlines() if "--resume" in line]
    again = shlex.split(command)
    assert again[:3] == ["python", "-m", "microbench"]
    ran = microbench(*again[3:])
    assert ran.returncode == 0, ran.stderr
    whole = read_run(file)
    assert whole.finished_at is not None
    assert [r.case.dim("m") for r in whole.results] == [16, 24, 32]
    assert whole.results[0].measurement == kept.results[0].measurement


# ---------------------------------------------------------------- bad input

BAD_WORDS = {
    "--dtype fp7": "fp16",
    "--dtype ,": "--dtype",
    "--backend cudnn": "cublaslt",
    "--backend ''": "--backend",
    "--sizes 8192..256": "256..8192",
    "--sizes ''": "--sizes",
    "--sizes 0": "0",
    "--sizes=-64": "-64",
    "--sizes 64xx64": "64xx64",
    "--sizes 1..1000000:+1": "4096",
    "--layout qq": "nt",
    "--data gauss": "normal",
    "--l2 hot": "warm",
    "--l2 cold,cold": "--l2",
    "--l2 cold,": "--l2",
    "--regime burst,": "--regime",
    "--regime sprint": "burst",
    "--timer sundial": "events",
    "--timer clock,clock": "--timer",
    "--vs fp99": "fp32",
    "--budget 0": "--budget",
    "--budget=-5": "--budget",
    "--budget nan": "--budget",
    "--budget inf": "--budget",
    "--budget soon": "--budget",
    "--processes 0": "--processes",
    "--processes=-3": "--processes",
    "--processes 101": "100",
    "--processes many": "--processes",
    "--without warp": "gluon",
    "--without gluon/* --autotune": "--without",
    "--seed x": "--seed",
    "--seed 99999999999999999999999": "--seed",
    "--json /nowhere/run.json": "--json",
    "--json /proc/run.json": "--json",
    "--json /tmp": "folder",
    "--csv /nowhere/run.csv": "--csv",
    "--resume /nowhere/run.json": "/nowhere/run.json",
    "--frobnicate": "--frobnicate",
    "extra": "extra",
    "--dtype": "--dtype",
}


@pytest.mark.parametrize("words", BAD_WORDS)
def test_bad_words_are_refused_before_anything_is_measured(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this process, for speed; the next test asks real ones."""
    import microbench.run_command as commands

    def no_worker(*_: object) -> None:
        pytest.fail("a measuring process was started")

    monkeypatch.setattr(commands, "Workers", no_worker)
    ran = microbench("gemm", *shlex.split(words), XDG_STATE_HOME=str(tmp_path))
    check_complaint(ran, BAD_WORDS[words])


def test_bad_words_in_a_real_process() -> None:
    check_complaint(process("gemm", "--dtype", "fp7"), "fp7", "fp16")
    check_complaint(microbench("show", "/nowhere.json"), "/nowhere.json")
    check_complaint(microbench("compare", "/nowhere.json", "/nowhere.json"), "/nowhere.json")
    check_complaint(microbench("measure"), "measure")
    check_complaint(microbench("doctor", "--device", "tpu"), "tpu")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "tpu"), ("tpu", "cuda", "cpu")),
        (("--timer", "graph"), ("graph", "clock")),
        (("--without", "gluon"), ("'gluon/*'", "leaves out no Triton configuration")),
        (("--sizes", "500000"), ("3000", "free")),  # 3 x 10^12 bytes
        (("--sizes", "9" * 400), ("cannot read", "MxNxK")),
    ],
)
def test_what_only_the_device_knows_is_refused_in_a_line_too(
    words: tuple[str, ...], said: tuple[str, ...], tmp_path: Path
) -> None:
    ran = microbench("gemm", *TINY, "--json", tmp_path / "run.json", *words)
    check_complaint(ran, *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        '{"schema_version": 1, "results": [',
        '{"tool": "other"}',
        '{"schema_version": 2, "results": []}',
        "",
        "\x00\x01",
    ],
)
def test_what_is_no_run_file_is_refused_and_left_as_it_is(content: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(content)
    for words in (["show"], ["compare", str(file)], ["gemm", "--resume"]):
        check_complaint(microbench(*words, file), str(file))
    assert file.read_text() == content


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("precious")
    for option in ("--json", "--csv"):
        check_complaint(microbench("gemm", *TINY, option, file), option)
    assert file.read_text() == "precious"


def test_one_path_for_both_files_is_refused(tmp_path: Path) -> None:
    """Else the CSV takes the place of the run file, and the measurement is lost."""
    file = tmp_path / "run.json"
    ran = microbench("gemm", *TINY, "--json", file, "--csv", file)
    if ran.returncode == 0:
        read_run(file)
    else:
        check_complaint(ran, "--csv")


def test_a_full_disk_is_a_line_and_the_file_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "run.json"

    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    ran = process("gemm", *TINY, "--sizes", "16..64", "--json", file, preexec_fn=no_large_files)
    assert ran.returncode not in (0, 130)
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("\n") == 1
    if file.exists():
        read_run(file)
    assert {p.name for p in tmp_path.iterdir()} <= {"run.json"}


# ---------------------------------------------------------------- help


def test_help_and_bad_words_import_nothing_heavy() -> None:
    code = (
        "import sys; from microbench.__main__ import main\n"
        "codes = [main([*words, '--help']) for words in "
        "([], ['gemm'], ['show'], ['compare'], ['doctor'])]\n"
        "heavy = {'torch', 'numpy', 'triton', 'cupy', 'pynvml'} & set(sys.modules)\n"
        "assert not heavy, heavy\nassert not any(codes), codes\n"
        "assert main(['gemm', '--dtype', 'fp7']) == 2\nassert 'torch' not in sys.modules"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("gemm", "show", "compare", "doctor", "--sizes", "--resume", "--fail-on"):
        assert word in ran.stdout


def test_no_command_shows_help() -> None:
    ran = microbench()
    assert "gemm" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_run_file_keeps_no_path_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "e2e", "my_nets:build", "--data", "folder:/home/me/images/", "--batch", "16..512:+1",
        "--json", "/tmp/x.json", "--chart=/tmp/x.svg", "--data=cifar10:/d/c",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", words)
    kept = command_line("e2e")
    assert kept == (
        "python", "-m", "e2e", "my_nets:build", "--data", "folder:images", "--batch", "16..512:+1",
        "--data=cifar10:c",
    )  # fmt: skip


def test_a_run_for_standard_output_has_it_alone() -> None:
    ran = microbench("gemm", "--sizes", "16", "--device", "cpu", "--budget", "1", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["results"]
    assert "TFLOP/s" in ran.stderr or "GFLOP/s" in ran.stderr
    assert microbench("gemm", "--sizes", "16", "--device", "cpu", "--csv", "-").returncode == 2


@pytest.mark.parametrize("columns", [80, 120])
def test_a_bar_fills_the_width_and_does_not_wrap(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", str(ROOT / "results" / "nvidia-h200" / "ledger-resnet50.json")]) == 0
    bars = [line for line in capsys.readouterr().out.splitlines() if "img/s ±" in line]
    assert [line.split()[0] for line in bars] == ["fp32", "tf32", "amp"]
    assert max(map(len, bars)) == columns
