"""The names of `ranks` until nothing imports these."""

from e2e.training.ranks import MEET_S as AGREE_S
from e2e.training.ranks import PATIENCE_S as ALONE_S
from e2e.training.ranks import Ranks, RanksLost, device_of

__all__ = ["AGREE_S", "ALONE_S", "Ranks", "RanksLost", "device_of"]
