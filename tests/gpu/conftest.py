"""The GPU that the tests run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.data import OperandPool
from kernels.op import Session
from microbench.device.device import DeviceInfo, describe


@pytest.fixture(scope="session")
def gpu() -> DeviceInfo:
    return describe("cuda")


@pytest.fixture(scope="module")
def session(gpu: DeviceInfo) -> Iterator[Session]:
    made = Session(gpu.target(), 0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pool(gpu: DeviceInfo) -> Iterator[OperandPool]:
    made = OperandPool(gpu.target(), 0)
    yield made
    made.clear()
