"""How tests run side by side, and one after another in a process."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
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


GPU = Path(__file__).parent / "gpu"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests in tests/gpu need a GPU: they are not read where they are not asked for."""
    return (collection_path == GPU and "not gpu" in config.option.markexpr) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, of few: some tests wait for what they have stopped."""
    cores = len(os.sched_getaffinity(0))
    return cores + 1 if cores < 8 else cores


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers that were asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Commands and trainings go first, and large files, so that no process ends with one alone."""
    for item in items:
        if GPU in item.path.parents:
            item.add_marker("gpu")
    of_file = Counter(item.path for item in items)
    last = ("docs", "kernels", "microbench")
    items.sort(key=lambda item: (item.path.parent.name in last, -of_file[item.path], item.path))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # its fixtures and its time limit are inside
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test marked `alone` waits until those beside it have ended, and they wait for it."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not item.get_closest_marker("gpu"):
        return (yield)
    folder = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
    alone = item.get_closest_marker("alone")
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


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
