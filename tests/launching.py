"""What a launch gave back, described as it is recorded; for tests of calls run alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from kernels.aten import Call, TensorSpec, resolve, spec_of


def specs(returned: Any) -> tuple[TensorSpec, ...]:
    return tuple(spec_of(leaf) for leaf in tree_leaves(returned) if isinstance(leaf, Tensor))


def given(call: Call, returned: Any) -> tuple[TensorSpec, ...]:
    """The tensors that the operator gives by its schema.

    torch's bindings also give back a list that was changed in place, and make tensors of numbers.
    """
    kinds = [str(value.type) for value in resolve(call.name)._schema.returns]
    values = returned if len(kinds) > 1 else [returned] * len(kinds)
    return specs([v for v, kind in zip(values, kinds, strict=True) if "Tensor" in kind])


def finite(returned: Any) -> bool:
    floats = [t for t in tree_leaves(returned) if isinstance(t, Tensor) and t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)
