"""`python -m e2e predict`, `--verify` and `validate` as a user meets them, on the CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from samples.commands import Ran, run_here

from e2e.__main__ import main
from microbench.__main__ import main as microbench

ROOT = Path(__file__).resolve().parents[2]
NETWORK = """
from torch import nn

import torch

@torch.library.custom_op("shop::pick", mutates_args=())
def pick(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return x[:, columns].clone()

@pick.register_fake
def _(x, columns):
    return x.new_empty(x.shape[0], columns.shape[0])

class Pick(nn.Module):
    def forward(self, x):
        return x + pick(x.detach(), torch.arange(10))

class Breaking(nn.Module):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > 1:
            raise ValueError("only in its second step")
        return x

def picking():
    return nn.Sequential(*build(), Pick())

def breaking():
    return nn.Sequential(*build(), Breaking())

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )
"""
OWN = ("shop:build", "--input", "3x8x8", "--device", "cpu")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with a network and a cache of its own."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(NETWORK)
    return folder


def e2e(shop: Path, *words: str) -> Ran:
    return run_here(
        main, "e2e", *words, cwd=shop, XDG_CACHE_HOME=str(shop / "cache"),
        XDG_STATE_HOME=str(shop / "state"),
    )  # fmt: skip


def results(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


@pytest.fixture(scope="module")
def predicted(shop: Path) -> Ran:
    return e2e(shop, "predict", *OWN, "--amp", "--batch", "4", "--json", "p.json")


@pytest.fixture(scope="module")
def verified(shop: Path) -> Ran:
    return e2e(
        shop, *OWN, "--recipe", "fp32,amp-bf16", "--batch", "4", "--verify", "--budget", "1",
        "--json", "v.json",
    )  # fmt: skip


class TestPredict:
    """`predict` alone."""

    def test_it_says_step_speedup_and_where_the_time_goes(self, predicted: Ran) -> None:
        assert predicted.returncode == 0, predicted.stderr
        assert "as predicted from its operations; not measured" in predicted.stdout
        assert "From fp32 to amp-bf16" in predicted.stdout
        assert "convolutions" in predicted.stdout
        assert "tf32 is a Tensor Core mode" in predicted.stdout
        assert "What would make it faster" in predicted.stdout
        assert "predicting these took" in predicted.stdout

    def test_nothing_is_measured(self, predicted: Ran, shop: Path) -> None:
        assert predicted.returncode == 0
        arms = {r["case"]["recipe"]: r for r in results(shop / "p.json")}
        assert {name: arm["status"] for name, arm in arms.items()} == {
            "fp32": "predicted", "tf32": "skipped", "amp-bf16": "predicted",
        }  # fmt: skip
        for name in ("fp32", "amp-bf16"):
            assert arms[name]["step_s"] is None
            assert arms[name]["predicted"]["step_s"] > 0
            assert arms[name]["predicted"]["took_s"]["tracing"] > 0
            assert arms[name]["predicted"]["uncovered"] == []

    def test_the_ledger_of_the_run_file_adds_up(self, predicted: Ran, shop: Path) -> None:
        assert predicted.returncode == 0
        (arm,) = [r for r in results(shop / "p.json") if r["ledger"]]
        first, *changes, last = (line["ms"] for line in arm["ledger"])
        assert first + math.fsum(changes) == pytest.approx(last, rel=1e-6)
        assert last == pytest.approx(1e3 * arm["predicted"]["step_s"], rel=1e-6)

    def test_show_prints_it_again(self, predicted: Ran, shop: Path) -> None:
        assert predicted.returncode == 0
        shown = run_here(microbench, "microbench", "show", "p.json", cwd=shop)
        assert shown.returncode == 0
        table = shown.stdout[shown.stdout.index("The step as predicted") :]
        assert table.strip() in predicted.stdout

    def test_a_resumed_prediction_is_done_already(self, predicted: Ran, shop: Path) -> None:
        before = (shop / "p.json").read_text()
        again = e2e(shop, "predict", *OWN, "--amp", "--batch", "4", "--resume", "p.json")
        assert again.returncode == 0, again.stderr
        after = results(shop / "p.json")
        assert after == json.loads(before)["results"]

    def test_what_was_lacking_is_told_when_a_real_step_may_run(self, shop: Path) -> None:
        words = ["predict", "shop:picking", *OWN[1:], "--recipe", "fp32", "--batch", "4"]
        lacking = e2e(shop, *words, "--json", "l.json")
        assert lacking.returncode == 0, lacking.stderr
        (arm,) = results(shop / "l.json")
        assert len(arm["predicted"]["uncovered"]) == 1
        again = e2e(shop, *words, "--allow-run", "--resume", "l.json")
        assert again.returncode == 0, again.stderr
        (arm,) = results(shop / "l.json")
        assert arm["predicted"]["uncovered"] == []
        (told,) = arm["predicted"]["from_step"]
        assert "shop.pick.default" in told
        assert "timed in real steps for the prediction of fp32" in " ".join(again.stdout.split())

    def test_a_prediction_that_breaks_ends_with_1(self, shop: Path) -> None:
        ran = e2e(shop, "predict", "shop:breaking", *OWN[1:], "--recipe", "fp32", "--allow-run")
        assert ran.returncode == 1, ran.stdout
        assert "only in its second step" in ran.stdout

    def test_a_compiled_step_is_refused_in_words(self, shop: Path) -> None:
        ran = e2e(shop, "predict", *OWN, "--recipe", "fp32", "--compile", "--batch", "4")
        assert ran.returncode == 1, ran.stderr  # no step could be told
        assert "compiled step" in " ".join(ran.stdout.split())


class TestVerify:
    """A training with `--verify`."""

    def test_prediction_and_measurement_stand_side_by_side(self, verified: Ran, shop: Path) -> None:
        assert verified.returncode == 0, verified.stderr
        assert "as predicted from its operations, and as measured" in verified.stdout
        for arm in results(shop / "v.json"):
            if arm["predicted"]:
                told, found = arm["predicted"]["step_s"], arm["step_s"]
                assert arm["predicted"]["error_pct"] == pytest.approx(100 * (told / found - 1))

    def test_the_residual_is_never_hidden(self, verified: Ran, shop: Path) -> None:
        assert verified.returncode == 0
        (arm,) = [r for r in results(shop / "v.json") if r["ledger"]]
        assert "residual" in [line["term"] for line in arm["ledger"]]
        assert "residual" in verified.stdout

    def test_fixes_were_measured_and_are_in_the_file(self, verified: Ran, shop: Path) -> None:
        assert verified.returncode == 0
        found = results(shop / "v.json")
        (arm,) = [r for r in found if r["causes"]]
        measured = [c for c in arm["causes"] if c["measured_gain_pct"] is not None]
        assert measured
        for cause in measured:
            changed = {**arm["case"], **cause["case_change"]}
            changed.pop("image_size", None)
            assert any(changed.items() <= r["case"].items() and r["step_s"] for r in found), (
                "the measurement that the gain comes from"
            )

    def test_a_run_that_was_timed_without_it_is_verified_later(self, shop: Path) -> None:
        words = [*OWN, "--recipe", "fp32,amp-bf16", "--batch", "4", "--budget", "1"]
        timed = e2e(shop, *words, "--predict", "--json", "later.json")
        assert timed.returncode == 0, timed.stderr
        before = {r["case"]["recipe"]: r for r in results(shop / "later.json")}
        resumed = e2e(shop, *words, "--verify", "--resume", "later.json")
        assert resumed.returncode == 0, resumed.stderr
        after = results(shop / "later.json")[: len(before)]
        for arm in after:
            causes = arm.pop("causes")
            same = before[arm["case"]["recipe"]]
            same.pop("causes")
            assert arm == same
            if arm["ledger"]:
                assert any(cause["measured_gain_pct"] is not None for cause in causes)


class TestValidate:
    """`validate`, on the user's own network."""

    def test_it_prints_the_error_table(self, shop: Path) -> None:
        ran = e2e(
            shop, "validate", "--networks", "cnn-cifar", "--recipe", "fp32,amp-bf16",
            "--batch", "2,4", "--device", "cpu", "--budget", "1", "--json", "m.json",
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "Predicted against measured" in ran.stdout
        assert all(r["predicted"] for r in results(shop / "m.json"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["predict"], "NETWORK"),
        (["predict", "resnet5"], "resnet50"),
        (["predict", "resnet50", "--recipe", "fp99"], "fp99"),
        (["predict", "resnet50", "--epochs", "3"], "--epochs"),
        (["resnet50", "--verify", "--no-predict"], "--no-predict"),
        (["validate", "--networks", ""], "--networks"),
        (["validate", "--networks", "resnet5"], "resnet50"),
        (["validate", "--cpus", "0"], "--cpus"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert len(error.strip().splitlines()) == 1
