"""Made data: photo-like JPEGs in folders, for those who have no photographs to train on."""

from e2e.data.synthetic_jpeg.check import check
from e2e.data.synthetic_jpeg.making import Made, cached, make

__all__ = ["CLASSES", "IMAGES", "Made", "cached", "check", "make"]

# Of `--data made`: as many as a page cache holds everywhere, made in seconds on a large machine.
IMAGES, CLASSES = 4000, 100
