"""Draws GEMM or convolution shapes that no table is tuned for, as a file for --shapes.

    python examples/draw_shapes.py conv --seed 2026 > conv.csv
    python -m microbench conv --shapes conv.csv --backend cudnn,triton

Sides are drawn by their logarithm, as networks have them: in three of five shapes multiples of 8 or
more, else any number, some very small. Shapes of results/shapes/ are from seed 2026.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from random import Random

COUNT, SEED = 64, 2026
ALIGNED = 0.6  # of the shapes
LEAST_FLOP, MOST_FLOP = 1e8, 2e12  # of a problem: it takes 10 us to 3 ms on a large card
Shape = dict[str, int | str]


def side(draw: Random, least: int, most: int, *, aligned: bool) -> int:
    """A number in the range, its logarithm uniform; `aligned`: a multiple of 64, 16 or 8."""
    number = least * (most / least) ** draw.random()
    step = draw.choice((64, 64, 16, 8)) if aligned else 1
    return min(most, max(least, round(number / step) * step))


def gemm(draw: Random) -> Shape:
    """One GEMM; each tenth has very few rows, each tenth very few columns."""
    aligned = draw.random() < ALIGNED
    m, n, k = (side(draw, 64, 8192, aligned=aligned) for _ in range(3))
    kind = draw.randrange(10)
    if kind == 0:
        m = side(draw, 1, 64, aligned=False)
    if kind == 1:
        n = side(draw, 8, 64, aligned=aligned)
    return {"m": m, "n": n, "k": k, "layout": draw.choice(("nt", "nt", "nn", "tn", "tt"))}


def conv(draw: Random) -> Shape:
    """One convolution of an image network: any pass, 1x1 to 7x7, stride 1 or 2."""
    r = draw.choice((1, 3, 3, 3, 5, 7))
    aligned = draw.random() < ALIGNED
    c, k = (side(draw, 8, 1024, aligned=aligned) for _ in range(2))
    c = 3 if draw.randrange(12) == 0 else c
    image = side(draw, 7, 112, aligned=False)
    return {
        "n": draw.choice((16, 32, 64)), "c": c, "k": k, "h": image, "w": image,
        "r": r, "s": r, "stride": draw.choice((1, 1, 1, 2)), "padding": r // 2,
        "pass": draw.choice(("fprop", "dgrad", "wgrad")),
    }  # fmt: skip


def flop(shape: Shape) -> float:
    """Operations of a problem, about."""
    of = {name: float(value) for name, value in shape.items() if isinstance(value, int)}
    if "m" in of:
        return 2 * of["m"] * of["n"] * of["k"]
    taps = of["r"] * of["s"] / of["stride"] ** 2
    return 2 * of["n"] * of["c"] * of["k"] * of["h"] * of["w"] * taps


KINDS: dict[str, Callable[[Random], Shape]] = {"gemm": gemm, "conv": conv}


def drawn(kind: str, seed: int, count: int) -> list[Shape]:
    """`count` different shapes of a kind, always the same ones for a seed."""
    draw, found = Random(f"{kind} {seed}"), list[Shape]()
    while len(found) < count:
        shape = KINDS[kind](draw)
        if LEAST_FLOP <= flop(shape) <= MOST_FLOP and shape not in found:
            found.append(shape)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args()
    shapes = drawn(given.kind, given.seed, given.count)
    lines = csv.DictWriter(sys.stdout, list(shapes[0]), lineterminator="\n")
    lines.writeheader()
    lines.writerows(shapes)
