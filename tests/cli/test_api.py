"""Functions for scripts and notebooks: what they measure, and how it shows itself."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from samples.commands import ROOT, no_children
from torch import Tensor, nn

import e2e
import microbench
from e2e.results.types import Training
from microbench.__main__ import app
from microbench.__main__ import main as microbench_line
from microbench.command_line import called
from microbench.errors import UserError
from microbench.results.runfile import read_run

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


def test_functions_are_compared_with_the_first_and_a_measurement_shows_itself() -> None:
    slow_s = 2e-3
    found = microbench.compare_variants({"none": lambda: None, "slow": lambda: time.sleep(slow_s)},
                                    budget=0.2)  # fmt: skip
    assert found["slow"].median_s >= slow_s
    assert list(found.speedups) == ["slow"]
    ratio = found.speedups["slow"]
    assert ratio.ci95 is None or ratio.ci95[0] <= ratio.ratio <= ratio.ci95[1]
    found = microbench.bench(torch.relu, torch.randn(1000), budget=0.2)
    assert min(found.times_s) <= found.median_s <= max(found.times_s)
    assert sum(found.blocks) == len(found.times_s)
    assert (found.name, found.timer, found.regime) == ("relu", "clock", "unmanaged")
    assert "| relu |" in found._repr_markdown_()


def test_what_cannot_be_timed_is_the_callers_error() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        microbench.bench(torch.matmul, torch.ones(2, 3), torch.ones(2, 3))
    for conditions, said in (
        ({"timer": "events"}, "CUDA device"),
        ({"timer": "sundial"}, "--timer must be one of auto, events"),
        ({"device": "tpu"}, "unknown"),
        ({"l2": "lukewarm"}, "--l2 must be one of cold, warm, not 'lukewarm'"),
        ({"regime": "bogus"}, "--regime must be one of sustained, burst"),
        ({"budget": -1}, "--budget must be above 0, not -1"),
        ({"budget": 0}, "--budget must be above 0, not 0"),
    ):
        with pytest.raises(UserError, match=said):
            microbench.bench(torch.relu, torch.ones(3), **conditions)
    with pytest.raises(microbench.UserError, match="at least one"):
        microbench.compare_variants({})


def asked(name: str, *arguments: str, **options: object) -> dict[str, object]:
    """What a command is asked by keywords, without the words that only say what is shown."""
    with called(app.commands[name], arguments, options) as words:
        return {key: value for key, value in words.items() if key != "quiet"}


def test_keywords_mean_what_the_words_of_the_command_line_mean() -> None:
    def typed(name: str, *words: str) -> dict[str, object]:
        params = app.commands[name].make_context(name, list(words)).params
        return {key: value for key, value in params.items() if key != "quiet"}

    usual = typed("gemm", "--sizes", "16,32x64x128", "--dtype", "fp16,bf16", "--vs", "none")
    sizes = [16, (32, 64, 128)]
    assert asked("gemm", sizes=sizes, dtype=["fp16", "bf16"], vs="none") == usual
    usual = typed("conv", "--layout", "nhwc", "--pass", "dgrad", "--stride", "2")
    assert asked("conv", layout="nhwc", passes="dgrad", stride=2) == usual
    assert asked("conv", layout="nhwc", stride="2", **{"pass": ["dgrad"]}) == usual
    usual = typed("attention", "--sizes", "16", "--heads", "2x1x16", "--batch", "1")
    assert asked("attention", sizes=[16], heads=[(2, 1, 16)], batch=1) == usual
    assert asked("layers", "resnet18", tokens=[1, 2]) == typed("layers", "resnet18", "--tokens=1,2")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"budget": "two"}, "'two' is not a valid float"), ({"overwrite": "yes"}, "True or False")],
)
def test_values_that_mean_nothing_are_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        asked("conv", **options)
    assert "\n" not in str(caught.value)
    for options, near in (({"size": 4}, "sizes"), ({"dtyp": "fp16"}, "dtype"), ({"name": 1}, "")):
        with pytest.raises(TypeError, match=f"no option '{next(iter(options))}'.*{near}"):
            microbench.gemm(**options)


def test_a_run_goes_on_with_the_settings_of_its_file(tmp_path: Path) -> None:
    """The functions' own file, which keeps the words that mean the same, and no path."""
    path = tmp_path / "run.json"
    run = microbench.gemm(sizes=[16, 24], dtypes="fp32", vs="none", budget=0.2, json=path)
    assert run.command[3:] == (
        "gemm", "--sizes", "16,24", "--dtype", "fp32", "--vs", "none", "--budget", "0.2",
    )  # fmt: skip
    stopped = json.loads(path.read_text())
    stopped |= {"results": stopped["results"][:1], "finished_at": None}
    path.write_text(json.dumps(stopped))
    again = microbench.gemm(resume=path)
    assert [r.case.key for r in again.results] == [r.case.key for r in run.results]
    assert again.results[0].measurement == run.results[0].measurement


def test_a_loaded_run_is_the_files_and_shows_itself(tmp_path: Path) -> None:
    run = microbench.load(GEMM)
    assert run.results == read_run(GEMM).results
    frame = run.to_dataframe()
    assert len(frame) == len(run.results)
    medians = [result.median_s for result in run.results]
    assert list(frame["median_s"]) == pytest.approx(medians, rel=1e-8)
    assert run._repr_markdown_().count("\n|") > len(run.results)
    assert "fp16" in str(run)
    run.save(tmp_path / "again.json")
    assert read_run(tmp_path / "again.json").results == run.results


# ---------------------------------------------------------------- networks


class Small(nn.Module):
    """A network that no other process can import: it is made here."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


def test_a_module_itself_is_predicted_shown_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Small()
    before = copy.deepcopy(module)
    for home in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(home, str(tmp_path / home))
    run = e2e.predict(module, torch.randn(4, 3, 16, 16), recipe=["fp32", "amp-bf16"])
    found = run.of(Training)
    assert [t.case.recipe for t in found] == ["fp32", "amp-bf16"]
    assert {(t.case.batch, t.case.input) for t in found} == {(4, "3x16x16")}
    assert all(t.predicted and 0 < t.predicted.step_s < 1 for t in found)
    assert module.conv.weight.grad is None
    assert all(map(torch.equal, module.state_dict().values(), before.state_dict().values()))
    assert run.path is not None
    assert microbench.load(run.path).results == run.results
    assert "Small" in str(run)
    frame = run.to_dataframe()
    assert list(frame["recipe"]) == ["fp32", "amp-bf16"]
    assert all(frame["predicted_step_s"].map(math.isfinite))


def test_a_training_of_what_means_nothing_is_one_line() -> None:
    with pytest.raises(UserError, match="needs sample"):
        e2e.predict(Small())
    with pytest.raises(UserError, match="put it into a module"):
        e2e.train(lambda: Small(), device="cpu")
    with pytest.raises(UserError, match="no NETWORK"):
        e2e.train()
    for options, said in (
        ({"batch": "eight", "device": "cpu"}, "--batch"),
        ({"fused": False, "no_fused": True}, "one option"),
        ({"input": (3, 0), "device": "cpu"}, "not 3x0"),
    ):
        with no_children(), pytest.raises(UserError, match=said) as caught:
            e2e.train("cnn-cifar", **options)
        assert "\n" not in str(caught.value)

    with pytest.raises(TypeError, match="did you mean recipe"):
        e2e.train("cnn-cifar", recipes="amp")
    with pytest.raises(TypeError, match="no option 'epochs'"):
        e2e.predict("cnn-cifar", epochs=3)  # an option of train


def test_a_loop_is_watched_and_explained(tmp_path: Path) -> None:
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"after": 2, "bare": 2, "traced": 2}
    with e2e.watch(out=str(tmp_path / "<b>run.json.gz"), **options) as w:
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
            w.step()
    found = w.diagnosis
    assert "matrix multiplications" in str(found)
    assert "&lt;b>run" in found._repr_markdown_()
    assert "<b>run" not in found._repr_markdown_()
    (run,) = found.data["runs"]
    assert sum(term["ns"] for term in run["terms"]) == run["window_ns"]
    found.save(tmp_path / "found.json")
    again = microbench_line(["show", str(tmp_path / "found.json")])
    assert again == 0
    with e2e.watch(out=str(tmp_path / "short.json"), **options) as short:
        short.step()
    with pytest.raises(UserError, match="no such trace"):
        _ = short.diagnosis
