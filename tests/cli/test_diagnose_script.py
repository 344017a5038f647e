"""`diagnose SCRIPT.py` in processes of its own: arguments, exit codes, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from samples.commands import MARK, ROOT, marked, run_here, wait_for
from samples.recording import PROOFS, RECORDER, STEPS, User, source

from e2e.__main__ import main
from e2e.commands.diagnose import parse_condition
from e2e.commands.record import keep
from microbench.results.runfile import claimed

SCRIPT = """
import sys
import torch
from beside import FEATURES

model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("arguments", sys.argv[1:], flush=True)
for number in range(int(sys.argv[1]) if sys.argv[1:] else 30):
    loss = model(torch.randn(64, FEATURES)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the end", number)
"""


@pytest.fixture
def user(tmp_path: Path, quick_python: str) -> User:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("FEATURES = 16\n")
    (tmp_path / "tmp").mkdir()
    return User(tmp_path, quick_python)


def diagnose(user: User, *words: str, code: int = 0, **more: str) -> tuple[str, str]:
    """Run the command: its output, and its errors."""
    temporary = user.folder / "tmp"
    done = user.run(
        "-m", "e2e", "diagnose", *words, code=code, COLUMNS="100", TMPDIR=str(temporary),
        PYTHONPATH=str(ROOT), **more,
    )  # fmt: skip
    assert "Traceback" not in done.stderr or code == 3, done.stderr
    assert not list(temporary.glob("halfway-*")), "a temporary folder is left"
    return done.stdout, done.stderr


def test_a_script_is_run_recorded_and_explained(user: User) -> None:
    options = (*STEPS, "--json", "found.json", "--keep", "kept")
    out, _ = diagnose(user, *options, "train.py", "--", "25", "--odd", "x y")
    plan, _, *_ = out.splitlines()
    assert "train.py" in plan
    assert "8 steps" in plan
    assert "arguments ['25', '--odd', 'x y']" in out
    assert "matrix multiplications" in out
    assert "the end" not in out, "it was ended once its steps were recorded"
    text = (user.folder / "found.json").read_text()
    (traced,) = json.loads(text)["runs"]
    assert traced["name"] == "train.py 25 --odd 'x y'"
    assert traced["steps"] == 2
    assert sum(term["ns"] for term in traced["terms"]) == traced["window_ns"]
    assert str(user.folder) not in text
    name = "train 25 --odd x y"
    kept = sorted(path.name for path in (user.folder / "kept").iterdir())
    assert kept == [f"{name}.json.gz", f"{name}.proofs.json"]
    shown = run_here(main, "e2e", "show", "found.json", cwd=user.folder)
    assert shown.stdout.strip() in out


def test_two_runs_of_it_are_compared_and_may_be_kept(user: User) -> None:
    """With the same arguments both traces have one name, and neither is held against itself."""
    met = "matrix multiplications>0"
    options = (*STEPS, "--json", "found.json", "--keep", "kept", "--fail-on", met)
    out, _ = diagnose(user, *options, "train.py", "--base-args", "", code=4)
    assert out.count("arguments []") == 2
    assert "  change" in out, "a table of both"
    first, second = json.loads((user.folder / "found.json").read_text())["runs"]
    assert first["window_ns"] != second["window_ns"]
    kept = sorted(path.name for path in (user.folder / "kept").iterdir())
    assert kept == ["train-2.json.gz", "train-2.proofs.json", "train.json.gz"]
    out, _ = diagnose(user, "kept/train.json.gz", "--base", "kept/train-2.json.gz")
    assert "  change" in out, "a table of both"
    _, errors = diagnose(user, "kept/train.json.gz", "--fail-on", "busy<70", code=2)
    assert errors == "error: --fail-on busy: no GPU was recorded\n"


@pytest.mark.parametrize(
    ("script", "words", "code", "said"),
    [
        ("import sys, torch\nsys.exit(7)\n", (), 3, ["train.py failed: exit code 7"]),
        ("import torch\nraise ValueError('a mistake of its own')\n", (), 3,
         ["line 2", "ValueError: a mistake of its own"]),
        ("import os\nos.kill(os.getpid(), 50)\n", (), 3, ["train.py was ended by signal 50"]),
        (SCRIPT + "1 / 0\n", ("--", "7"), 3, ["ZeroDivision", "train.py failed: exit code 1"]),
        (SCRIPT, ("--", "4"), 1, ["error: halfway wrote nothing: 4 steps were seen"]),
    ],
    ids=["exits", "raises", "killed", "while it is recorded", "too few"],
)  # fmt: skip
def test_what_goes_wrong_has_a_line_and_a_code_of_its_own(
    user: User, script: str, words: tuple[str, ...], code: int, said: list[str]
) -> None:
    (user.folder / "train.py").write_text(script)
    _, errors = diagnose(user, *STEPS, "train.py", *words, code=code)
    for text in said:
        assert text in errors
    assert "runpy" not in errors, "the frames of a script are its own"
    if code == 3:
        assert "steps were seen" not in errors, "a script that failed had no chance to take more"


def test_a_base_has_other_arguments_and_labels_show_them(user: User) -> None:
    options = (*STEPS, "--json", "found.json", "--base-args", "26 --fp32")
    out, _ = diagnose(user, *options, "train.py", "--", "25", "--amp", "http://x//y/")
    assert "arguments ['26', '--fp32']" in out
    assert "arguments ['25', '--amp', 'http://x//y/']" in out
    document = json.loads((user.folder / "found.json").read_text())
    names = [run["name"] for run in document["runs"]]
    assert names == ["train.py 26 --fp32", "train.py 25 --amp http://x//y/"]
    assert document["command"][4:] == [
        *STEPS, "--base-args", "26 --fp32", "train.py", "--", "25", "--amp", "http://x//y/",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["module", "file", "command"])
def test_a_module_and_a_command_of_a_package_are_run_too(user: User, kind: str) -> None:
    """A command is a file without .py, with Python in its first line; it is found by PATH too."""
    (user.folder / "package").mkdir()
    (user.folder / "package/__init__.py").write_text("")
    (user.folder / "package/train.py").write_text(SCRIPT.replace("beside", "package"))
    (user.folder / "package/__init__.py").write_text("FEATURES = 16\n")
    command = user.folder / "train-it"
    command.write_text(f"#!{user.python}\n{SCRIPT}")
    command.chmod(0o755)
    words = {"module": ("-m", "package.train", *STEPS), "file": (*STEPS, "./train-it"),
             "command": (*STEPS, "train-it")}  # fmt: skip
    path = f"{user.folder}:/usr/bin:/bin"
    out, _ = diagnose(user, *words[kind], "--json", "x", "--", "25", "--odd", PATH=path)
    assert "arguments ['25', '--odd']" in out
    name = "package.train" if kind == "module" else "train-it"
    assert json.loads((user.folder / "x").read_text())["runs"][0]["name"] == f"{name} 25 --odd"


RANKED = "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + SCRIPT.replace(
    "int(sys.argv[1]) if sys.argv[1:] else 30", "30"
)


def test_a_launcher_starts_the_recorder_on_each_rank(user: User) -> None:
    (user.folder / "train.py").write_text(RANKED)
    launcher = ("torchrun", "--standalone", "--nproc_per_node", "2", "train.py", "--lr", "3")
    out, _ = diagnose(user, *STEPS, "--keep", "kept", *launcher)
    assert "torchrun --standalone --nproc_per_node 2 train.py runs for 8 steps" in out
    kept = sorted(path.name for path in (user.folder / "kept").iterdir())
    assert kept == [f"train --lr 3.rank{rank}.json.gz" for rank in (0, 1)]


def test_a_script_that_dies_while_changes_are_tried_is_diagnosed_all_the_same(user: User) -> None:
    """The recorder has ended then: this step is one of those that only try."""
    dies = "    if number == 10:\n        import os; os.kill(os.getpid(), 9)\n"
    (user.folder / "train.py").write_text(SCRIPT.replace("    loss = ", dies + "    loss = "))
    out, errors = diagnose(user, *STEPS, "train.py")
    assert "ms a step" in out
    assert "train.py was ended by SIGKILL while changes were tried" in errors


@pytest.mark.parametrize(
    "name", ["Data loading wait", "CPU launch", "casts and scales for fp8", "long steps"]
)
def test_a_condition_takes_the_names_that_are_printed(name: str) -> None:
    assert parse_condition(f"{name} > 40 %") == parse_condition(f"{name.upper()}>40")
    assert parse_condition(f"{name}<5").pct == 5


def test_the_recorder_is_printed_and_two_diagnoses_cannot_write_one_file(
    capsys: pytest.CaptureFixture[str], user: User
) -> None:
    assert main(["diagnose", "--print-recorder"]) == 0
    assert capsys.readouterr().out == source(RECORDER)
    assert main(["diagnose", "--print-recorder", "--prove"]) == 0
    assert capsys.readouterr().out == source(PROOFS)
    with claimed(user.folder / "found.json", "--json"):
        ran = run_here(main, "e2e", "diagnose", "train.py", "--json", "found.json", cwd=user.folder)
    assert ran.returncode == 2
    assert "another command is writing this file" in ran.stderr


def test_a_kept_trace_replaces_none(tmp_path: Path) -> None:
    trace, folder = tmp_path / "train.json.gz", tmp_path / "kept"
    folder.mkdir()
    (folder / "train-2.json.gz").symlink_to(tmp_path / "victim")
    for content in (b"first", b"second"):
        trace.write_bytes(content)
        keep(trace, folder)
    assert (folder / "train.json.gz").read_bytes() == b"first"
    assert (folder / "train-3.json.gz").read_bytes() == b"second"
    assert not (tmp_path / "victim").exists()


# What it starts has left its group, and ignores signals. No step is taken: torch is only imported.
STAYS = """
import subprocess, sys, time
code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
if "alone" not in sys.argv:
    subprocess.Popen(
        [sys.executable, "-c", code + "print('started', flush=True); time.sleep(600)"],
        start_new_session=True,
    )
print("arguments", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("which", "starts"),
    [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, True), (signal.SIGKILL, False)],
)
def test_the_script_ends_with_the_command(user: User, which: signal.Signals, starts: bool) -> None:
    """And what it started, where the command can still see to that. The script is a real Python."""
    (user.folder / "stays.py").write_text(STAYS)
    words = () if starts else ("--", "alone")
    process = subprocess.Popen(
        [user.python, "-m", "e2e", "diagnose", "--python", sys.executable, "stays.py", *words],
        cwd=user.folder, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), MARK: str(user.folder)},
    )  # fmt: skip
    awaited = {"arguments", "started"} if starts else {"arguments"}
    while awaited:
        line = process.stdout.readline()
        assert line, "it ended"
        awaited -= set(line.split()[:1])
    process.send_signal(which)
    assert process.wait(180) == (128 + which if starts else -which)
    wait_for(lambda: not marked(str(user.folder)))
    process.communicate()
