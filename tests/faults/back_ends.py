"""Back ends of a user that misbehave: their case fails by name, the others are measured."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from .forks import Attempt, Kind
from .judge import Outcome
from .processes import run

FAULTS = {
    "raises": "raise RuntimeError('a fault\\nof two lines \\x1b[31m')",
    "raises nothing": "raise Exception",
    "leaves": "sys.exit(3)",
    "ends": "os._exit(7)",
    "interrupts": "raise KeyboardInterrupt",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "has no memory": "raise MemoryError",
    "recurses": "def f(): f()\n    f()",
    "gives NaN": "out.fill_(float('nan'))",
    "gives inf": "out.fill_(float('inf'))",
    "gives zeros": "out.zero_()",
    "is a little wrong": "torch.mm(a, b, out=out); out[-1, -1] += 100",
    "gives another shape": "return torch.zeros(3, 5)",
    "gives another type": "return 'x' * 10_000",
    "resizes": "out.resize_(1, 1)",
    "writes nothing": "pass",
}
HARMLESS = {
    "prints": "print('\\x1b[2J\\x07' + 'x' * 5000); torch.mm(a, b, out=out)",
    "prints to stderr": "os.write(2, b'noise\\n'); torch.mm(a, b, out=out)",
    "starts a thread": "threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); "
    "torch.mm(a, b, out=out)",
    "is slow": "time.sleep(0.02); torch.mm(a, b, out=out)",
}
NOT_LOADED = {
    "no module": "",
    "no syntax": "def (",
    "raises when loaded": "raise ValueError('no')",
    "leaves when loaded": "import sys; sys.exit(0)",
    "no function": "bad = 3",
}
SURE = 12  # launches within which a fault must be found
HEAD = "import os, signal, sys, threading, time\nimport torch\nlaunches = 0\n"
BODY = """def bad(a, b, out):
    global launches
    launches += 1
    if launches > {good}:
        return faulty(a, b, out)
    torch.mm(a, b, out=out)

def faulty(a, b, out):
    {fault}
"""
SIZES = ("32", "48")
WORDS = ("-m", "microbench", "gemm", "--sizes", ",".join(SIZES), "--dtype", "fp32", "--device",
         "cpu", "--backend", "cpu,mine:bad", "--budget", "0.5", "--json", "run.json")  # fmt: skip


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One back end, wrong from one launch on."""
    fault = rng.choice((*FAULTS, *FAULTS, *HARMLESS, *NOT_LOADED))
    good = rng.choice((0, 0, rng.randint(1, SURE)))
    text = NOT_LOADED.get(fault)
    if text is None:
        text = HEAD + BODY.format(good=good, fault={**FAULTS, **HARMLESS}[fault])
    if fault != "no module":
        (folder / "mine.py").write_text(text, encoding="utf-8")
    found = run(WORDS, folder)
    complaints = list(_wrong(fault, found.outcome, folder / "run.json"))
    complaints += [f"a process is left: {command}" for command in found.left]
    return Attempt(f"{fault} after {good} launches", [f"{one} ({fault})" for one in complaints])


def _wrong(fault: str, outcome: Outcome, file: Path) -> Iterator[str]:
    if fault in HARMLESS and fault.startswith("prints"):
        # What it prints is the user's own; the rest must be as always.
        outcome = Outcome(outcome.code, b"", b"")
    yield from outcome.complaints()
    if fault in NOT_LOADED:
        if outcome.code != 2:
            yield f"exit code {outcome.code} for a back end that cannot be loaded"
        return
    if not file.exists():
        yield "no run file"
        return
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    library = [one for one in results if one["backend"] == "cpu" and one["precision"] == "fp32"]
    if len(library) != len(SIZES) or any(one["status"] != "ok" for one in library):
        yield "the library was not measured"
    own = [one for one in results if one["backend"] != "cpu"]
    if fault in FAULTS and any(one["status"] == "ok" for one in own):
        yield "a faulty back end is called right"
    if fault in HARMLESS and any(one["status"] != "ok" for one in own):
        yield "a right back end has failed"


BACK_ENDS = Kind("back ends", attempt, limit_s=150.0, share=0.1)
