"""The geometry of a 2-D convolution and the GEMM that each pass is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernels import flops

PASSES = ("fprop", "dgrad", "wgrad")
DIMS = ("n", "c", "h", "w", "k", "r", "s", "stride", "padding", "dilation", "groups")
LEAST_BY_AXIS = {"stride": 1, "padding": 0, "dilation": 1}
MOST_DIGITS = 9  # of a number: more than any memory holds would only overflow something


def by_axis(value: int | str) -> tuple[int, int]:
    """(of rows, of columns) of what a case has by axis: 2, or "0x15". ValueError for another."""
    if isinstance(value, int):
        return value, value
    numbers = value.split("x")
    if len(numbers) > 2 or not all(n.isdecimal() and len(n) <= MOST_DIGITS for n in numbers):
        raise ValueError(f"must be a number, or rows x columns as 1x2, not {value!r}")
    return int(numbers[0]), int(numbers[-1])


def of_axes(rows: int, columns: int) -> int | str:
    """What a case writes: one number where both axes have it, or "0x15"."""
    return rows if rows == columns else f"{rows}x{columns}"


@dataclass(frozen=True)
class ConvShape:
    """y[N, K, P, Q] = x[N, C, H, W] * w[K, C/groups, R, S], as cross-correlation.

    Stride, padding and dilation, in pixels, are a number for both axes, or a text such as "0x15"
    where rows and columns differ. ValueError for a shape that is no convolution: a size below 1,
    channels that groups do not divide, a kernel larger than the padded image.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int | str = 1
    padding: int | str = 0
    dilation: int | str = 1
    groups: int = 1

    def __post_init__(self) -> None:
        for name in LEAST_BY_AXIS:
            try:
                object.__setattr__(self, name, of_axes(*by_axis(getattr(self, name))))
            except ValueError as error:
                raise ValueError(f"{name} {error}") from None
        for name in DIMS:
            least = LEAST_BY_AXIS.get(name, 1)
            if min(by_axis(getattr(self, name))) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("c", "k"):
            if getattr(self, name) % self.groups:
                raise ValueError(
                    f"{name.upper()}={getattr(self, name)} is not divisible into "
                    f"{self.groups} groups"
                )
        sizes = (self.h, self.r), (self.w, self.s)
        for (image, kernel), padding, dilation in zip(
            sizes, self.paddings, self.dilations, strict=True
        ):
            if dilation * (kernel - 1) + 1 > image + 2 * padding:
                dilated = f" with dilation {dilation}" if dilation > 1 else ""
                raise ValueError(
                    f"a kernel of {kernel}{dilated} does not fit an image of {image} padded by "
                    f"{padding}"
                )

    @property
    def strides(self) -> tuple[int, int]:
        """Pixels from one output to the next, along rows and along columns."""
        return by_axis(self.stride)

    @property
    def paddings(self) -> tuple[int, int]:
        """Pixels of padding on either side, of rows and of columns."""
        return by_axis(self.padding)

    @property
    def dilations(self) -> tuple[int, int]:
        """Pixels from one tap to the next, along rows and along columns."""
        return by_axis(self.dilation)

    @property
    def p(self) -> int:
        """Rows P of the output, (H + 2*padding - dilation*(R - 1) - 1) // stride + 1."""
        return self._outputs(self.h, self.r, 0)

    @property
    def q(self) -> int:
        """Columns Q of the output, (W + 2*padding - dilation*(S - 1) - 1) // stride + 1."""
        return self._outputs(self.w, self.s, 1)

    def _outputs(self, image: int, kernel: int, axis: int) -> int:
        reach = self.dilations[axis] * (kernel - 1) + 1
        return (image + 2 * self.paddings[axis] - reach) // self.strides[axis] + 1

    @property
    def flat(self) -> bool:
        """Whether it is a plain GEMM: x and y are [pixels, C] and [pixels, K] matrices."""
        return (self.r, self.s, self.stride, self.padding) == (1, 1, 1, 0)

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved with a filter of its own."""
        return self.groups == self.c == self.k > 1

    @property
    def flops(self) -> int:
        """2*N*K*P*Q*C*R*S/groups operations, the same for every pass."""
        weight = self.k, self.c // self.groups, self.r, self.s
        return flops.convolution(self.n, (self.p, self.q), weight)

    def gemm(self, which: str) -> tuple[int, int, int]:
        """(M, N, K) of the implicit GEMM of a pass, of one group.

        fprop: pixels of y by filters over C*R*S; dgrad: pixels of x by channels over K*R*S/stride^2
        (each pixel of x meets only every stride-th tap); wgrad: filters by C*R*S over pixels of y.
        """
        c, k, taps = self.c // self.groups, self.k // self.groups, self.r * self.s
        pixels = self.n * self.p * self.q
        if which == "fprop":
            return pixels, k, c * taps
        if which == "dgrad":
            return self.n * self.h * self.w, c, max(1, k * taps // prod(self.strides))
        return k, c * taps, pixels

    def elements(self, tensor: str) -> int:
        """Elements of "x" (N, C, H, W), "w" (K, C/groups, R, S) or "y" (N, K, P, Q) that a pass
        must read.

        A stride wider than the kernel leaves rows and columns of x untouched.
        """
        if tensor == "w":
            return self.k * (self.c // self.groups) * self.r * self.s
        if tensor == "y":
            return self.n * self.k * self.p * self.q
        rows = self._touched(self.h, self.r, self.p, 0)
        return self.n * self.c * rows * self._touched(self.w, self.s, self.q, 1)

    def _touched(self, image: int, kernel: int, outputs: int, axis: int) -> int:
        rows: set[int] = set()
        stride = self.strides[axis]
        for tap in range(kernel):
            start = tap * self.dilations[axis] - self.paddings[axis]
            first = max(0, -(start // stride))
            last = min(outputs - 1, (image - 1 - start) // stride)
            rows.update(range(start + first * stride, start + last * stride + 1, stride))
        return len(rows)
