"""A pass of a convolution as the matrix product that our kernels compute."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kernels.case import Case
from kernels.conv import Conv
from kernels.conv.shape import ConvShape
from kernels.precision import Precision
from kernels.triton_util import row_for_tma


@dataclass(frozen=True)
class ImplicitGemm:
    """A pass of a convolution without groups, as our kernels see it.

    fprop and dgrad are one sum: out[n, rows, columns, k] += in[n, h, w, c] * weight. `split_output`
    says that the stride is a view of the output (dgrad) instead of the input; rows and columns are
    then those of one parity. A 1x1 kernel of stride 1 is one image of one row.
    """

    shape: ConvShape
    which: str
    precision: Precision

    @classmethod
    def of(cls, case: Case) -> ImplicitGemm:
        assert isinstance(case.problem, Conv)
        return cls(case.problem.shape, case.problem.which, case.precision)

    @property
    def element_bytes(self) -> int:
        return self.precision.bytes_per_element

    @property
    def weights(self) -> bool:
        """Whether it is the gradient of the weights."""
        return self.which == "wgrad"

    @property
    def dgrad(self) -> bool:
        """Whether the weights are used with filters and channels exchanged."""
        return self.which == "dgrad"

    @property
    def split_output(self) -> bool:
        """Whether the output is stored one parity (pixels a stride apart) at a time."""
        return self.dgrad and max(self.shape.strides) > 1

    @property
    def c(self) -> int:
        """Channels added up: C of fprop, K of dgrad."""
        return self.shape.k if self.dgrad else self.shape.c

    @property
    def k(self) -> int:
        """Channels of the output: K of fprop, C of dgrad."""
        return self.shape.c if self.dgrad else self.shape.k

    @property
    def image(self) -> tuple[int, int, int]:
        """Images, rows and columns of the input: (N, H, W) of fprop, (N, P, Q) of dgrad."""
        s = self.shape
        if self.shape.flat:
            return 1, 1, s.n * s.h * s.w
        return (s.n, s.p, s.q) if self.dgrad else (s.n, s.h, s.w)

    @property
    def whole_output(self) -> tuple[int, int, int]:
        """Images, rows and columns of the output: (N, P, Q) of fprop, (N, H, W) of dgrad."""
        s = self.shape
        if self.shape.flat:
            return self.image
        return (s.n, s.h, s.w) if self.dgrad else (s.n, s.p, s.q)

    @property
    def output(self) -> tuple[int, int, int]:
        """Images, rows and columns that tiles cover: of one parity where there are several."""
        n, h, w = self.whole_output
        down, right = self.shape.strides if self.split_output else (1, 1)
        return n, ceil(h / down), ceil(w / right)

    @property
    def pads(self) -> tuple[int, int]:
        """Pixels of padding before the first row and column, for a cross-correlation."""
        s = self.shape
        (rows, columns), (down, right) = s.paddings, s.dilations
        if self.dgrad and not self.split_output:
            return down * (s.r - 1) - rows, right * (s.s - 1) - columns
        return rows, columns

    def pixel(self, padded: bool) -> int:
        """Elements from one pixel of the input to the next, as conv_gluon reads it."""
        return row_for_tma(self.c * self.element_bytes, padded) // self.element_bytes
