"""Another package with a name of ours: one line says so, and nothing of it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {"halfway": ("bin/halfway",), "e2e": ("-m", "e2e"), "microbench": ("-m", "microbench")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the console command in its bin/."""
    (tmp_path / "work" / "bin").mkdir(parents=True)
    text = "import sys\nfrom e2e.start import main\nsys.exit(main())\n"
    (tmp_path / "work" / "bin" / "halfway").write_text(text)
    return tmp_path / "work"


def run(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=100,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "name"),
    [("halfway", "kernels"), ("halfway", "microbench"), ("e2e", "kernels"),
     ("microbench", "kernels"), ("microbench", "e2e")],
)  # fmt: skip
def test_a_foreign_package_is_named_in_one_line(folder: Path, program: str, name: str) -> None:
    theirs = folder.parent / "theirs"
    (theirs / name).mkdir(parents=True)
    (theirs / name / "__init__.py").write_text("print('theirs')\n")
    path = os.pathsep.join((str(theirs), str(ROOT)))
    done = run(folder, *PROGRAMS[program], "list", path=path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"the package {name} " in done.stderr
    assert "environment of its own" in done.stderr


@pytest.mark.slow
def test_a_folder_beside_the_user_s_module_does_not_take_our_place(folder: Path) -> None:
    (folder / "mynet.py").write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(4, 2)\n"
    )
    (folder / "e2e").mkdir()
    words = (*PROGRAMS["halfway"], "train", "mynet:build", "--input", "4", "--device", "cpu",
             "--batch", "2", "--recipe", "fp32", "--budget", "0.1", "--quiet")  # fmt: skip
    assert run(folder, *words, path=str(ROOT)).returncode == 0, "a folder that is no package"
    (folder / "e2e" / "__init__.py").write_text("raise RuntimeError('theirs')\n")
    done = run(folder, *words, path=str(ROOT))
    assert done.returncode == 2
    assert "rename it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
