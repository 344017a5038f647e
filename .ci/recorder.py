"""The recorder of `diagnose` under other versions of torch, each in an environment of its own.

    python .ci/recorder.py --torch 2.0.1@python3.9,2.4.1,newest --keep ../environments

Each is a version, or "newest", and perhaps the interpreter that it needs. The tests of the recorder
run its scripts there, and read what they leave with the halfway that runs the tests. CI runs them
under its own torch. Trainers (Lightning, Hugging Face) are tested where they install.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/e2e/test_recorder.py"
NEWEST = "newest"
BEFORE_NUMPY_2 = "numpy<2"  # what was built before torch 2.3 does not run with numpy 2
TRAINERS = ("lightning", "transformers[torch]")


def environment(version: str, python: str, folder: Path) -> Path:
    """The interpreter of an environment with that torch, made if it is not there yet."""
    made = folder / f"torch-{version}" / "bin" / "python"
    if made.exists():
        return made
    subprocess.run([python, "-m", "venv", str(made.parents[1])], check=True)
    old = version != NEWEST and tuple(map(int, version.split(".")[:2])) < (2, 3)
    wanted = [f"torch=={version}"] if version != NEWEST else ["torch"]
    install(made, *wanted, *([BEFORE_NUMPY_2] if old else ["numpy"]))
    for trainer in TRAINERS:
        try:
            install(made, *wanted, trainer)
        except subprocess.CalledProcessError:
            print(f"torch {version}: {trainer} does not install", flush=True)
    return made


def install(python: Path, *packages: str) -> None:
    """Install these beside what is there. CalledProcessError where they do not."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)


def main() -> int:
    """Test each version and print a line for it; 1 where a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--torch", default=NEWEST, help="VERSION[@PYTHON],... [%(default)s]", metavar="VERSIONS"
    )
    parser.add_argument("--keep", type=Path, help="folder for the environments, used again")
    given = parser.parse_args()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="halfway-torch-") as temporary:
        for asked in given.torch.split(","):
            version, _, python = asked.partition("@")
            folder = (given.keep or Path(temporary)).resolve()
            found = environment(version, python or sys.executable, folder)
            done = subprocess.run(
                [sys.executable, "-m", "pytest", TESTS, "-q", "-rs", "-m", "not gpu"], cwd=ROOT,
                env=os.environ | {"RECORDER_PYTHON": str(found), "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            failed += [version] if done.returncode else []
            print(f"torch {version}: {'failed' if done.returncode else 'passed'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
