"""`e2e` from a script or a notebook: a module of one's own is predicted, networks are trained."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from samples.commands import no_children, warm_children
from torch import Tensor, nn

import e2e
import microbench
from e2e.results.types import Training
from microbench.__main__ import main as microbench_line
from microbench.errors import UserError


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


def test_what_means_nothing_is_one_line() -> None:
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


def test_two_recipes_are_trained_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with warm_children():
        run = e2e.train("cnn-cifar", recipe=["fp32", "bf16"], batch=2, budget=0.2, device="cpu")
    fp32, low = run.of(Training)
    assert [one.case.recipe for one in (fp32, low)] == ["fp32", "bf16"]
    ratio = low.speedup["fp32"]
    assert ratio.ci95 is None or ratio.ci95[0] <= ratio.ratio <= ratio.ci95[1]
    assert run.path is not None
    assert run.path.is_relative_to(tmp_path)


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
    assert "&lt;b&gt;run" in found._repr_html_()
    assert "<b>run" not in found._repr_html_()
    (run,) = found.data["runs"]
    assert sum(term["ns"] for term in run["terms"]) == run["window_ns"]
    found.save(tmp_path / "found.json")
    again = microbench_line(["show", str(tmp_path / "found.json")])
    assert again == 0
    with e2e.watch(out=str(tmp_path / "short.json"), **options) as short:
        short.step()
    with pytest.raises(UserError, match="no such trace"):
        _ = short.diagnosis
