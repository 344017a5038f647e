"""A stand-in for the GPU's driver, so that Triton compiles for one that is not there."""

from __future__ import annotations


class FakeHopper:
    """A driver that answers as an H200 would, under a device number no real one has."""

    def get_current_device(self) -> int:
        return 1000

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)
