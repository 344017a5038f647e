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

NETWORK = """
import torch
from torch import nn

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


def ledger_of(path: Path) -> dict[str, Any]:
    """The one result that has a ledger."""
    (arm,) = [result for result in results(path) if result["ledger"]]
    return arm


@pytest.fixture(scope="module")
def predicted(shop: Path) -> Ran:
    ran = e2e(shop, "predict", *OWN, "--amp", "--batch", "4", "--fixes", "--json", "p.json")
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def verified(shop: Path) -> Ran:
    ran = e2e(
        shop, *OWN, "--recipe", "fp32,amp-bf16", "--batch", "4", "--verify", "--budget", "1",
        "--json", "v.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran


class TestPredict:
    """`predict` alone."""

    def test_it_says_step_speedup_and_where_the_time_goes(self, predicted: Ran, shop: Path) -> None:
        for said in (
            "Predicted step (not measured)", "From fp32 to amp-bf16",
            "convolutions", "tf32 is a Tensor Core mode", "What would make amp-bf16 faster",
            "prediction took",
        ):  # fmt: skip
            assert said in predicted.stdout
        arms = {r["case"]["recipe"]: r for r in results(shop / "p.json")}
        assert {name: arm["status"] for name, arm in arms.items()} == {
            "fp32": "predicted", "tf32": "skipped", "amp-bf16": "predicted",
        }  # fmt: skip
        for name in ("fp32", "amp-bf16"):
            assert arms[name]["step_s"] is None, "nothing is measured"
            assert arms[name]["predicted"]["step_s"] > 0
            assert arms[name]["predicted"]["took_s"]["tracing"] > 0
            assert arms[name]["predicted"]["uncovered"] == []
        arm = ledger_of(shop / "p.json")
        first, *changes, last = (line["ms"] for line in arm["ledger"])
        assert first + math.fsum(changes) == pytest.approx(last, rel=1e-6)
        assert last == pytest.approx(1e3 * arm["predicted"]["step_s"], rel=1e-6)

    def test_show_prints_it_again(self, predicted: Ran, shop: Path) -> None:
        shown = run_here(microbench, "microbench", "show", "p.json", cwd=shop)
        assert shown.returncode == 0
        table = shown.stdout[shown.stdout.index("Predicted step") :]
        assert table.strip() in predicted.stdout

    @pytest.mark.usefixtures("predicted")
    def test_a_resumed_prediction_is_done_already(self, shop: Path) -> None:
        before = results(shop / "p.json")
        again = e2e(shop, "predict", *OWN, "--amp", "--batch", "4", "--resume", "p.json")
        assert again.returncode == 0, again.stderr
        assert results(shop / "p.json") == before

    def test_what_was_missing_is_timed_when_a_real_step_may_run(self, shop: Path) -> None:
        words = ["predict", "shop:picking", *OWN[1:], "--recipe", "fp32", "--batch", "4"]
        missing = e2e(shop, *words, "--json", "l.json")
        assert missing.returncode == 0, missing.stderr
        (arm,) = results(shop / "l.json")
        assert len(arm["predicted"]["uncovered"]) == 1
        again = e2e(shop, *words, "--allow-run", "--resume", "l.json")
        assert again.returncode == 0, again.stderr
        (arm,) = results(shop / "l.json")
        assert arm["predicted"]["uncovered"] == []
        (timed,) = arm["predicted"]["from_step"]
        assert "shop.pick.default" in timed
        assert "timed in real steps for fp32" in " ".join(again.stdout.split())

    @pytest.mark.parametrize(
        ("network", "flag", "said"),
        [
            ("shop:breaking", "--allow-run", "only in its second step"),
            ("shop:build", "--compile", "compiled step"),
        ],
    )
    def test_without_any_prediction_it_ends_with_1(
        self, shop: Path, network: str, flag: str, said: str
    ) -> None:
        words = (network, *OWN[1:], "--recipe", "fp32", "--batch", "4", flag)
        ran = e2e(shop, "predict", *words)
        assert ran.returncode == 1, ran.stdout
        assert said in " ".join(ran.stdout.split())


@pytest.fixture(scope="module")
def exchanged(shop: Path) -> Path:
    """A run of two ranks, for the times of its all-reduce."""
    ran = run_here(
        main, "e2e", *OWN, "--recipe", "fp32", "--batch", "4", "--gpus", "2", "--budget", "1",
        "--json", "g.json", cwd=shop, XDG_STATE_HOME=str(shop / "state"), OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return shop / "g.json"


class TestSeveralGpus:
    """`predict --gpus`."""

    def test_the_step_of_two_is_that_of_one_and_the_exchange(
        self, shop: Path, exchanged: Path
    ) -> None:
        words = ("--gpus", "1,2", "--exchange", exchanged, "--json", "s.json")
        recipes = ("--recipe", "fp32,amp-bf16", "--batch", "4")
        ran = e2e(shop, "predict", *OWN, *recipes, *map(str, words))
        assert ran.returncode == 0, ran.stderr
        one, amp_of_one, two, amp_of_two = results(shop / "s.json")
        (curve,) = [r["exchange"]["curve"] for r in results(exchanged)]
        for alone, both in ((one, two), (amp_of_one, amp_of_two)):
            assert (alone["case"]["gpus"], both["case"]["gpus"]) == (1, 2)
            assert "exchange_s" not in alone["predicted"]
            added_s = both["predicted"]["exchange_s"]
            # All gradients are one bucket, and its last one is ready when the backward pass ends.
            assert added_s == pytest.approx(curve[-1]["alone_s"], rel=0.5)
            assert both["predicted"]["step_s"] == alone["predicted"]["step_s"] + added_s
            assert both["step_units"] == 2 * alone["step_units"]
        first, *changes, last = (line["ms"] for line in amp_of_two["ledger"])
        assert first + math.fsum(changes) == pytest.approx(last, rel=1e-6)
        assert last == pytest.approx(1e3 * amp_of_two["predicted"]["step_s"], rel=1e-6)
        assert "gradient exchange" in [line["term"] for line in amp_of_two["ledger"]]
        shown = " ".join(ran.stdout.split())
        for said in ("efficiency", "of which the exchange adds", "by the all-reduce times"):
            assert said in shown

    def test_one_gpu_is_said_to_be_one(self, predicted: Ran) -> None:
        assert "of one GPU: no exchange of gradients" in predicted.stdout

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--gpus", "2"), "--gpus needs --exchange"),
            (("--exchange", "g.json"), "--exchange needs several GPUs"),
            (("--gpus", "4", "--exchange", "g.json"), "no all-reduce times of 4 GPUs, only"),
            (("--gpus", "2", "--exchange", "p.json"), "no all-reduce times of 2 GPUs, none"),
            (("--gpus", "2", "--exchange", "none.json"), "none.json"),
            (("--gpus", "2", "--exchange", "g.json", "--fixes"), "--fixes"),
        ],
    )
    @pytest.mark.usefixtures("exchanged", "predicted")
    def test_what_cannot_be_predicted_is_one_line(
        self, shop: Path, words: tuple[str, ...], said: str
    ) -> None:
        ran = e2e(shop, "predict", *OWN, "--batch", "4", *words)
        assert ran.returncode == 2
        assert said in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1


class TestVerify:
    """A training with `--verify`."""

    def test_prediction_and_measurement_stand_side_by_side(self, verified: Ran, shop: Path) -> None:
        assert "Predicted and measured step" in verified.stdout
        for arm in results(shop / "v.json"):
            if arm["predicted"]:
                ratio = arm["predicted"]["step_s"] / arm["step_s"]
                assert arm["predicted"]["error_pct"] == pytest.approx(100 * (ratio - 1))
        terms = [line["term"] for line in ledger_of(shop / "v.json")["ledger"]]
        assert "residual" in terms
        assert "unexplained" in verified.stdout

    @pytest.mark.usefixtures("verified")
    def test_fixes_were_measured_and_are_in_the_file(self, shop: Path) -> None:
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
        for arm in results(shop / "later.json")[: len(before)]:
            same = before[arm["case"]["recipe"]]
            causes = arm.pop("causes")
            del same["causes"]
            assert arm == same
            if arm["ledger"]:
                assert any(cause["measured_gain_pct"] is not None for cause in causes)


def test_validate_prints_the_error_table(shop: Path) -> None:
    ran = e2e(
        shop, "validate", "--networks", "cnn-cifar", "--recipe", "fp32,amp-bf16", "--batch", "2,4",
        "--device", "cpu", "--budget", "1", "--json", "m.json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Prediction errors" in ran.stdout
    assert all(r["predicted"] for r in results(shop / "m.json"))


def test_held_out_networks_are_measured_once_and_the_file_goes_on(shop: Path) -> None:
    words = ("validate", "--held-out", "h.json", "--recipe", "fp32", "--device", "cpu",
             "--budget", "1")  # fmt: skip
    elsewhere = (words[0], "--held-out", str(shop / "h.json"), *words[3:])
    first = e2e(shop, *elsewhere, "--networks", "cnn-cifar", "--batch", "2")
    assert first.returncode == 0, first.stderr
    assert str(shop) not in (shop / "h.json").read_text(), "no paths of this machine"
    before = results(shop / "h.json")
    assert [r["case"]["batch"] for r in before] == [2]
    assert before[0]["measured_at"]
    again = e2e(shop, *words, "--networks", "cnn-cifar", "--batch", "2,3,4")
    assert again.returncode == 0, again.stderr
    after = results(shop / "h.json")
    assert [r["case"]["batch"] for r in after] == [2, 3, 4]
    assert after[0] == before[0], "measured once"
    assert all(r["predicted"]["step_s"] > 0 and r["step_s"] > 0 for r in after)
    resumed = e2e(shop, "validate", "--resume", "h.json")
    assert resumed.returncode == 0, resumed.stderr
    assert results(shop / "h.json") == after, "it knows by its own command what was held out"
    said = " ".join(again.stdout.split())
    assert "1 network, 3 comparisons" in said
    assert "None of these networks was used" in said
    assert "Prediction errors" in said


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
        (["validate", "--held-out", "h.json", "--networks", "cnn-cifar,resnet18"], "resnet18"),
        (["validate", "--held-out", "h.json", "--networks", "timm:mobilenet_v2"], "mobilenet_v2"),
        (["validate", "--held-out", "h.json", "--json", "j.json"], "--json"),
        (["validate", "--held-out", "no/such/h.json", "--networks", "cnn-cifar"], "h.json"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named in error
    assert len(error.strip().splitlines()) == 1
