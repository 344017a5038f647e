"""Measured rates that come with the package are those of the published run files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.gpus import find_card
from kernels.precision import PRECISIONS
from microbench.errors import UserError
from microbench.results import read_run
from microbench.roofline.rates import MEASURED, known_rates, rates_of, read_rates, text_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.json")), ids=lambda path: path.stem)
def test_a_gpu_s_rates_are_those_of_the_run_file_that_they_name(path: Path) -> None:
    source = json.loads(path.read_text())["source"]
    found = rates_of(read_run(ROOT / source), source)
    assert path.read_text() == text_of(found)
    assert known_rates(found.device) == found


def test_no_rate_is_beyond_the_datasheet_and_none_is_far_below() -> None:
    card, rates = find_card("NVIDIA H200"), known_rates("NVIDIA H200")
    assert card is not None
    assert rates is not None
    for name in ("fp16", "bf16", "tf32", "fp32", "fp8-e4m3-precise", "int8"):
        measured, peak = rates.peak(PRECISIONS[name]), card.peak(PRECISIONS[name])
        assert measured is not None
        assert peak is not None
        assert 0.8 * peak < measured < peak
    assert rates.byte_per_s is not None
    assert 0.9 * card.byte_per_s < rates.byte_per_s < card.byte_per_s
    assert rates.peak(PRECISIONS["fp64"]) is None


def test_a_gpu_that_was_not_measured_has_none() -> None:
    assert known_rates("NVIDIA A100-SXM4-80GB") is None
    assert known_rates("../../etc/passwd") is None


def test_a_run_of_another_command_has_no_rates() -> None:
    with pytest.raises(UserError, match="no measured rates"):
        read_rates(ROOT / "results" / "nvidia-h200" / "train-resnet50.json")
