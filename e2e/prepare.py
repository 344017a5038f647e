"""What every command of ours does first: it loads nothing heavy, and may find other packages."""

from __future__ import annotations

import sys


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
