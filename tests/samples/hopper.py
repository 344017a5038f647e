"""A stand-in for the GPU's driver, so that Triton compiles for one that is not there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import count
from typing import Any

SHARED_LIMIT = 232448  # bytes, of a block
_NUMBERS = count(1000)  # of devices; none real is so high


class FakeHopper:
    """A driver that answers as an H200 would. Each is another device, so that Triton has no kernel
    for it yet.
    """

    def __init__(self) -> None:
        self.number = next(_NUMBERS)

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


@dataclass(frozen=True)
class Built:
    """Compiled kernels, in the order of their launches, and what ptxas said of them."""

    kernels: Sequence[Any]
    log: str

    @property
    def ptx(self) -> str:
        """The PTX of all of them."""
        return "\n".join(kernel.asm["ptx"] for kernel in self.kernels)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of the one that takes the most."""
        return max(kernel.metadata.shared for kernel in self.kernels)

    @property
    def spilled(self) -> int:
        """Bytes that do not fit the registers."""
        return sum(self._numbers(r"(\d+) bytes spill stores"))

    @property
    def registers(self) -> int:
        """Registers of a thread of the one that takes the most."""
        return max(self._numbers(r"Used (\d+) registers"))

    def _numbers(self, pattern: str) -> list[int]:
        found = [int(number) for number in re.findall(pattern, self.log)]
        assert len(found) == len(self.kernels), "ptxas speaks once of each kernel"
        return found

    @property
    def wgmma(self) -> set[str]:
        """Shapes and types of their wgmma instructions: "m64n128k16.f32.f16.f16"."""
        return set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\S+)", self.ptx))


def build(compiled: Callable[[], Sequence[object]]) -> Built:
    """What a back end's `compiled` gives. ptxas runs once a kernel, in Triton, which says what it
    says where the fixture `hopper` is used.
    """
    with redirect_stdout(StringIO()) as said:
        kernels = compiled()
    return Built(kernels, said.getvalue())
