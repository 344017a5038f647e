"""The names of `place` until nothing imports these."""

from e2e.training.place import Place, place_of

__all__ = ["Place", "place_of"]
