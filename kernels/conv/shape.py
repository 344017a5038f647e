"""The geometry of a 2-D convolution and the GEMM that each pass is."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.case import Case

PASSES = ("fprop", "dgrad", "wgrad")
DIMS = ("n", "c", "h", "w", "k", "r", "s", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class ConvShape:
    """y[N, K, P, Q] = x[N, C, H, W] * w[K, C/groups, R, S], as cross-correlation.

    Stride, padding and dilation, in pixels, are the same along both axes. ValueError for a shape
    that is no convolution: a size below 1, channels that groups do not divide, a kernel larger than
    the padded image.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        for name in DIMS:
            least = 0 if name == "padding" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("c", "k"):
            if getattr(self, name) % self.groups:
                raise ValueError(
                    f"{name.upper()}={getattr(self, name)} is not divisible into "
                    f"{self.groups} groups"
                )
        for image, kernel in (("h", "r"), ("w", "s")):
            reach = self.dilation * (getattr(self, kernel) - 1) + 1
            if reach > getattr(self, image) + 2 * self.padding:
                dilated = f" with dilation {self.dilation}" if self.dilation > 1 else ""
                raise ValueError(
                    f"a kernel of {getattr(self, kernel)}{dilated} does not fit an image of "
                    f"{getattr(self, image)} padded by {self.padding}"
                )

    @classmethod
    def of(cls, case: Case) -> ConvShape:
        """The shape of a case. ValueError for no convolution, KeyError for a missing dimension."""
        return cls(**{name: case.dim(name) for name in DIMS})

    @property
    def p(self) -> int:
        """Rows P of the output, (H + 2*padding - dilation*(R - 1) - 1) // stride + 1."""
        return (self.h + 2 * self.padding - self.dilation * (self.r - 1) - 1) // self.stride + 1

    @property
    def q(self) -> int:
        """Columns Q of the output, (W + 2*padding - dilation*(S - 1) - 1) // stride + 1."""
        return (self.w + 2 * self.padding - self.dilation * (self.s - 1) - 1) // self.stride + 1

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
        per_output = self.c // self.groups * self.r * self.s
        return 2 * self.n * self.k * self.p * self.q * per_output

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
            return self.n * self.h * self.w, c, max(1, k * taps // self.stride**2)
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
        rows = self._touched(self.h, self.r, self.p)
        return self.n * self.c * rows * self._touched(self.w, self.s, self.q)

    def _touched(self, image: int, kernel: int, outputs: int) -> int:
        rows: set[int] = set()
        for tap in range(kernel):
            start = tap * self.dilation - self.padding
            first = max(0, -(start // self.stride))
            last = min(outputs - 1, (image - 1 - start) // self.stride)
            rows.update(
                range(start + first * self.stride, start + last * self.stride + 1, self.stride)
            )
        return len(rows)
