"""A user's folder with the recorder in it, and the scripts that run there.

They run under `quick_python`, also that of another interpreter (.ci/recorder.py). What they leave
is read with the halfway of the tests.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from e2e.profile import halfway_prove
from e2e.profile.halfway_prove import ABLATIONS, Ablation, Prover, StepProbe

RECORDER = "halfway_watch.py"
PROOFS = "halfway_prove.py"
STEPS = ("--after", "2", "--bare", "3", "--traced", "2")
NEEDED = 2 + 3 + 1 + 2  # steps, with those


def source(name: str) -> str:
    """The text of one of the two files that travel."""
    return files("e2e.profile").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class User:
    """A folder, and the interpreter that runs what is in it."""

    folder: Path
    python: str

    def run(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter with these words, and with nothing of ours in its environment.

        `more` are variables.
        """
        done = subprocess.run(
            [self.python, *words], cwd=self.folder, capture_output=True, text=True,
            timeout=200, env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder),
                              "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    def record(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a script under the recorder, which leaves a.json.gz."""
        words = (RECORDER, *STEPS, "--out", "a.json.gz", *words)
        return self.run(*words, code=code, **more)

    @property
    def left(self) -> list[str]:
        """What is in the folder beside scripts."""
        return sorted(path.name for path in self.folder.iterdir() if path.suffix != ".py")


def inspected(step: Callable[[], object]) -> StepProbe:
    """What is seen of a training's steps before anything in them is changed."""
    kept: list[StepProbe] = []

    def when(probe: StepProbe) -> str:
        kept.append(probe)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            halfway_prove, "ABLATIONS", {"none": Ablation(ABLATIONS["tf32"].change, "", when)}
        )
        prover = Prover(
            time.perf_counter, lambda begin, end: end - begin, 1.0, lambda found: None,
            compiled=False,
        )  # fmt: skip
        while not prover.done:
            step()
            prover.step()
    return kept[0]
