"""Outputs that are closed or full, folders that are missing, and files of two commands at once.

What depends on streams, limits or names of users is a process of its own, as a shell starts it.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import pytest
from samples.commands import ROOT, Ran, environment, run_here
from samples.feeding import flat_folder

import e2e.__main__
import microbench.__main__
from microbench.results.runfile import claimed, read_run

GEMM = ("gemm", "--dtype", "fp32", "--vs", "none", "--sizes", "16", "--device", "cpu",
        "--budget", "0.2")  # fmt: skip
MEASURE = f"$PY -m microbench {' '.join(GEMM)}"
PUBLISHED = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
FULL = "No space left on device"
NO_XDG = ("XDG_CACHE_HOME", "XDG_STATE_HOME")


def started(
    shell: str, cwd: Path, without: Sequence[str] = (), env: Mapping[str, str] = {}
) -> Ran:  # fmt: skip
    """What a shell's command line ends with; $PY is this Python.

    Its environment is this one's with `env`, and `without` some variables.
    """
    there = environment(**{"PY": sys.executable, **env})
    for name in without:
        there.pop(name, None)
    return subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, cwd=cwd, env=there, timeout=200,
        check=False,
    )  # fmt: skip


def here(words: str, cwd: Path, **env: str) -> Ran:
    """A command of microbench in this process."""
    return run_here(microbench.__main__.main, "microbench", *words.split(), cwd=cwd, **env)


def check_one_line(ran: Ran, part: str, code: int = 2) -> None:
    """One error line that says `part`, and the exit code."""
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    assert part in ran.stderr


@contextlib.contextmanager
def limited(which: int, amount: int) -> Iterator[None]:
    """This process has less of a resource (RLIMIT_*)."""
    kept = resource.getrlimit(which)
    resource.setrlimit(which, (amount, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, kept)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this machine."""
    path = tmp_path_factory.mktemp("small") / "run.json"
    ran = here(f"{' '.join(GEMM)} --quiet --json {path}", path.parent)
    assert ran.returncode == 0, ran.stderr
    return path


# ---------------------------------------------------------------- standard output


@pytest.mark.parametrize(
    "words",
    [f"microbench show {PUBLISHED}", f"microbench show {PUBLISHED} --csv", "e2e train --help",
     f"microbench compare {PUBLISHED} {PUBLISHED}"],
)  # fmt: skip
@pytest.mark.parametrize(("where", "said"), [("> /dev/full", FULL), (">&-", "output")])
def test_a_full_or_closed_output_is_said(tmp_path: Path, words: str, where: str, said: str) -> None:
    """Buffered or not."""
    unbuffered = "1" if "--help" in words else ""
    ran = started(f"$PY -m {words} {where}", tmp_path, env={"PYTHONUNBUFFERED": unbuffered})
    check_one_line(ran, said)


def test_a_reader_that_leaves_ends_the_program_silently(tmp_path: Path) -> None:
    ran = started(f"$PY -m microbench show {PUBLISHED} --csv | head -n 1", tmp_path)
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""


@pytest.mark.parametrize("where", [">/dev/full", "<&- >&- 2>&-"])
def test_a_run_that_cannot_be_shown_is_in_its_file(tmp_path: Path, where: str) -> None:
    ran = started(f"{MEASURE} --json run.json {where}", tmp_path)
    assert read_run(tmp_path / "run.json").finished_at
    assert os.listdir(tmp_path) == ["run.json"]
    if "2>" in where:
        assert ran.stderr == ""
    else:
        check_one_line(ran, "run.json")


def test_a_run_for_a_closed_output_says_where_it_is_and_errors_keep_codes(tmp_path: Path) -> None:
    ran = started(
        f"{MEASURE} --quiet --json - >&-", tmp_path, env={"XDG_STATE_HOME": str(tmp_path)}
    )
    (file,) = (tmp_path / "halfway" / "runs").iterdir()
    check_one_line(ran, str(file))
    read_run(file)
    for where in ("2>&-", "2>/dev/full", ">&- 2>&-"):
        ran = started(f"$PY -m microbench show no.json {where}", tmp_path)
        assert (ran.returncode, ran.stdout) == (2, "")


# ---------------------------------------------------------------- disks


@pytest.mark.parametrize(
    "words",
    [
        "show run.json --html a.html", "show run.json --chart a.svg", "explain run.json",
        "compare run.json run.json --json a.json",
        "compare run.json run.json --html a.html",
        f"{' '.join(GEMM)} --json a.json", "gemm --resume run.json --processes 2",
    ],
)  # fmt: skip
def test_on_a_full_disk_nothing_is_lost(tmp_path: Path, small_run: Path, words: str) -> None:
    run = tmp_path / "run.json"
    shutil.copy(small_run, run)
    before = run.read_bytes()
    with limited(resource.RLIMIT_FSIZE, 100):
        ran = here(words, tmp_path)
    assert ran.returncode == 2
    (error,) = [line for line in ran.stderr.splitlines() if line.strip()]
    assert error.startswith("error: ")
    assert "File too large" in error
    assert run.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.json"]


def test_images_that_do_not_fit_are_no_dataset(tmp_path: Path) -> None:
    words = f"ulimit -f 20; XDG_CACHE_HOME=$PWD $PY -m e2e {MAKE}"
    check_one_line(started(words, tmp_path), "File too large")
    assert all(name.startswith(".") for name in os.listdir(tmp_path / "halfway" / "made"))


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
            file.truncate(1 << 33)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    more = 1 << 30  # bytes: a file that is read whole would not fit
    with limited(resource.RLIMIT_AS, pages * resource.getpagesize() + more):
        check_one_line(here(words.replace("X", str(path)), tmp_path), str(path))


@pytest.mark.parametrize(
    "words", ["show run.json --html a.svg --chart a.svg", "show run.json --html b --chart a.svg",
              "show run.json --chart run.svg",
              "compare run.json run.json --json a --html a"]
)  # fmt: skip
def test_the_outputs_of_a_command_are_not_one_file(tmp_path: Path, words: str) -> None:
    shutil.copy(PUBLISHED, tmp_path / "run.json")
    (tmp_path / "b").symlink_to("a.svg")
    (tmp_path / "run.svg").symlink_to("run.json")
    check_one_line(here(words, tmp_path), "same file")
    assert (tmp_path / "run.json").read_bytes() == PUBLISHED.read_bytes()


# ---------------------------------------------------------------- two commands, one file


@pytest.mark.parametrize(
    "words", ["gemm --resume run.json", "gemm --resume link.json", "explain run.json",
              f"{' '.join(GEMM)} --resume run.json"]
)  # fmt: skip
def test_a_file_that_is_written_is_refused(tmp_path: Path, small_run: Path, words: str) -> None:
    shutil.copy(small_run, tmp_path / "run.json")
    (tmp_path / "link.json").symlink_to("run.json")
    with claimed(tmp_path / "run.json", "--json"):
        check_one_line(here(words, tmp_path), "another command")


def test_a_file_is_claimed_before_anything_is_measured(tmp_path: Path) -> None:
    """Of many that start at once, one measures, and its results are there."""
    words = f"{MEASURE} --quiet --json run.json"
    ran = started(f"for i in 1 2 3; do ({words} || echo refused) & done; wait", tmp_path)
    assert ran.stdout.count("refused") == 2
    assert ran.stderr.count("error: --json run.json") == 2
    assert ran.stderr.count("\n") == 2
    read_run(tmp_path / "run.json")
    assert os.listdir(tmp_path) == ["run.json"]


def test_the_claim_of_a_killed_command_ends_with_it(tmp_path: Path) -> None:
    holds = (
        "import os, signal\nfrom pathlib import Path\n"
        "from microbench.results.runfile import claimed\n"
        "with claimed(Path('run.json'), '--json'):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = started(f'$PY -c "{holds}"', tmp_path)
    assert ran.returncode, "it was killed"
    assert ran.stderr == ""
    assert os.listdir(tmp_path), "it leaves its lock"
    with claimed(tmp_path / "run.json", "--json"):
        pass
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------- homes and caches


@pytest.mark.parametrize("names", [["HOME"], NO_XDG])
def test_a_run_needs_no_home(tmp_path: Path, names: Sequence[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    places = dict.fromkeys(names, str(tmp_path / "file")) | {"TMPDIR": str(tmp_path / "tmp")}
    left_out = [name for name in NO_XDG if name not in names]
    ran = started(f"{MEASURE} --quiet", tmp_path, left_out, places)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("warning: ")
    assert ran.stderr.count("\n") == 1
    (file,) = tmp_path.glob("tmp/halfway-*/runs/*.json")
    assert str(file.parent) in ran.stderr
    read_run(file)


def test_a_user_without_home_and_name_can_measure(tmp_path: Path) -> None:
    alone = "unshare -U --map-user=54321 --map-group=54321"
    if started(f"{alone} true", tmp_path).returncode:
        pytest.skip("this machine makes no user namespaces")
    ran = started(
        f"{alone} {MEASURE} --quiet", tmp_path, (*NO_XDG, "HOME"), {"TMPDIR": str(tmp_path)}
    )
    assert ran.returncode == 0, ran.stderr
    assert "no home folder is known" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_folder_of_another_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"halfway-{os.getuid()}").symlink_to(tmp_path)
    homes = dict.fromkeys(NO_XDG, str(tmp_path / "file"))
    check_one_line(here(f"{' '.join(GEMM)} --quiet", tmp_path, **homes), "--json")
    assert not (tmp_path / "runs").exists()


# ---------------------------------------------------------------- few files, little memory


TRAIN = ("cnn-cifar --data folder:pictures --workers 2 --recipe fp32 --batch 4 --iterations 1 "
         "--budget 1 --device cpu --quiet --json run.json")  # fmt: skip
MAKE = "loader --data made --backend read --workers 1 --device cpu --quiet --json run.json"


@pytest.mark.parametrize(
    ("handles", "words", "said"),
    [(10, MAKE, "Too many open files"), (14, MAKE, "ulimit -n"), (23, TRAIN, "ulimit -n")],
)
def test_few_open_files_are_one_line(tmp_path: Path, handles: int, words: str, said: str) -> None:
    flat_folder(tmp_path / "pictures")
    words = f"ulimit -n {handles}; XDG_CACHE_HOME=$PWD $PY -m e2e {words}"
    check_one_line(started(words, tmp_path), said)
    assert all(path.name.startswith(".") for path in (tmp_path / "halfway" / "made").glob("*"))


@pytest.mark.parametrize(
    "words", [f"microbench {' '.join(GEMM)}", "e2e cnn-cifar --device cpu --data synthetic"]
)
@pytest.mark.parametrize(
    ("limit", "said"), [("-n 12", "Too many open files (ulimit -n)"), ("-v 1000000", "libtorch")]
)
def test_without_room_there_is_one_line(tmp_path: Path, words: str, limit: str, said: str) -> None:
    check_one_line(started(f"ulimit {limit}; $PY -m {words} --json run.json", tmp_path), said)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [MAKE, TRAIN])
def test_shared_memory_that_cannot_be_written_is_one_line(tmp_path: Path, words: str) -> None:
    alone = "unshare -Umr bash -c 'mount -t tmpfs -o ro none /dev/shm && exec \"$@\"' -"
    if started(f"{alone} true", tmp_path).returncode:
        pytest.skip("this machine makes no name spaces")
    flat_folder(tmp_path / "pictures")
    words = f"XDG_CACHE_HOME=$PWD {alone} $PY -m e2e {words}"
    check_one_line(started(words, tmp_path), "/dev/shm")


# ---------------------------------------------------------------- the program within itself


def test_another_program_of_click_may_call_it() -> None:
    other = click.Command("other", callback=lambda: e2e.__main__.main(["list"]))
    with contextlib.redirect_stdout(io.StringIO()):
        assert other.main([], standalone_mode=False) == 0
