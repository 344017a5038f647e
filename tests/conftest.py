"""How tests run side by side, and one after another in a process."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from samples.quick_python import server

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many processes as cores: threads of each beside them would only wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ.pop("COLUMNS", None)  # reports are as wide as it says

FRESH = ("highest", True, False, "none")  # switches as torch is imported
TRIED = 10  # algorithms that cuDNN tries for a convolution, as torch is imported

# An example may take long on a machine that does other work too: that is no failure.
settings.register_profile("halfway", deadline=None)
settings.load_profile("halfway")

# Started in the background by a shell, or by nohup, it would pass on that signals are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first, so that no process ends with one of them alone.

    Times that must agree do so only where nothing else keeps the device busy.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    of_file = Counter(item.path for item in items)
    items.sort(key=lambda item: (-slow[item.path], -of_file[item.path], item.path))
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.skip(reason="others run beside it: run it alone"))


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Recipes and kernels set switches of the process: put them as torch has them when it starts.

    The older ones first: torch refuses to read these where they contradict the newer ones.
    """
    yield
    torch: Any = sys.modules.get("torch")
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    if compiler:  # a recorder does not name the layers of what is compiled, and asks these
        compiler.counters.clear()
    if torch:
        matmul, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark, newer = FRESH
        torch.backends.cudnn.benchmark_limit = TRIED
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cuda.matmul.fp32_precision = newer
        assert _read(torch) == FRESH


def _read(torch: Any) -> tuple[str, bool, bool, str]:
    cudnn = torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark,
        torch.backends.cuda.matmul.fp32_precision,
    )  # fmt: skip


@pytest.fixture(scope="session")
def quick_python() -> Iterator[str]:
    """A `python` that starts with torch loaded; RECORDER_PYTHON names another interpreter."""
    with server(os.environ.get("RECORDER_PYTHON", sys.executable)) as program:
        yield program
