"""`predict` on the CPU: what is special to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samples.shop import Shop

OWN = ("shop:build", "--input", "3x8x8", "--device", "cpu", "--batch", "4")


def results(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return found


def test_predict_says_how_long_operations_take_and_that_a_cpu_s_are_rough(shop: Shop) -> None:
    kept = shop.kept("predict")
    for said in ("Predicted GPU time of a step", "prediction took", "On a CPU this is rough"):
        assert said in " ".join(kept.report.split())
    arms = {r["case"]["recipe"]: r for r in results(kept.file)}
    assert {name: arm["status"] for name, arm in arms.items()} == {
        "fp32": "predicted", "tf32": "skipped", "amp-bf16": "predicted",
    }  # fmt: skip
    for name in ("fp32", "amp-bf16"):
        assert arms[name]["step_s"] is None, "nothing is measured"
        predicted = arms[name]["predicted"]
        assert predicted["step_s"] > 0
        assert (predicted["gpu_s"], predicted["interval_s"], predicted["limit"]) == (None,) * 3
        assert predicted["launches"] == 0
        assert predicted["took_s"]["tracing"] > 0
        assert predicted["uncovered"] == []
    assert "images_per_s" not in arms["fp32"] or arms["fp32"]["images_per_s"] is None


def test_without_any_prediction_it_ends_with_1(shop: Shop) -> None:
    ran = shop.run("predict", *OWN, "--recipe", "tf32")
    assert ran.returncode == 1, ran.stdout
    assert "Tensor Core mode" in " ".join(ran.stdout.split())
