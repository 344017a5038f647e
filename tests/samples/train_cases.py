"""Cases of networks, as tests of traces and predictions need them."""

from __future__ import annotations

from e2e.case import TrainCase
from e2e.networks.network import Network, written


def case_of(network: Network, batch: int = 8, **settings: object) -> TrainCase:
    """A case in float32 and NCHW unless told otherwise; tokens have no layout."""
    made: dict[str, object] = {"recipe": "fp32", "layout": "nchw", "optimizer": network.optimizer}
    made |= settings
    if network.tokens is not None:
        made["layout"] = ""
    return TrainCase(network.name, batch=batch, input=written(network.input), **made)  # type: ignore[arg-type]


def quietly(key: str, stage: str) -> None:
    """Nobody listens to what a prediction announces."""
