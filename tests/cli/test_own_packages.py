"""Another package with a name of ours: one line says so, and nothing of it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples.commands import ROOT, run_here

from e2e.halfway import main

PROGRAMS = {"halfway": ("bin/halfway",), "e2e": ("-m", "e2e"), "microbench": ("-m", "microbench")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the console command in its bin/, and no package though a folder e2e."""
    (tmp_path / "work" / "bin").mkdir(parents=True)
    text = "import sys\nfrom e2e.start import main\nsys.exit(main())\n"
    (tmp_path / "work" / "bin" / "halfway").write_text(text)
    (tmp_path / "work" / "e2e").mkdir()
    return tmp_path / "work"


def run(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=180,
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
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"the package {name} " in done.stderr
    assert "environment of its own" in done.stderr


def test_a_folder_beside_the_user_s_module_does_not_take_our_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "mynet.py").write_text("raise RuntimeError('reached')\n")
    (folder / "e2e" / "__init__.py").write_text("raise RuntimeError('theirs')\n")
    done = run_here(main, "halfway", "gemm", "--backend", "mynet:build")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "rename it" in done.stderr
    (folder / "e2e" / "__init__.py").unlink()
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = run_here(main, "halfway", "gemm", "--backend", "mynet:build")
    assert "reached" in done.stderr, "a folder that is no package"
