"""A back end of the user's own: held to the same check as ours, timed beside the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples.commands import Ran, environment, run_here, warm_children

from kernels.case import Case
from kernels.gemm import Gemm
from microbench.__main__ import main
from microbench.measure import Wrong, describe_failure
from microbench.results.runfile import read_run
from microbench.results.types import Run

MINE = """
import torch
from kernels.case import Candidate

def gemm(a, b):
    return a @ b

def into(a, b, out):
    torch.mm(a, b, out=out)

def wrong(a, b):
    return 1.1 * (a @ b)

def unfinished(a, b):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    c[:-1] = a[:-1] @ b
    return c

def wider(a, b):
    return (a @ b).double()

def forgetful(a, b):
    a @ b

def broken(a, b):
    raise ValueError("first line\\nsecond line")

def driver(a, b):
    raise RuntimeError("0 active drivers ([]). There should only be one.")

def conv(x, w, stride, padding, dilation, groups):
    return torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)

def gradients(first, second, which, shape):
    more = (shape.stride, shape.padding, shape.dilation, shape.groups)
    x, w = (shape.n, shape.c, shape.h, shape.w), (shape.k, shape.c, shape.r, shape.s)
    if which == "fprop":
        return torch.nn.functional.conv2d(first, second, None, *more)
    if which == "dgrad":
        return torch.nn.grad.conv2d_input(x, second, first, *more)
    return torch.nn.grad.conv2d_weight(first, w, second, *more)

class Several:
    def cannot_run(self, case, target):
        return "no odd sizes" if case.problem.dims["m"] % 2 else None

    def candidates(self, case, operands, target):
        a, b, c = operands.a, operands.b, operands.c
        return [Candidate("two", lambda: c.copy_(2 * (a @ b))),
                Candidate("one", lambda: torch.mm(a, b, out=c)),
                Candidate("none", lambda: c.zero_())]

several = Several()
three = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine")
    (path / "my_own.py").write_text(MINE)
    return path


def measured(folder: Path, name: str, *words: str, code: int = 0) -> Run:
    path = folder / f"{name}.json"
    common = ("--vs", "none", "--dtype", "fp32", "--device", "cpu", "--budget", "0.2")
    with warm_children():
        ran = run_here(main, "microbench", *words, *common, "--json", path, cwd=folder)
    assert ran.returncode == code
    assert ran.stderr.startswith("error: my_own:" if code else "")
    assert len(ran.stderr.splitlines()) == code
    return read_run(path)


def found(run: Run) -> dict[str, Any]:
    return {r.case.backend: r for r in run.results}


def test_right_ones_are_timed_beside_the_library_and_wrong_ones_are_not(folder: Path) -> None:
    names = ("gemm", "into", "wrong", "unfinished", "wider", "forgetful", "broken", "several")
    backends = ",".join(f"my_own:{name}" for name in names)
    words = ("gemm", "--sizes", "48", "--backend", backends)
    by = found(measured(folder, "gemm", *words, code=1))  # some of the user's failed
    assert by["cpu"].status == "ok"
    for name in ("gemm", "into", "several"):
        result = by[f"my_own:{name}"]
        assert result.status == "ok", result.reason
        assert result.vs_backend["cpu"].ratio > 0
        assert result.rel_error < 1e-6
    assert by["my_own:several"].variant == "one"
    reasons = {name: by[f"my_own:{name}"].reason for name in names[2:7]}
    assert "relative error 0.1 against float64" in reasons["wrong"]
    assert "wrong result" in reasons["unfinished"]
    assert reasons["wider"] == "returned float64 [48, 48], not float32 [48, 48]"
    assert reasons["forgetful"] == "returned None, and has no argument `out`"
    line = MINE.splitlines().index("def broken(a, b):") + 2
    assert reasons["broken"] == f"ValueError: first line (my_own.py:{line})"
    lost = [by[f"my_own:{name}"] for name in names[2:7]]
    assert {(result.status, result.measurement) for result in lost} == {("failed", None)}
    words = ("gemm", "--sizes", "47", "--backend", "my_own:several,my_own:broken")
    by = found(measured(folder, "odd", *words, code=1))
    assert (by["my_own:several"].status, by["my_own:several"].reason) == ("skipped", "no odd sizes")


def test_a_gate_says_what_failed(folder: Path) -> None:
    """With --quiet one line a failed case, with --verbose the traceback; what is there is replaced
    with --overwrite only; and without a GPU a Triton kernel says how it runs."""
    words = ("gemm", "--sizes", "48", "--vs", "none", "--dtype", "fp32", "--device", "cpu",
             "--budget", "0.2", "--json", folder / "gate.json")  # fmt: skip
    (folder / "gate.json").write_text("{}")

    def run(*more: str) -> Ran:
        with warm_children():
            return run_here(main, "microbench", *words, *more, cwd=folder)

    backend = ("--backend", "my_own:broken,my_own:gemm")
    ran = run(*backend, "--quiet")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--overwrite" in ran.stderr
    assert (folder / "gate.json").read_text() == "{}\n".strip()
    ran = run(*backend, "--quiet", "--overwrite")
    assert (ran.returncode, ran.stdout) == (1, "")
    failed, error = ran.stderr.splitlines()
    assert failed.startswith("failed: fp32 48 my_own:broken: ValueError: first line (my_own.py:")
    assert error == "error: my_own:broken failed in 1 of 2 cases"
    told = map(str, (*words, *backend, "--verbose", "--overwrite"))
    ended = subprocess.run(
        [sys.executable, "-m", "microbench", *told], cwd=folder, env=environment(),
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, True)
    assert "TRITON_INTERPRET=1" in run("--backend", "my_own:driver", "--overwrite").stdout
    assert "error: nothing was measured: " in run("--backend", "triton", "--overwrite").stderr


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_every_pass_of_a_convolution(folder: Path, layout: str) -> None:
    run = measured(
        folder, f"conv-{layout}", "conv", "--channels", "8x12", "--image", "7x9", "--batch", "2",
        "--pass", "fprop,dgrad,wgrad", "--layout", layout, "--stride", "2", "--padding", "1",
        "--backend", "my_own:gradients,my_own:conv",
    )  # fmt: skip
    by = {(r.case.backend, r.case.problem.dims["pass"]): r for r in run.results}
    for which in ("fprop", "dgrad", "wgrad"):
        assert by["my_own:gradients", which].status == "ok", by["my_own:gradients", which].reason
    assert by["my_own:conv", "fprop"].status == "ok"
    assert "only its forward pass is measured" in (by["my_own:conv", "wgrad"].reason or "")


def test_bfloat16_of_the_interpreter_is_not_blamed_on_the_kernel_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reason(precision: str) -> str:
        return describe_failure(
            Wrong("wrong result", 6e9), Case(Gemm(32, 32, 32), precision, "my_own:gemm")
        )

    assert reason("bf16") == "wrong result"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert reason("bf16") == "wrong result; Triton's interpreter gets bfloat16 wrong"
    assert reason("fp16") == "wrong result"


def test_the_example_kernels_are_right_in_the_interpreter() -> None:
    """A process of its own: the interpreter is chosen when Triton is imported."""
    example = Path(__file__).parents[2] / "examples" / "kernels"
    script = """
import torch, my_kernels, planted
a, b = torch.randn(70, 50).half(), torch.randn(90, 50).half().t()
c = my_kernels.gemm(a, b).float()
torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=2e-2)
last = torch.channels_last
x = torch.randn(2, 20, 9, 8).half().to(memory_format=last)
w = torch.randn(24, 20, 3, 3).half().to(memory_format=last)
y = torch.nn.functional.conv2d(x.float(), w.float(), None, 2, 1, 1)
out = torch.empty_like(y, dtype=torch.float16, memory_format=last)
my_kernels.conv(x, w, out, 2, 1, 1, 1)
torch.testing.assert_close(out.float(), y, rtol=1e-2, atol=5e-2)
a, b = torch.randn(70, 128).half(), torch.randn(90, 128).half().t()
right = planted.base(a, b)
torch.testing.assert_close(right.float(), a.float() @ b.float(), rtol=1e-2, atol=5e-2)
assert planted.plus5(a, b).equal(right) and planted.plus10(a, b).equal(right)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=example, capture_output=True, text=True, timeout=200,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(example)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
