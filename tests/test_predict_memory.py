"""What a step holds beside what its calls allocate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tracing import case_of

from e2e.networks import find
from e2e.predict.memory import captured_bytes, workspace_bytes
from e2e.predict.trace import Trace, trace

CPU = torch.device("cpu")
MIB = 1 << 20
H200, A100 = (9, 0), (8, 0)


@pytest.fixture(autouse=True)
def as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def traced(name: str, batch: int) -> Trace:
    network = find(name)
    return trace(network, case_of(network, batch, graph=True), CPU, 10)


def test_the_workspace_is_torch_s_own_for_the_device() -> None:
    assert workspace_bytes(H200) == 32 * MIB
    assert workspace_bytes(A100) == 8_519_680  # as torch.cuda.memory_snapshot() shows it
    assert workspace_bytes(None) == workspace_bytes(A100)


@pytest.mark.parametrize(("config", "kib"), [(":4096:8", 32768), (":16:8", 128), ("", 32768)])
def test_the_environment_sets_it(config: str, kib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    assert workspace_bytes(H200) == kib << 10


@pytest.mark.parametrize("batch", [8, 100])
def test_a_graph_reads_a_copy_of_the_batch(batch: int) -> None:
    images, classes = batch * 3 * 32 * 32 * 4, batch * 8
    found = traced("cnn-cifar", batch)
    rounded = sum(-(-size // 512) * 512 for size in (images, classes))
    assert found.batch_bytes == rounded
    # Two streams, and threads of their own for forward and backward.
    assert captured_bytes(found, H200) == rounded + 2 * 2 * 32 * MIB


def test_tokens_are_copied_as_inputs_and_as_targets() -> None:
    assert traced("gpt-tiny", 2).batch_bytes == 2 * (2 * 64 * 8)


def test_a_step_without_matrix_products_needs_no_workspace() -> None:
    found = traced("cnn-cifar", 8)
    forward = tuple(op for op in found.ops if op.phase == "forward")
    assert captured_bytes(replace(found, ops=()), H200) == found.batch_bytes
    assert captured_bytes(replace(found, ops=forward), H200) == found.batch_bytes + 2 * 32 * MIB
