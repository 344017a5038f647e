"""A `python` that starts with torch loaded, for tests that run scripts as processes of their own.

`with server(sys.executable) as python:` gives the path of a program to run in place of
`sys.executable`. It asks a server, which has imported torch once, for a fork with the caller's
arguments, working directory, variables and open files. Signals go to the fork, its exit code
comes back, and it is killed when the program is. The server ends with the process that started it.

Tests of process groups, of parents, of resource limits or of /proc need a real Python. As a fork
ends, its modules stay: a file that the script did not close is not flushed.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# What scripts and commands import beside torch, where it is installed.
ALSO = ("torch.profiler", "torch.utils.checkpoint", "torch.distributed.run", "torchvision.models",
        "click", "jinja2", "rich.console", "rich.table")  # fmt: skip
MOST_FDS = 64  # that a program may be given
PROGRAM = """#!{python} -SE
import json, os, signal, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({address!r})
passed = []
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        passed += [fd] if os.get_inheritable(fd) else []
    except OSError:  # that of the list itself
        pass
request = [passed, os.getppid(), sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(link, [json.dumps(request).encode()], passed)
for fd in passed:
    os.close(fd)
def pass_on(number, frame):
    try:
        link.send(b"%d" % number)
    except OSError:  # the fork has ended
        pass
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, pass_on)
code = int(link.recv(16) or 255)
if code < 0:  # a signal ended the fork: end in the same way
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def server(python: str) -> Iterator[str]:
    """The path of the program, which stands for that interpreter: Python 3.9 or later."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    # Only a process with one thread, which has not asked CUDA for a GPU, can be forked.
    variables |= {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    # In /tmp: the address of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="quick-", dir="/tmp") as folder:
        program, address = f"{folder}/python", f"{folder}/socket"
        Path(program).write_text(PROGRAM.format(python=python, address=address))
        os.chmod(program, 0o755)
        with subprocess.Popen(
            [python, __file__, program, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=variables, start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout.readline() == b"ready\n"
            yield program


def serve(program: str, address: str) -> None:
    """Fork for every program that connects, until standard input ends."""
    # torch reads it once: what ranks get, whose launcher says in a line that one was lost
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    import torch

    for name in ALSO:
        with contextlib.suppress(ImportError):
            import_module(name)
    torch.optim.SGD([torch.zeros(1)], lr=0.1).step()  # the first step imports as much again
    gc.collect()
    gc.freeze()
    sys.executable = program
    multiprocessing.set_executable(program)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    while 0 not in select.select([0, listener], [], [])[0]:
        link, _ = listener.accept()
        if not os.fork():
            try:
                listener.close()
                look_after(link)
            finally:
                os._exit(1)
        link.close()
        reap(os.WNOHANG)
    reap(0)


def reap(options: int) -> None:
    """Wait for forks, so that their time counts as the server's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def look_after(link: socket.socket) -> None:
    """Fork again for the script, pass signals on to it, and send back how it ended."""
    request, fds, *_ = socket.recv_fds(link, 1 << 20, MOST_FDS)
    script = os.fork()
    if not script:
        link.close()
        end(become(fds, *json.loads(request)))
    for fd in fds:
        os.close(fd)
    ended = os.pidfd_open(script)
    while ended not in (ready := select.select([0, link, ended], [], [])[0]):
        number = link.recv(16) if link in ready else b""
        os.kill(script, int(number or signal.SIGKILL))
    link.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(script, 0)[1]))


def become(
    fds: list[int], numbers: list[int], parent: int, words: list[str], folder: str,
    variables: dict[str, str],
) -> int:  # fmt: skip
    """Run the words as an interpreter would; return the exit code, or minus a signal's number."""
    os.setsid()
    me, parent_of = os.getpid(), os.getppid
    os.getppid = lambda: parent if os.getpid() == me else parent_of()
    apart = [fcntl.fcntl(fd, fcntl.F_DUPFD, max(numbers) + 1) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(apart, numbers):  # noqa: B905 (Python 3.9)
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    by_line = words[0] == "-u" or "PYTHONUNBUFFERED" in variables or os.isatty(1)
    sys.stdout.reconfigure(line_buffering=by_line)  # type: ignore[union-attr]
    try:
        run(*words[words[0] == "-u" :])
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 255
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        ours: Any = error.__traceback__
        theirs = ours.tb_next.tb_next  # without this function and run()
        sys.excepthook(type(error), error.with_traceback(theirs), theirs)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def run(first: str, *rest: str) -> None:
    """Run `-c TEXT`, `-m MODULE` or a file, with arguments."""
    if first == "-m":
        sys.argv[:] = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = [first, *rest]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-c":
        place, text, name = "", sys.argv.pop(1), "<string>"
    else:
        name = main.__file__ = os.path.abspath(first)
        place, text = os.path.dirname(name), Path(name).read_text(encoding="utf-8")
    sys.path.insert(0, place)
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def end(code: int) -> None:
    """End as an interpreter does, except that it takes a second to take 2,000 modules apart."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    serve(*sys.argv[1:])
