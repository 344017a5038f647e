"""Other packages with names of ours: Hugging Face has one named `kernels`, a user one named `e2e`.

Imports nothing of ours: it runs before anything that could be theirs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NAMES = ("kernels", "microbench", "e2e")
ROOT = Path(__file__).resolve().parents[1]  # the folder that ours are in


def check_packages() -> None:
    """End the command with one line and exit code 2 where another package has a name of ours."""
    for name in NAMES:
        spec = find_spec(name)
        places = [Path(path).resolve() for path in (spec and spec.submodule_search_locations) or ()]
        if ROOT / name not in places:
            where = str(places[0]) if places else "a module without a folder"
            print(
                f"error: the package {name} that Python finds is not halfway's ({where!r}); run "
                "from another folder, or install halfway in an environment of its own "
                "(python -m venv)",
                file=sys.stderr,
            )
            raise SystemExit(2)
