"""What is special to `gemm`, `show`, `compare` and the console command: more in test_commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
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
    shapes = ("--shapes=private/s.csv", "--without=tma/*", "--json=/tmp/x.json")
    assert kept("conv", *shapes) == ("e2e", "conv", "--shapes", "s.csv", "--without", "tma/*")


# ---------------------------------------------------------------- the console command


def test_every_command_of_both_packages_is_one_of_halfways() -> None:
    ours = {id(command) for group in (app, dev) for command in group.commands.values()}
    for group in (kernels_line.app, training_line.app):
        assert {id(command) for command in group.commands.values()} <= ours
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted([*listed, "dev"]) == sorted(app.commands)
    assert len(listed) <= 17


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


def test_bash_completes_commands() -> None:
    environment = {
        "COMP_WORDS": "halfway pre", "COMP_CWORD": "1", "_HALFWAY_COMPLETE": "bash_complete",
        "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from e2e.halfway import app; app(prog_name='halfway')"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.stdout.split() == ["plain,predict"]


# ---------------------------------------------------------------- compare


RESULTS = ROOT / "results" / "nvidia-h200"
GEMM, OWN = (RESULTS / f"gemm-{name}.json" for name in ("fp16", "triton"))
TRAINED, EIGHT = RESULTS / "train-resnet50.json", RESULTS / "processes-gemm.json"


def compare(*words: object) -> Ran:
    return run_here(main, "halfway", "compare", *words)


def slower(source: Path, path: Path, factor: float) -> Path:
    """A published run that took this many times as long."""
    document = json.loads(source.read_text())
    for result in document["results"]:
        for part in (result, *(result.get("processes") or ())):
            for name in ("median_s", "step_s", "ci95_s", "times_s", "wall_times_s"):
                value = part.get(name)
                if isinstance(value, list):
                    part[name] = [factor * seconds for seconds in value]
                elif value:
                    part[name] = factor * value
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slower(GEMM, tmp_path_factory.mktemp("slow") / "slow.json", 1.2)


def test_the_page_of_several_runs_has_the_rows_of_the_screen(slow: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert compare(GEMM, OWN, slow, "--html", page).returncode == 0
    shown, _, values = page.read_text(encoding="utf-8").partition("Raw values")
    assert all(name in shown for name in (GEMM.name, OWN.name, slow.name, "slower"))
    key = json.loads(GEMM.read_text())["results"][0]["case"]
    written = ",".join(f"{name}={key[name]}" for name in ("m", "n", "k"))
    assert written in values
    assert written not in shown


def test_exit_codes(slow: Path, tmp_path: Path) -> None:
    assert compare(GEMM, OWN, slow, "--fail-on", "slower").returncode == 1
    assert compare(GEMM, OWN).returncode == 0
    assert compare(GEMM, OWN, "--fail-on", "slower").returncode == 1, "it lacks fp32"
    assert compare(GEMM, slow, "--fail-on", "slower", "--threshold", "50%").returncode == 0
    assert compare(slow, GEMM, "--fail-on", "faster").returncode == 1
    trained = slower(TRAINED, tmp_path / "trained.json", 4)
    assert compare(TRAINED, trained).returncode == 0
    assert compare(TRAINED, trained, "--fail-on", "slower").returncode == 1
    for a, b in ((GEMM, GEMM), (slow, GEMM), (trained, TRAINED)):
        assert compare(a, b, "--fail-on", "slower").returncode == 0


def test_json_of_one_run_and_of_several(slow: Path, tmp_path: Path) -> None:
    """Two of one name are kept apart."""
    one, several, twin = (tmp_path / f"{name}.json" for name in ("one", "several", "slow"))
    twin.write_text(slow.read_text())
    compare(EIGHT, slower(EIGHT, tmp_path / "eight.json", 1.2), "--json", one)
    compare(GEMM, slow, OWN, twin, slow, "--json", several, "--threshold", "5")
    row = json.loads(one.read_text())["rows"][-1]
    assert row["reason"] == "interval is beyond it"
    assert row["threshold_pct"] == 1.0  # of runs that know how their processes differ
    written = json.loads(several.read_text())
    names = [found["run"] for found in written["comparisons"]]
    assert names[1] == OWN.name
    assert len(set(names)) == 4
    assert written["comparisons"][0]["threshold_pct"] == 5.0
