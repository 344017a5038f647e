"""Functions for scripts and notebooks: what they measure, and how it shows itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import microbench
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
    assert ratio.ratio < 0.5
    assert ratio.ci95 is None or ratio.ci95[1] < 1
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


def test_an_unknown_option_is_a_type_error_with_near_ones() -> None:
    with pytest.raises(TypeError, match="did you mean sizes"):
        microbench.gemm(size=4)


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
