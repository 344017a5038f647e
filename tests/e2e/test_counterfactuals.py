"""Which changes are tried for a training, and which of them are worth measuring."""

from __future__ import annotations

from dataclasses import replace

from e2e.case import TrainCase
from e2e.explain.annotate import Explainer, to_verify
from e2e.explain.fixes import as_options, changes
from e2e.prediction.prediction import Prediction
from e2e.prediction.queue_model import OpCost, simulate
from e2e.results.types import PREDICTED, Predicted, Training


def test_what_cannot_run_is_not_measured() -> None:
    case = TrainCase("net", "amp", 8, "3x8x8", data="made", loader="torchvision", workers=1)
    step = simulate((OpCost("product", "forward", "conv1", 6e-3, 1e-6),))

    def ask(asked: TrainCase) -> Prediction:
        if asked.loader == "gpu-decode":
            return Prediction(asked, reason="it decodes on an NVIDIA GPU", runs=False)
        if asked.compile:
            return Prediction(asked, reason="no trace shows it")
        memory = 10**10 if asked.batch > 8 else 10
        return Prediction(asked, Predicted(step.step_s, None, "gpu", {}, memory_bytes=memory), step)

    foresight = Explainer(ask, "cuda", 10**9, fixes=True, cores=4)
    training = Training(case, PREDICTED, step_units=8)
    found = foresight.explained([training], foresight.predictions([case]))[0]
    told = {cause.title: cause for cause in found.causes}
    assert set(told) == {"loader gpu-decode", "larger batch", "torch.compile"}
    assert "would need 10.0 GB" in told["larger batch"].why
    assert [cause.title for cause, _ in to_verify(found)] == ["torch.compile"]


def test_what_a_fed_training_can_try() -> None:
    case = TrainCase("net", "amp", 8, "3x8x8", data="made", loader="torchvision", workers=3)
    found = {change.name: change.of(case) for change in changes(case, "cuda", cores=4)}
    assert found["more workers"].workers == 4
    assert found["more batches ahead"].prefetch == 4
    assert found["data on the device"].loader == "resident"
    assert found["data on the device"].workers == 0
    assert {one.loader for one in found.values()} - {case.loader} == {
        "resident", "torchvision-io", "torchvision-draft", "gpu-decode",
    }  # fmt: skip
    words = {change.name: as_options(change.fields) for change in changes(case, "cuda", cores=4)}
    assert words["more batches ahead"] == "--prefetch 4"
    assert words["data on the device"] == "--loader resident", "what the command line takes"
    arrays = replace(case, data="cifar10", workers=4, prefetch=4)
    found = {change.name: change.of(arrays) for change in changes(arrays, "cuda", cores=4)}
    assert {one.loader for one in found.values()} == {"torchvision", "resident"}
    assert not {"more workers", "more batches ahead"} & set(found)
