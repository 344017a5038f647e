"""The console command: every command of both packages, once, under one name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import e2e.__main__ as training_line
import microbench.__main__ as kernels_line
from e2e.halfway import SECTIONS, app, main
from microbench import __version__
from microbench.results.runfile import read_run

GEMM = Path(__file__).parents[2] / "results" / "nvidia-h200" / "gemm-fp16.json"


def test_every_command_of_both_packages_is_one_of_halfways() -> None:
    ours = {id(command) for command in app.commands.values()}
    for group in (kernels_line.app, training_line.app):
        assert {id(command) for command in group.commands.values()} <= ours
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(app.commands)


def test_it_is_installed_and_says_its_version() -> None:
    program = shutil.which("halfway", path=str(Path(sys.executable).parent))
    assert program, "pip install -e . puts it beside python"
    found = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == f"halfway, version {__version__}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert "_HALFWAY_COMPLETE" in capsys.readouterr().out


def test_bash_completes_commands() -> None:
    environment = {
        "COMP_WORDS": "halfway pre", "COMP_CWORD": "1", "_HALFWAY_COMPLETE": "bash_complete",
        "PYTHONPATH": str(GEMM.parents[2]), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from e2e.halfway import app; app(prog_name='halfway')"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.split() == ["plain,predict"]


def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gemm", "--sizes", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_file_keeps_the_command_as_it_was_called(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    words = ["gemm", "--sizes", "16", "--vs", "none", "--dtype", "fp32", "--budget", "0.2"]
    assert main([*words, "--device", "cpu", "--quiet", "--json", str(path)]) == 0
    assert read_run(path).command[0] == "halfway"
