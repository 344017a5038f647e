"""The GPU that the tests run on."""

from __future__ import annotations

import pytest

from microbench.device.device import DeviceInfo, describe


@pytest.fixture(scope="session")
def gpu() -> DeviceInfo:
    return describe("cuda")
