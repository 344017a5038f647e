"""Calibration models of the product's kinds with fewer layers: their counts grow with the depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from torch import nn

from e2e.predict import calibration as models


@contextmanager
def shallow_models() -> Iterator[None]:
    """The calibration models are shallow meanwhile, and traced in a tenth of the time."""
    wide = (models.WIDTH,)
    shallow = {
        "modules": (lambda: models._nested(nn.Linear(*wide, *wide), 20), wide),
        "calls": (lambda: models._Sums(10), wide),
        "weights": (lambda: models._Weights(15), wide),
        "dense": (lambda: models._dense(6), wide),
        "convolutions": (lambda: models._convolutions(3), (3, 8, 8)),
        "attention": (lambda: models._attention(1), (4 * models.WIDTH,)),
        "little": models._SMALL["little"],
    }
    assert shallow.keys() == models._SMALL.keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "_SMALL", shallow)
        yield
