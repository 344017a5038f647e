"""What a launch gave back, described as it is recorded; for tests of calls run alone."""

from __future__ import annotations

from typing import Any

from kernels.aten import Call, Replay, TensorSpec, resolve, spec_of, tensors_among

NUMBER = TensorSpec((), (), "int64", "cpu")


def specs(returned: Any) -> tuple[TensorSpec, ...]:
    return tuple(spec_of(tensor) for tensor in tensors_among(returned))


def given(call: Call, replay: Replay, returned: Any) -> tuple[TensorSpec, ...]:
    """The tensors that the operator gives by its schema.

    A binding of torch's may also give back the list that it changed, and make tensors of numbers;
    nothing else, or the test fails.
    """
    kinds = [str(value.type) for value in resolve(call.name)._schema.returns]
    if not kinds:
        assert returned is None or specs(returned) == specs(replay.args[0]), call.key
        return ()
    values = list(zip(returned if len(kinds) > 1 else [returned], kinds, strict=True))
    numbers = specs([value for value, kind in values if "Tensor" not in kind])
    assert set(numbers) <= {NUMBER}, call.key
    return specs([value for value, kind in values if "Tensor" in kind])


def finite(returned: Any) -> bool:
    floats = [t for t in tensors_among(returned) if t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)
