"""Any recorded ATen call as a case: what it is, what it costs at least, and how to run it alone.

A training step is a list of such calls: `describe` turns one into plain data, `kind_of` and
`flops` say what it does, and `materialise` makes arguments that are valid and of realistic content,
so that it can be launched and timed by itself.
"""

from e2e.aten.arena import WARM, ColdL2, Pool
from e2e.aten.call import (
    Argument,
    Call,
    CannotReplay,
    Named,
    TensorSpec,
    describe,
    resolve,
    spec_of,
    tensors_among,
)
from e2e.aten.kinds import flops, kind_of, kind_of_name
from e2e.aten.materialise import Replay, materialise, movable, reserve, why_not

__all__ = [
    "WARM", "Argument", "Call", "CannotReplay", "ColdL2", "Named", "Pool", "Replay", "TensorSpec",
    "describe", "flops", "kind_of", "kind_of_name", "materialise", "movable", "reserve", "resolve",
    "spec_of", "tensors_among", "why_not",
]  # fmt: skip
