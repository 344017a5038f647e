"""How tests run side by side."""

from __future__ import annotations

import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many processes as cores: threads of each beside them would only wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background by a shell, it would pass on that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
