"""`predict` on the CPU: what is special to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples.shop import Shop

OWN = ("shop:build", "--input", "3x8x8", "--device", "cpu", "--batch", "4")
EXCHANGE_S = 3e-3  # of any all-reduce, in a file of a run over two


def results(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def test_predict_says_step_speedup_and_where_the_time_goes(shop: Shop) -> None:
    kept = shop.kept("predict")
    for said in (
        "Predicted step (not measured)", "prediction took", "of one GPU: no exchange",
    ):  # fmt: skip
        assert said in " ".join(kept.report.split())
    arms = {r["case"]["recipe"]: r for r in results(kept.file)}
    assert {name: arm["status"] for name, arm in arms.items()} == {
        "fp32": "predicted", "tf32": "skipped", "amp-bf16": "predicted",
    }  # fmt: skip
    for name in ("fp32", "amp-bf16"):
        assert arms[name]["step_s"] is None, "nothing is measured"
        assert arms[name]["predicted"]["step_s"] > 0
        assert arms[name]["predicted"]["took_s"]["tracing"] > 0
        assert arms[name]["predicted"]["uncovered"] == []


def test_without_any_prediction_it_ends_with_1(shop: Shop) -> None:
    ran = shop.run("predict", *OWN, "--recipe", "fp32", "--compile")
    assert ran.returncode == 1, ran.stdout
    assert "compiled step" in " ".join(ran.stdout.split())


def test_the_step_of_two_is_that_of_one_and_the_exchange(shop: Shop, tmp_path: Path) -> None:
    """All gradients are one bucket, and its last one is ready when the backward pass ends."""
    run = shop.kept("train").document
    run["results"] = run["results"][:1]
    (result,) = run["results"]
    result["case"]["gpus"] = 2
    curve = [{"bytes": size, "alone_s": EXCHANGE_S} for size in (1000, 10**7)]
    result["exchange"] = {
        "ranks": 2, "bytes": 1000, "local_s": 0.04, "alone_s": 0.02, "exposed_s": 0.03,
        "exposed_ci95_s": [0.02, 0.04], "rank_local_s": [0.04, 0.04], "buckets": [1000],
        "curve": curve,
    }  # fmt: skip
    of_two, file = tmp_path / "two.json", tmp_path / "predicted.json"
    of_two.write_text(json.dumps(run))
    ran = shop.run("predict", *OWN, "--recipe", "fp32,amp-bf16", "--gpus", "1,2",
                   "--exchange", of_two, "--json", file)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    one, amp_of_one, two, amp_of_two = results(file)
    for alone, both in ((one, two), (amp_of_one, amp_of_two)):
        assert (alone["case"]["gpus"], both["case"]["gpus"]) == (1, 2)
        assert "exchange_s" not in alone["predicted"]
        assert both["predicted"]["exchange_s"] == pytest.approx(EXCHANGE_S)
        added_s = both["predicted"]["step_s"] - alone["predicted"]["step_s"]
        assert added_s == pytest.approx(EXCHANGE_S)
        assert both["step_units"] == 2 * alone["step_units"]
    text = " ".join(ran.stdout.split())
    for said in ("efficiency", "of which the exchange adds", "by the all-reduce times"):
        assert said in text
    for words, said in ((("--gpus", "4"), "no all-reduce times of 4 GPUs, only"),):
        ran = shop.run("predict", *OWN, *words, "--exchange", of_two)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        assert said in ran.stderr
    run["results"][0]["exchange"] = None
    of_two.write_text(json.dumps(run))
    ran = shop.run("predict", *OWN, "--gpus", "2", "--exchange", of_two)
    assert "no all-reduce times of 2 GPUs, none" in ran.stderr
