"""Torch's bindings are taken where they make just the recorded call, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples.launching import given
from torch import Tensor

from kernels.aten import Pool, bindings, describe, materialise
from kernels.aten.bindings import matching, quickest

ATEN = torch.ops.aten
X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
SPARSE = X.to_sparse()


def taken(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The function by which a call goes."""
    return quickest(func, args, kwargs)(args, kwargs).func


def holding(monkeypatch: pytest.MonkeyPatch, **functions: Callable[..., object]) -> None:
    """Only these bindings exist."""
    monkeypatch.setattr(bindings, "_HOLDERS", (SimpleNamespace(**functions),))


def _fails(error: Exception) -> Tensor:
    raise error


def test_operators_go_by_their_bindings() -> None:
    assert taken(ATEN.relu.default, X) is torch.relu
    assert taken(ATEN.add_.Tensor, X, Y) is torch.Tensor.add_
    assert taken(ATEN.gelu.default, X) is torch._C._nn.gelu  # type: ignore[attr-defined]
    assert taken(ATEN.sum.dim_IntList, X, [0], True, dtype=torch.float64) is torch.sum


def test_what_python_has_no_binding_for_goes_as_it_is() -> None:
    assert taken(ATEN.threshold_backward.default, X, Y, 0) is ATEN.threshold_backward.default


def test_nothing_is_run() -> None:
    x = torch.zeros(3)
    assert taken(ATEN.add_.Tensor, x, torch.ones(3)) is torch.Tensor.add_
    assert not x.any()


@pytest.mark.parametrize(
    "planted",
    [
        torch.rsub,  # another operator
        lambda a, b: torch.sub(b, a),  # the other way round
        lambda a, b: torch.sub(a.clone(), b),  # something else first
        lambda a, b: torch.sub(a, b, alpha=2),  # another value
        lambda a, b: torch.sub(a, torch.ones(2, 3)),  # a tensor like it
        lambda a, b: a,  # nothing at all
        lambda a: a,  # it takes other arguments
        lambda a, b: _fails(RuntimeError("torch refuses")),
        lambda a, b: _fails(OverflowError("int too big")),
        lambda a, b: torch.sub(SPARSE, SPARSE),  # what cannot be described
    ],
)
def test_a_binding_that_makes_another_call_is_not_taken(
    planted: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    holding(monkeypatch, sub=planted)
    assert taken(ATEN.sub.Tensor, X, Y) is ATEN.sub.Tensor


def test_one_that_makes_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    holding(monkeypatch, sub=torch.sub)
    assert taken(ATEN.sub.Tensor, X, Y) is torch.sub


def test_what_it_may_give_back_beyond_the_schema_is_what_it_changed() -> None:
    """A list that is changed in place; planted: another one."""
    call = describe(ATEN._foreach_add_.Scalar, ([X, Y], 1.0), {})
    replay = materialise(call, torch.device("cpu"), Pool(torch.device("cpu")))
    assert replay.launch() == replay.args[0]
    assert given(call, replay, replay.launch()) == ()
    with pytest.raises(AssertionError):
        given(call, replay, [X])


def test_casts_go_by_to() -> None:
    cast, here = ATEN._to_copy.default, X.device
    assert taken(cast, X, dtype=torch.float16) is torch.Tensor.to
    assert taken(cast, X, dtype=torch.float16, layout=torch.strided, device=here) is torch.Tensor.to
    launch = quickest(cast, (X,), {"dtype": torch.float16})((X,), {"dtype": torch.float16})
    assert launch().dtype == torch.float16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"dtype": torch.float32},  # `to` would give the tensor back
        {"memory_format": torch.contiguous_format},
        {"dtype": torch.float16, "memory_format": torch.contiguous_format},
        {"dtype": torch.float16, "device": torch.device("meta")},
        {"dtype": torch.float16, "non_blocking": True},
    ],
)
def test_copies_that_to_does_not_make_go_as_they_are(kwargs: dict[str, Any]) -> None:
    assert taken(ATEN._to_copy.default, X, **kwargs) is ATEN._to_copy.default


def test_other_namespaces_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a binding that has another namespace's name in full."""
    func = torch.ops.prims.abs.default
    holding(monkeypatch, **{"prims::abs": func})
    assert list(bindings._bindings(func, {})) == []


def test_matching_takes_what_the_operator_takes_and_runs_nothing() -> None:
    x = torch.zeros(3)
    assert matching(ATEN.add_.Tensor, (x, torch.ones(3)), {}) is not None
    match = matching(ATEN.convolution.default, (X, X, None, [1], [0], [1], False, [0], 1), {})
    assert match is not None  # shapes that do not fit are the operator's own affair
    match()
    assert matching(ATEN.add_.Tensor, (x, "three"), {}) is None
    assert not x.any()


def test_without_torchs_help_nothing_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_torch", SimpleNamespace())
    assert matching(ATEN.relu.default, (X,), {}) is None
