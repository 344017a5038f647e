"""Replays: torch's one call for attention written out, and for a loop, of the recorded shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from e2e.profile.diagnosis import Traced, diagnose
from e2e.profile.replay import replayed
from microbench.device.device import describe


def seen(step: Callable[[], object], path: Path) -> Traced:
    plan = schedule(wait=0, warmup=1, active=4, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as one:
        for _ in range(5):
            step()
            one.step()
    one.export_chrome_trace(str(path))
    return diagnose([path], replay=partial(replayed, describe("cpu").target())).runs[0]


def test_attention_written_out_is_held_against_sdpa_of_its_shapes(tmp_path: Path) -> None:
    query, key, value = (torch.randn(8, 128, 16, requires_grad=True) for _ in range(3))

    def step() -> None:
        scores = torch.bmm(query, key.transpose(1, 2)) * 0.25
        torch.bmm(scores.softmax(-1), value).sum().backward()

    run = seen(step, tmp_path / "attention.json")
    (gain,) = (gain for gain in run.gains if gain.cause == "attention")
    assert "scaled_dot_product_attention" in gain.change
    assert (gain.rounds, gain.step_ms) == (run.steps, run.step_ms)
    assert gain.ms < run.step_ms  # not more than the operations on scores took


def test_a_loop_over_tensors_is_held_against_one_call(tmp_path: Path) -> None:
    weights, averages = ([torch.zeros(64, 64) for _ in range(150)] for _ in range(2))
    layer = torch.nn.Linear(64, 64)

    def step() -> None:
        layer(weights[0]).sum().backward()
        with torch.no_grad():
            for average, weight in zip(averages, weights, strict=True):
                average.mul_(0.9).add_(weight, alpha=0.1)

    run = seen(step, tmp_path / "loop.json")
    (gain,) = (gain for gain in run.gains if gain.cause == "loops")
    assert "_foreach" in gain.change
    assert gain.ms < run.step_ms
