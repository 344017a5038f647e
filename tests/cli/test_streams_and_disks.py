"""Outputs that are closed or full, folders that are missing, and files of two commands at once.

The commands are processes of their own: what is tested is what a shell sees.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from samples.commands import ROOT, environment
from samples.processes import wait_for

from microbench.results.runfile import read_run

GEMM = ("gemm", "--dtype", "fp32", "--vs", "none", "--sizes", "16", "--device", "cpu",
        "--budget", "0.2")  # fmt: skip
PUBLISHED = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
FULL = "No space left on device"


def started(
    shell: str, *, cwd: Path, without: Sequence[str] = (), env: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """What a shell's command line ends with; $PY is this Python.

    Its environment is this one's with `env`, and `without` some variables.
    """
    there = environment(**{"PY": sys.executable, **env})
    for name in without:
        there.pop(name, None)
    return subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, cwd=cwd, env=there, timeout=100,
        check=False,
    )  # fmt: skip


def check_one_line(ran: subprocess.CompletedProcess[str], part: str, code: int = 2) -> None:
    """One error line that says `part`, and the exit code."""
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    assert part in ran.stderr


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this machine."""
    path = tmp_path_factory.mktemp("small") / "run.json"
    ran = started(f"$PY -m microbench {' '.join(GEMM)} --quiet --json {path}", cwd=path.parent)
    assert ran.returncode == 0, ran.stderr
    return path


# ---------------------------------------------------------------- standard output


@pytest.mark.parametrize(
    "words",
    [
        f"microbench show {PUBLISHED}", f"microbench show {PUBLISHED} --csv",
        f"microbench show {PUBLISHED} --markdown --verbose", "microbench --help",
        "e2e train --help",
        f"microbench compare {PUBLISHED} {PUBLISHED}", "e2e.halfway --version",
        "e2e.halfway completion bash",
    ],
)  # fmt: skip
def test_a_full_output_is_one_line(tmp_path: Path, words: str) -> None:
    check_one_line(started(f"$PY -m {words} > /dev/full", cwd=tmp_path), FULL)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_output_is_one_line_buffered_or_not(tmp_path: Path, unbuffered: str) -> None:
    words = "microbench --help > /dev/full"
    check_one_line(
        started(f"$PY -m {words}", cwd=tmp_path, env={"PYTHONUNBUFFERED": unbuffered}), FULL
    )


def test_a_closed_output_is_one_line(tmp_path: Path) -> None:
    ran = started(f"$PY -m microbench show {PUBLISHED} >&-", cwd=tmp_path)
    check_one_line(ran, "output")


def test_a_reader_that_leaves_ends_the_program_silently(tmp_path: Path) -> None:
    command = f"$PY -m microbench show {PUBLISHED} --csv | head -n 1"
    ran = started(command, cwd=tmp_path)
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "<&- >&- 2>&-", "2>&-", "2>/dev/full"])
def test_a_run_that_cannot_be_shown_is_in_its_file(tmp_path: Path, where: str) -> None:
    ran = started(f"$PY -m microbench {' '.join(GEMM)} --json run.json {where}", cwd=tmp_path)
    assert read_run(tmp_path / "run.json").finished_at
    assert os.listdir(tmp_path) == ["run.json"]
    if "2>" in where:
        assert ran.stderr == ""
    else:
        check_one_line(ran, "run.json")


def test_a_run_for_a_closed_output_says_where_it_is(tmp_path: Path) -> None:
    ran = started(
        f"$PY -m microbench {' '.join(GEMM)} --quiet --json - >&-", cwd=tmp_path,
        env={"XDG_STATE_HOME": str(tmp_path)},
    )  # fmt: skip
    (file,) = (tmp_path / "halfway" / "runs").iterdir()
    check_one_line(ran, str(file))
    read_run(file)


def test_an_error_to_a_closed_stream_keeps_its_code(tmp_path: Path) -> None:
    for where in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        ran = started(f"$PY -m microbench show no.json {where}", cwd=tmp_path)
        assert (ran.returncode, ran.stdout) == (2, "")


# ---------------------------------------------------------------- disks


def small_files(limit: int) -> Callable[[], None]:
    """For a child: no file may be larger, as on a disk that is full."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.parametrize(
    "words",
    [
        "show run.json --html a.html", "show run.json --chart a.svg", "explain run.json",
        "compare run.json run.json --json a.json", "compare run.json run.json --junit a.xml",
        "compare run.json run.json --html a.html", "doctor --device cpu --html a.html",
        f"{' '.join(GEMM)} --json a.json", "gemm --resume run.json --processes 2",
        "validate aa --device cpu --tries 1 --budget 0.1 --json a.json",
    ],
)  # fmt: skip
def test_a_full_disk_is_one_line_and_nothing_is_lost_or_left(
    tmp_path: Path, small_run: Path, words: str
) -> None:
    run = tmp_path / "run.json"
    shutil.copy(small_run, run)
    before = run.read_bytes()
    ran = subprocess.run(
        [sys.executable, "-m", "microbench", *words.split()], capture_output=True, text=True,
        cwd=tmp_path, env=environment(), preexec_fn=small_files(100), timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    (error,) = [line for line in ran.stderr.splitlines() if line.strip()]
    assert error.startswith("error: ")
    assert "File too large" in error
    assert run.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.json"]


def test_images_that_do_not_fit_are_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e2e", "make-data", "d", "--images", "20", "--classes", "2"]
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment(),
        preexec_fn=small_files(20_000), timeout=100, check=False,
    )  # fmt: skip
    check_one_line(ran, "File too large")
    assert os.listdir(tmp_path / "d") == []


# ---------------------------------------------------------------- explain


def test_explain_keeps_permissions_and_links(tmp_path: Path, small_run: Path) -> None:
    file, link = tmp_path / "run.json", tmp_path / "link.json"
    shutil.copy(small_run, file)
    file.chmod(0o640)
    link.symlink_to("run.json")
    ran = started("$PY -m microbench explain link.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "run.json"]


# ---------------------------------------------------------------- what is no file


@pytest.mark.parametrize("words", ["show X", "compare X X", "explain X", "gemm --resume X"])
@pytest.mark.parametrize("kind", ["zero", "pipe", "folder", "loop", "large"])
def test_only_files_of_some_size_are_read(tmp_path: Path, words: str, kind: str) -> None:
    path = Path("/dev/zero") if kind == "zero" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(kind)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    memory = 2 << 20  # KiB of address space: a file that is read whole would not fit
    ran = started(
        f"ulimit -v {memory}; $PY -m microbench {words.replace('X', str(path))}", cwd=tmp_path
    )
    check_one_line(ran, str(path))


@pytest.mark.parametrize("option", ["--json", "--csv", "--html", "--resume"])
def test_a_loop_of_links_is_no_output(tmp_path: Path, option: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    ran = started(f"$PY -m microbench {' '.join(GEMM)} {option} loop", cwd=tmp_path)
    check_one_line(ran, "loop")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize(
    "words", ["show run.json --html a.svg --chart a.svg", "show run.json --html b --chart a.svg",
              "show run.json --chart run.svg",
              "selftest --device cpu --json a --html a", "validate aa --json a --html a",
              "compare run.json run.json --json a --junit a"]
)  # fmt: skip
def test_the_outputs_of_a_command_are_not_one_file(
    tmp_path: Path, small_run: Path, words: str
) -> None:
    shutil.copy(small_run, tmp_path / "run.json")
    (tmp_path / "b").symlink_to("a.svg")
    (tmp_path / "run.svg").symlink_to("run.json")
    before = (tmp_path / "run.json").read_bytes()
    check_one_line(started(f"$PY -m microbench {words}", cwd=tmp_path), "same file")
    assert (tmp_path / "run.json").read_bytes() == before


# ---------------------------------------------------------------- two commands, one file


@pytest.fixture
def measuring(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that writes run.json for a while."""
    words = [*GEMM[:-1], "20", "--sizes", "16,32,64", "--json", "run.json", "--quiet"]
    command = [sys.executable, "-m", "microbench", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), start_new_session=True, text=True
    ) as process:
        try:
            wait_for(lambda: (tmp_path / "run.json").exists() or process.poll() is not None)
            assert process.poll() is None
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "words", ["gemm --resume run.json", "gemm --resume link.json", "explain run.json",
              f"{' '.join(GEMM)} --resume run.json"]
)  # fmt: skip
def test_a_file_that_is_being_written_is_refused(
    measuring: subprocess.Popen[str], tmp_path: Path, words: str
) -> None:
    (tmp_path / "link.json").symlink_to("run.json")
    check_one_line(started(f"$PY -m microbench {words}", cwd=tmp_path), "another command")
    assert measuring.poll() is None


def test_a_file_is_claimed_before_anything_is_measured(tmp_path: Path) -> None:
    """Of many that start at once, one measures, and its results are there."""
    words = f"$PY -m microbench {' '.join(GEMM)} --quiet --json run.json"
    ran = started(f"for i in 1 2 3; do ({words} || echo refused) & done; wait", cwd=tmp_path)
    assert ran.stdout.count("refused") == 2
    assert ran.stderr.count("error: --json run.json") == 2
    assert ran.stderr.count("\n") == 2
    read_run(tmp_path / "run.json")
    assert os.listdir(tmp_path) == ["run.json"]


def test_the_claim_of_a_killed_command_ends_with_it(
    measuring: subprocess.Popen[str], tmp_path: Path
) -> None:
    measuring.kill()
    measuring.wait(10)
    ran = started("$PY -m microbench gemm --resume run.json --budget 1 --quiet", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(read_run(tmp_path / "run.json").results) == 3
    assert os.listdir(tmp_path) == ["run.json"]


# ---------------------------------------------------------------- homes and caches


def places(tmp_path: Path, kind: str) -> dict[str, str]:
    """The variables of a user without a home that can be used."""
    file = tmp_path / "file"
    file.write_text("")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    named = {"HOME": str(file)} if kind == "home" else {}
    if kind == "folders":
        named = {"XDG_CACHE_HOME": str(file), "XDG_STATE_HOME": str(file)}
    return {"TMPDIR": str(temporary), **named}


NO_XDG = ("XDG_CACHE_HOME", "XDG_STATE_HOME")


@pytest.mark.parametrize("kind", ["home", "folders"])
def test_a_run_needs_no_home(tmp_path: Path, kind: str) -> None:
    env = places(tmp_path, kind)
    without = tuple(name for name in NO_XDG if name not in env)
    words = f"$PY -m microbench {' '.join(GEMM)} --quiet"
    ran = started(words, cwd=tmp_path, without=without, env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("warning: ")
    assert ran.stderr.count("\n") == 1
    (file,) = tmp_path.glob("tmp/halfway-*/runs/*.json")
    assert str(file.parent) in ran.stderr
    read_run(file)


def test_a_user_without_home_and_name_can_measure(tmp_path: Path) -> None:
    alone = "unshare -U --map-user=54321 --map-group=54321"
    if started(f"{alone} true", cwd=tmp_path).returncode:
        pytest.skip("this machine makes no user namespaces")
    ran = started(
        f"{alone} $PY -m microbench {' '.join(GEMM)} --quiet", cwd=tmp_path,
        without=(*NO_XDG, "HOME"), env={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "no home folder is known" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    env = places(tmp_path, "folders")
    mine = tmp_path / "tmp" / f"halfway-{os.getuid()}"
    mine.symlink_to(tmp_path)
    ran = started(f"$PY -m microbench {' '.join(GEMM)} --quiet", cwd=tmp_path, env=env)
    check_one_line(ran, "--json")
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- few files, little memory


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images."""
    folder = tmp_path_factory.mktemp("pictures") / "made"
    ran = started(f"$PY -m e2e make-data {folder} --images 40 --classes 2", cwd=folder.parent)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.parametrize("handles", [8, 12, 18, 20, 24])
def test_images_are_made_with_few_open_files_or_not_at_all(tmp_path: Path, handles: int) -> None:
    words = "e2e make-data made --images 40 --classes 2 --workers 3 --quiet"
    ran = started(f"ulimit -n {handles}; $PY -m {words}", cwd=tmp_path)
    if ran.returncode:
        check_one_line(ran, "Too many open files")
        assert not any((tmp_path / "made").glob("*"))
    else:
        assert ran.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("handles", [16, 24])
def test_a_loader_with_few_open_files_ends(tmp_path: Path, pictures: Path, handles: int) -> None:
    words = (
        f"e2e cnn-cifar --data folder:{pictures} --workers 2 --recipe fp32 --batch 4 "
        "--iterations 2 --budget 1 --device cpu --json run.json --quiet"
    )
    ran = started(f"ulimit -n {handles}; $PY -m {words}", cwd=tmp_path)
    check_one_line(ran, "ulimit -n")


@pytest.mark.parametrize(
    "words", [f"microbench {' '.join(GEMM)}", "e2e cnn-cifar --device cpu --data synthetic"]
)
@pytest.mark.parametrize("limit", ["-n 12", "-v 1000000"])
def test_a_machine_without_room_is_one_line(tmp_path: Path, words: str, limit: str) -> None:
    ran = started(f"ulimit {limit}; $PY -m {words} --json run.json", cwd=tmp_path)
    check_one_line(ran, "")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_shared_memory_that_cannot_be_written_is_one_line(tmp_path: Path, pictures: Path) -> None:
    alone = "unshare -Umr bash -c 'mount -t tmpfs -o ro none /dev/shm && exec \"$@\"' -"
    if started(f"{alone} true", cwd=tmp_path).returncode:
        pytest.skip("this machine makes no name spaces")
    for words in (
        "make-data made --images 4 --classes 2",
        f"cnn-cifar --data folder:{pictures} --workers 2 --recipe fp32 --batch 4 --iterations 1 "
        "--budget 1 --device cpu --quiet --json run.json",
    ):
        check_one_line(started(f"{alone} $PY -m e2e {words}", cwd=tmp_path), "/dev/shm")


# ---------------------------------------------------------------- the program within itself


@pytest.mark.parametrize(
    "words",
    ["e2e predict e2e.__main__:app", "e2e e2e.halfway:main",
     "microbench layers microbench.__main__:main", "e2e predict again:build"],
)  # fmt: skip
def test_the_program_does_not_start_within_itself(tmp_path: Path, words: str) -> None:
    (tmp_path / "again.py").write_text(
        "from e2e.__main__ import main\ndef build():\n    return main(['list'])\n"
    )
    ran = started(f"$PY -m {words} --device cpu", cwd=tmp_path)
    check_one_line(ran, "within itself")
    assert ran.stdout == ""
