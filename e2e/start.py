"""How every command of ours starts: nothing heavy is loaded, and it can be stopped at once."""

from __future__ import annotations

import sys


def main() -> int:
    """The console command `halfway`: run it, and return the exit code."""
    prepare()
    from e2e.halfway import main as run

    return run()


def prepare() -> None:
    """Check that our packages are the ones that are found, and listen to signals from now on."""
    try:
        from microbench.own_packages import check_packages
        from microbench.stopping import listen
    except ImportError:
        print(
            "error: the package microbench that Python finds is not halfway's; run from another "
            "folder, or install halfway in an environment of its own (python -m venv)",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    check_packages()
    listen()
