"""Run files that lack a fact, or hold a number that no measurement gives: read, not a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from microbench.__main__ import main

GEMM = Path(__file__).parents[2] / "results" / "nvidia-h200" / "gemm-fp16.json"


def without_sms(data: dict[str, Any]) -> None:
    del data["device"]["sm_count"]


def without_work(data: dict[str, Any]) -> None:
    for result in data["results"]:
        result["flops"] = 0


@pytest.mark.parametrize("damage", [without_sms, without_work])
@pytest.mark.parametrize("command", ["show", "explain"])
def test_it_is_shown_and_explained(
    command: str,
    damage: Callable[[dict[str, Any]], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads(GEMM.read_text())
    damage(data)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    assert main([command, str(path)]) == 0
    assert main(["show", str(path), "--verbose"]) == 0
    assert "8192" in capsys.readouterr().out
