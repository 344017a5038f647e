"""Functions for scripts and notebooks: what they measure, and how it shows itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import microbench
from microbench.__main__ import app
from microbench.command_words import called
from microbench.results.runfile import read_run

ROOT = Path(__file__).parents[2]
GEMM = ROOT / "results" / "nvidia-h200" / "gemm-fp16.json"
SCRIPT = """
import microbench
run = microbench.gemm(sizes=[16], dtypes="bf16", vs="none", device="cpu", budget=0.2)
print(len(run.results), run.path.exists())
"""


def test_a_script_without_a_main_guard_measures(tmp_path: Path) -> None:
    """The measuring process must not run the script again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    found = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (found.stdout, found.stderr) == ("1 True\n", "")


def test_slower_work_takes_longer() -> None:
    a = torch.randn(128, 128)
    found = microbench.compare_arms(
        {"once": lambda a: a @ a, "ten times": lambda a: [a @ a for _ in range(10)]}, a, budget=0.5
    )
    ratio = found.speedups["ten times"]
    assert ratio.ratio < 1
    assert found["once"].median_s < found["ten times"].median_s
    assert list(found.speedups) == ["ten times"]


def test_a_measurement_holds_its_samples_and_shows_itself() -> None:
    found = microbench.bench(torch.relu, torch.randn(1000), budget=0.2)
    assert min(found.times_s) <= found.median_s <= max(found.times_s)
    assert sum(found.blocks) == len(found.times_s)
    assert (found.name, found.timer, found.regime) == ("relu", "clock", "unmanaged")
    frame = found.to_dataframe()
    assert list(frame["seconds"]) == list(found.times_s)
    assert frame["block"].nunique() == len(found.blocks)
    assert "<td>relu</td>" in found._repr_html_()
    assert found.chart().to_dict()["layer"]


def test_what_a_callable_raises_is_the_callers() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        microbench.bench(torch.matmul, torch.ones(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("conditions", "said"),
    [({"timer": "events"}, "needs a CUDA device"), ({"device": "tpu"}, "unknown device")],
)
def test_a_condition_that_the_device_lacks_is_a_user_error(
    conditions: dict[str, str], said: str
) -> None:
    with pytest.raises(microbench.UserError, match=said):
        microbench.bench(torch.relu, torch.ones(3), **conditions)


def test_nothing_to_time_is_a_user_error() -> None:
    with pytest.raises(microbench.UserError, match="at least one"):
        microbench.compare_arms({})


@pytest.mark.parametrize(
    ("options", "near"), [({"size": 4}, "sizes"), ({"dtyp": "fp16"}, "dtype"), ({"name": 1}, "")]
)
def test_an_unknown_option_is_a_type_error_with_near_ones(
    options: dict[str, object], near: str
) -> None:
    with pytest.raises(TypeError, match=f"no option '{next(iter(options))}'.*{near}"):
        microbench.gemm(**options)


def asked(name: str, *arguments: str, **options: object) -> dict[str, object]:
    """What a command is asked by keywords, without the words that only say what is shown."""
    with called(app.commands[name], arguments, options) as words:
        return {key: value for key, value in words.items() if key != "quiet"}


def test_keywords_mean_what_the_words_of_the_command_line_mean() -> None:
    def typed(name: str, *words: str) -> dict[str, object]:
        params = app.commands[name].make_context(name, list(words)).params
        return {key: value for key, value in params.items() if key != "quiet"}

    assert asked(
        "gemm", sizes=[16, (32, 64, 128)], precision=["fp16", "bf16"], baseline="none"
    ) == (typed("gemm", "--sizes", "16,32x64x128", "--dtype", "fp16,bf16", "--vs", "none"))
    usual = typed("conv", "--layout", "nhwc", "--pass", "dgrad", "--stride", "2")
    assert asked("conv", channels_last=True, passes="dgrad", stride=2) == usual
    assert asked("conv", layout="nhwc", stride="2", **{"pass": ["dgrad"]}) == usual
    assert asked("layers", "resnet18", channels_last=False) == typed("layers", "resnet18")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stride": "two"}, "'two' is not a valid integer"),
        ({"channels_last": "yes"}, "True or False"),
        ({"channels_last": True, "layout": "nchw"}, "leave out --layout nchw"),
        ({"dtype": "fp16", "precision": "bf16"}, "one option"),
    ],
)
def test_values_that_mean_nothing_are_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(microbench.UserError, match=said) as caught:
        asked("conv", **options)
    assert "\n" not in str(caught.value)


def test_a_run_goes_on_with_the_settings_of_its_file(tmp_path: Path) -> None:
    """The functions' own file, which keeps the words that mean the same, and no path."""
    path = tmp_path / "run.json"
    run = microbench.gemm(sizes=[16, 24], dtypes="fp32", vs="none", budget=0.2, json=path)
    assert run.command[3:] == (
        "gemm", "--sizes", "16,24", "--dtype", "fp32", "--vs", "none", "--budget", "0.2",
    )  # fmt: skip
    stopped = json.loads(path.read_text())
    path.write_text(json.dumps(stopped | {"results": stopped["results"][:1], "finished_at": None}))
    again = microbench.gemm(resume=path)
    assert [r.case.key for r in again.results] == [r.case.key for r in run.results]
    assert again.results[0].measurement == run.results[0].measurement
    with pytest.raises(microbench.UserError, match="run of gemm, not of conv"):
        microbench.conv(resume=path)


def test_a_value_that_means_nothing_is_the_commands_error() -> None:
    with pytest.raises(microbench.UserError, match="cannot read 'x'"):
        microbench.gemm(sizes="x")


def test_a_loaded_run_is_the_files_and_shows_itself(tmp_path: Path) -> None:
    run = microbench.load(GEMM)
    assert run.results == read_run(GEMM).results
    frame = run.to_dataframe()
    assert len(frame) == len(run.results)
    medians = [result.median_s for result in run.results]
    assert list(frame["median_s"]) == pytest.approx(medians, rel=1e-8)
    assert run._repr_html_().count("<tr>") == len(run.results) + 1
    assert "fp16 pays off" in str(run) or "faster" in str(run)
    run.save(tmp_path / "again.json")
    assert read_run(tmp_path / "again.json").results == run.results
