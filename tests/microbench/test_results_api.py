"""`microbench.results` as a notebook imports it: every public name, and little else with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from microbench import results

RESULTS = Path(__file__).parents[2] / "results"
OURS = ("kernels", "microbench", "e2e")


def loaded_by(statement: str) -> list[str]:
    """Names of the modules that a fresh process has after a statement."""
    command = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True,
        cwd=RESULTS.parent,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("statement", "most"),
    [("import microbench.results", 10), ("from microbench.results import read_run", 27)],
)
def test_importing_loads_few_files_of_ours_and_no_torch(statement: str, most: int) -> None:
    modules = loaded_by(statement)
    ours = [name for name in modules if name.split(".")[0] in OURS]
    assert len(ours) <= most, ours
    assert {"torch", "numpy", "rich", "click"}.isdisjoint(modules)


def test_every_public_name_is_there() -> None:
    for name in results.__all__:
        assert getattr(results, name).__name__ in (name, "tuple")
    with pytest.raises(ImportError):
        from microbench.results import nothing  # type: ignore # noqa: F401


def test_a_run_is_read_and_compared_with_itself() -> None:
    run = results.read_run(RESULTS / "nvidia-h200" / "gemm-fp16.json")
    assert isinstance(run, results.Run)
    assert results.compare(run, run).count("slower") == 0
