"""What a captured step holds beside what its calls allocate."""

from __future__ import annotations

import pytest
import torch
from samples.train_cases import case_of

from e2e.networks import find
from e2e.predict.trace.fake_trace import Trace, trace

CPU = torch.device("cpu")


def traced(name: str, batch: int) -> Trace:
    network = find(name)
    return trace(network, case_of(network, batch, graph=True), CPU, 10)


@pytest.mark.parametrize("batch", [8, 100])
def test_a_graph_reads_a_copy_of_the_batch(batch: int) -> None:
    images, classes = batch * 3 * 32 * 32 * 4, batch * 8
    rounded = sum(-(-size // 512) * 512 for size in (images, classes))
    assert traced("cnn-cifar", batch).batch_bytes == rounded


def test_tokens_are_copied_as_inputs_and_as_targets() -> None:
    assert traced("gpt-tiny", 2).batch_bytes == 2 * (2 * 64 * 8)
