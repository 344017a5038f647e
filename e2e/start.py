"""Where the console command `halfway` starts: it can be stopped before anything heavy loads."""

from __future__ import annotations

from e2e.prepare import prepare


def main() -> int:
    """Run the command line of `e2e.halfway`; returns the exit code."""
    prepare()
    from e2e.halfway import main as run

    return run()
