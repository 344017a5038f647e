"""What the machine is and what makes its numbers unreliable: facts in, findings out.

`examine` gathers and judges; the report prints. A check is a function of `Facts`; adding one is one
function and one entry in the tuples of gpu.py or host.py. Nothing is changed.
"""

from __future__ import annotations

from microbench.device.device import DeviceInfo
from microbench.device.doctor.facts import LEVELS, Check, Facts, Finding, Level, gather
from microbench.device.doctor.gpu import GPU_CHECKS
from microbench.device.doctor.host import HOST_CHECKS, SOFTWARE_CHECKS, device

__all__ = ["CHECKS", "LEVELS", "Check", "Facts", "Finding", "Level", "examine", "gather", "judge"]

CHECKS: tuple[Check, ...] = (device, *SOFTWARE_CHECKS, *GPU_CHECKS, *HOST_CHECKS)


def examine(info: DeviceInfo) -> list[Finding]:
    """Findings about the device and the computer it is in, in the order of CHECKS."""
    return judge(gather(info))


def judge(facts: Facts) -> list[Finding]:
    """Findings about the facts, one for each check that applies."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]
