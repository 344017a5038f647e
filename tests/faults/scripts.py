"""A user's training scripts that misbehave under `diagnose`, where a signal may end it too."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

from .forks import Attempt, Kind
from .judge import Outcome, changed, files_in
from .processes import ENDED, Process, Signal, run

TRAINING = """import os, signal, subprocess, sys, time
import torch

def train(steps=40, wait_s=0.0, batches=None):
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in batches or range(steps):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(wait_s)

"""
SLEEP = '[sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); ' \
        'signal.signal(2, signal.SIG_IGN); time.sleep(600)"]'  # fmt: skip
# What a script does, and the exit codes that diagnose may have then.
SCRIPTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "trains": ("train()", (0,)),
    "raises": ("train(5)\nraise RuntimeError('a fault\\n\\x1b[31m')", (3,)),
    "exits with 7": ("train(5)\nsys.exit(7)", (3,)),
    "exits with 2": ("sys.exit(2)", (3,)),
    "exits with -1": ("sys.exit(-1)", (3,)),
    "exits with text": ("sys.exit('no\\x1b]0;data')", (3,)),
    "ends at once": ("os._exit(9)", (3,)),
    "crashes": ("train(5)\nos.kill(os.getpid(), signal.SIGSEGV)", (3,)),
    "is killed": ("train(5)\nos.kill(os.getpid(), signal.SIGKILL)", (3,)),
    "gets a real-time signal": ("os.kill(os.getpid(), 50)", (3,)),
    "gets a pipe's signal": ("signal.signal(13, 0); os.kill(os.getpid(), 13)", (3,)),
    "interrupts itself": ("train(5)\nraise KeyboardInterrupt", (3,)),
    "is no Python": ("def (", (3,)),
    "is binary": ("\0\x7f", (3,)),
    "is empty": ("", (1,)),
    "has no optimizer": ("torch.zeros(2) + 1", (1,)),
    "ends early": ("train(4)", (1,)),
    "closes its streams": ("os.close(0); os.close(1); os.close(2)\ntrain()", (0, 1, 3)),
    "goes elsewhere": ("os.makedirs('made'); os.chdir('made')\ntrain()", (0,)),
    "has few files": ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
                      "train()", (0, 1, 3)),
    "removes our folder": ("import glob, shutil, tempfile\ntrain(4)\nfor one in glob.glob("
                           "tempfile.gettempdir() + '/halfway-*'): shutil.rmtree(one)\ntrain()",
                           (1, 3)),
    "does not end by Ctrl-C": ("[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n"
                               "train(10**6, 0.05)", (0,)),
    "leaves a daemon": (f"subprocess.Popen({SLEEP}, start_new_session=True)\n"
                        "train(10**6, 0.05)", (0,)),
    "leaves an orphan": (f"if not os.fork():\n    subprocess.Popen({SLEEP}); os._exit(0)\n"
                         "train(10**6, 0.05)", (0,)),
    "has loader workers": ("train(0, 0.05, torch.utils.data.DataLoader(list(range(999)), "
                           "num_workers=2))", (0,)),
    "names what it should not": ("from torch.profiler import record_function\n"
                                 "with record_function('\\x1b]0;x\\x07</script>'): train()", (0,)),
}  # fmt: skip
STOPPABLE = ("trains", "does not end by Ctrl-C", "leaves a daemon", "leaves an orphan",
             "has loader workers")  # fmt: skip
WORDS = ("-m", "e2e", "diagnose", "train.py", "--after", "2", "--bare", "3", "--traced", "2",
         "--keep", "kept", "--json", "found.json")  # fmt: skip
LATER_S = 4.0  # after the signal: two, and two for a busy machine


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One script, and sometimes a signal."""
    name = rng.choice((*SCRIPTS, *STOPPABLE))
    text, codes = SCRIPTS[name]
    (folder / "train.py").write_text(TRAINING + text + "\n", encoding="utf-8")
    before = files_in(folder.parent)
    sent = None
    words = WORDS
    if name in STOPPABLE and rng.random() < 0.7:
        number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        sent = Signal(number, rng.uniform(1, 12), rng.random() < 0.5)
        words = (*words, "--whole") if rng.random() < 0.5 else words
    found = run(words, folder, sent=sent)
    complaints = list(_wrong(found, sent, codes, name))
    may = {"work/kept", "work/found.json", "work/made", "work/__pycache__", "home", "stdout",
           "stderr", *_of_others(folder.parent)}  # fmt: skip
    complaints += changed(before, files_in(folder.parent), may)
    how = f", {sent.number.name} after {sent.after_s:.1f} s" if sent else ""
    return Attempt(f"a script that {name}{how}", [f"{one} ({name})" for one in complaints])


def _wrong(found: Process, sent: Signal | None, codes: tuple[int, ...], name: str) -> Iterator[str]:
    """What a script prints is its own; the rest must be as always."""
    code = found.outcome.code
    last = found.outcome.err.splitlines()[-1:]
    if code in (1, 3) and not (last and last[0].startswith((b"error:", b"halfway:"))):
        yield "no error at the end"
    elif code == 3:
        yield from Outcome(2, b"", last[0]).complaints()
    if sent is None or code in codes:
        if code not in codes:
            yield f"exit code {code}"
    elif code != ENDED[sent.number]:
        yield f"exit code {code} after {sent.number.name}"
    if sent and found.seconds > LATER_S and code not in codes:
        yield "ends late"
    if sent and code in codes:
        return  # a daemon may outlive a diagnosis that is done
    if name not in ("leaves a daemon", "leaves an orphan") or sent:
        yield from (f"a process is left: {command}" for command in found.left)


def _of_others(folder: Path) -> Iterator[str]:
    """What torch and the script itself may leave among the temporary files."""
    for path in (folder / "tmp").iterdir():
        if path.name.startswith(("pymp-", "torch")):
            yield f"tmp/{path.name}"


SCRIPTS_RUN = Kind("scripts", attempt, limit_s=150.0, share=0.1)
