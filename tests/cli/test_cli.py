"""What is special to `gemm`, `show` and the console command; the rest: test_commands.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from samples.commands import ROOT, Ran, environment, run_here

import e2e.__main__ as training_line
import microbench.__main__ as kernels_line
from e2e.halfway import SECTIONS, app, dev, main
from microbench import __version__
from microbench.run_output import command_line

MISTAKES = (
    "gemm --dtype fp7", "train resnet5 --amp", "predict mine:build --recipe fp7",
    "stalls resnet18 --loader none", "loader --backend none", "diagnose none.py", "diagnose a.json",
    "layers resnet5", "train resnet50 --recipe amp16", "train none:build", "list --all",
)  # fmt: skip
# What needs torch is in their children.
WITHOUT_TORCH = ("list", "predict cnn-cifar --recipe fp32 --batch 2 --device cpu --quiet")
TINY = ("--dtype", "fp32", "--vs", "none", "--sizes", "16", "--device", "cpu", "--budget", "0.2")


def halfway(*words: object, **environment: str) -> Ran:
    return run_here(main, "halfway", *words, **environment)


# ---------------------------------------------------------------- runs


def test_a_run_for_standard_output_has_it_alone() -> None:
    """And a CPU has no TF32, which is a result with its reason."""
    ran = halfway("gemm", "--dtype", "fp16", *TINY[4:], "--json", "-", "--seed", "3")
    assert ran.returncode == 0, ran.stderr
    run = json.loads(ran.stdout)
    assert run["settings"]["seed"] == 3
    assert "GFLOP/s" in ran.stderr
    found = {result["precision"]: result for result in run["results"]}
    statuses = {name: result["status"] for name, result in found.items()}
    assert statuses == {"fp32": "ok", "tf32": "skipped", "fp16": "ok"}
    assert "CPU" in found["tf32"]["reason"]
    assert found["tf32"]["flops"] == 2 * 16**3, "what was skipped has its work in the file too"
    for name in ("fp32", "fp16"):
        low, high = found[name]["ci95_s"]
        assert 0 < low <= found[name]["median_s"] <= high
        assert found[name]["bound"]
        assert found[name]["rel_error"] is not None


def test_a_run_file_keeps_no_path_of_its_command() -> None:
    def kept(name: str, *words: str) -> tuple[object, ...]:
        with app.commands[name].make_context(name, list(words)).scope():
            return command_line("e2e")[2:]

    assert kept("train", "hf:/home/me/config.json", "--data", "folder:/home/me/images/", "--batch",
                "16..512:+1", "--json", "/tmp/x.json", "--no-fused", "--budget", "0.5") == (
        "e2e", "train", "hf:config.json", "--batch", "16..512:+1", "--no-fused", "--data",
        "folder:images", "--budget", "0.5",
    )  # fmt: skip
    shapes = ("--shapes=private/s.csv", "--without=tma/*", "--html=/tmp/x.html")
    assert kept("conv", *shapes) == ("e2e", "conv", "--shapes", "s.csv", "--without", "tma/*")


# ---------------------------------------------------------------- the console command


def test_every_command_of_both_packages_is_one_of_halfways() -> None:
    ours = {id(command) for group in (app, dev) for command in group.commands.values()}
    for group in (kernels_line.app, training_line.app):
        assert {id(command) for command in group.commands.values()} <= ours
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted([*listed, "dev"]) == sorted(app.commands)
    assert len(listed) <= 16


def test_it_is_installed_says_its_version_and_refuses_in_a_line() -> None:
    program = shutil.which("halfway", path=str(Path(sys.executable).parent))
    assert program, "pip install -e . puts it beside python"
    found = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == f"halfway, version {__version__}"
    found = subprocess.run(
        [program, "gemm", "--dtype", "fp7"], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch("error: .*fp16.*\n", found.stderr)


def test_help_and_bad_words_import_nothing_heavy() -> None:
    code = (
        "import sys; from e2e.halfway import app, main\n"
        "codes = [main([*words, '--help-all']) for words in ([], *([n] for n in app.commands))]\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'triton', 'cupy', 'pynvml', 'rich'}\n"
        "assert not any(codes), codes\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"assert [main(words.split()) for words in {MISTAKES}] == [2] * {len(MISTAKES)}\n"
        f"assert [main(words.split()) for words in {WITHOUT_TORCH}] == [0] * {len(WITHOUT_TORCH)}\n"
        "assert not {'torch', 'torchvision'} & set(sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("--sizes", "--resume", "--fail-on", "--amp", "--ladder", "--keep-batchnorm"):
        assert word in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 100


def test_completion_is_a_script_for_the_shell_and_bash_completes_commands() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_HALFWAY_COMPLETE" in halfway("dev", "completion", shell).stdout
    environment = {
        "COMP_WORDS": "halfway pre", "COMP_CWORD": "1", "_HALFWAY_COMPLETE": "bash_complete",
        "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from e2e.halfway import app; app(prog_name='halfway')"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.split() == ["plain,predict"]
