"""What low precision buys in training: train, predict and explain networks.

`e2e.train`, `predict`, `stalls`, `loader` and `watch` are the functions of `e2e.api`; they load
when they are first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from e2e.api import loader as loader
    from e2e.api import predict as predict
    from e2e.api import stalls as stalls
    from e2e.api import train as train
    from e2e.api import watch as watch

API = ("loader", "predict", "stalls", "train", "watch")


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from e2e import api

    return getattr(api, name)
