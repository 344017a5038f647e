"""Runs one script as `halfway diagnose` does, with its cause and without, and reads both again."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .pack_trace import pack
from .table import Planted, Steps

FIXED, TRACE, MOST_S = "--fixed", ".json.gz", 300


@dataclass(frozen=True)
class Cause:
    """A cause that was named, and the milliseconds a step that its fix saves at most."""

    title: str
    most_ms: float


@dataclass(frozen=True)
class Found:
    """The diagnosis of one run: `causes`, the first first, and whether its terms add up.

    `bare_s` is the step without the profiler, `recorded_s` the step that was recorded. `refused`:
    it says that nothing can be concluded.
    """

    bare_s: float
    recorded_s: float
    busy: float
    exact: bool
    causes: tuple[Cause, ...]
    refused: bool = False

    def place(self, words: str) -> int:
        """Where a cause with a title that matches comes; 0 for nowhere."""
        matches = (n for n, one in enumerate(self.causes, 1) if re.search(words, one.title))
        return next(matches, 0) if words else 0


@dataclass(frozen=True)
class Scenario:
    """What was found in a script with `planted` in the title of the cause that must come first.

    `live` and `alone` are diagnoses of the run and of its kept trace, `fixed` and `fixed_alone` of
    the same script without the cause. `problem` says why one is None that should not be.
    `trace_bytes` is the size of the kept trace.
    """

    name: str
    planted: str
    command: tuple[str, ...]
    fix_saves: bool
    wall_s: float
    live: Found | None = None
    alone: Found | None = None
    fixed: Found | None = None
    fixed_alone: Found | None = None
    trace_bytes: int | None = None
    problem: str = ""
    never: str = ""
    may_refuse: bool = False

    def is_right(self, found: Found) -> bool:
        """Whether the planted cause comes first; where none is planted, whether none is named."""
        if self.planted:
            return found.place(self.planted) == 1 or (self.may_refuse and found.refused)
        return not (found.place(self.never) if self.never else found.causes)

    @property
    def wrong(self) -> list[str]:
        """What is named that must not be: the planted cause where it was fixed, and `never`."""
        planted = [found for found in (self.live, self.alone) if found]
        controls = [found for found in (self.fixed, self.fixed_alone) if found]
        named = [(self.never, found) for found in (*planted, *controls)]
        named += [(self.planted, found) for found in controls]
        places = [(found, found.place(words)) for words, found in named]
        return list(dict.fromkeys(found.causes[n - 1].title for found, n in places if n))

    @property
    def most_pct(self) -> float | None:
        """What the live diagnosis says that the fix gains at most, in per cent of the step."""
        if not self.live or not (place := self.live.place(self.planted)):
            return None
        return 100 * self.live.causes[place - 1].most_ms / (1e3 * self.live.bare_s)

    @property
    def measured_pct(self) -> float | None:
        """What the fix gained, in per cent of the step with the cause, both without profiler."""
        if not (self.live and self.fixed and self.fix_saves):
            return None
        return 100 * (1 - self.fixed.bare_s / self.live.bare_s)


def run(planted: Planted, out: Path, gpus: SimpleQueue[str], steps: Steps | None) -> Scenario:
    """The script with its cause, and with --fixed, on one of the GPUs; "" stands for none.

    `out` gets NAME.json, the diagnosis, in diagnose/, and the packed traces in traces/.
    """
    name, steps = planted.name, steps or planted.steps
    words = ("halfway", "diagnose", planted.path.name, *planted.arguments)
    gpu, began_s = gpus.get(), time.monotonic()
    try:
        live, traces, problem = _live(planted, name, out, steps, (), gpu)
        fixed, fixed_traces, trouble = (
            _live(planted, f"{name}-fixed", out, steps, (FIXED,), gpu)
            if planted.cause else (None, [], "")
        )  # fmt: skip
    finally:
        gpus.put(gpu)
    return Scenario(
        name, planted.cause, words, planted.fix_saves, time.monotonic() - began_s, live,
        _again(traces, f"{name}-alone", out), fixed,
        _again(fixed_traces, f"{name}-fixed-alone", out),
        traces[-1].stat().st_size if traces else None, problem or trouble, planted.never,
        planted.may_refuse,
    )  # fmt: skip


def _live(
    planted: Planted, name: str, out: Path, steps: Steps, arguments: Sequence[str], gpu: str
) -> tuple[Found | None, list[Path], str]:
    """(what was found live, the packed traces, the base first, and what went wrong)."""
    full = out / "full" / name
    shutil.rmtree(full, ignore_errors=True)
    numbers = ("--after", steps.after, "--bare", steps.bare, "--traced", steps.traced)
    its = [*planted.arguments, *arguments]
    base = ["--base-args", shlex.join([*its, planted.other])] if planted.other else []
    options = [*numbers, *base, "--keep", full]
    found, problem = _diagnosed([*options, planted.path, "--", *its], name, out, gpu)
    kept: list[Path] = []
    written = sorted(full.glob(f"*{TRACE}"), key=lambda trace: trace.stat().st_mtime_ns)
    for number, trace in enumerate(written if found else []):  # the base is written first
        is_base = number < len(written) - 1
        kept.append(out / "traces" / f"{name}{'-base' if is_base else ''}{TRACE}")
        pack(trace, kept[-1])
    shutil.rmtree(full, ignore_errors=True)
    return found, kept, problem


def _again(traces: Sequence[Path], name: str, out: Path) -> Found | None:
    if not traces:
        return None
    base = ["--base", traces[0]] if len(traces) > 1 else []
    return _diagnosed([*base, traces[-1]], name, out, "")[0]


def _diagnosed(words: Sequence[Any], name: str, out: Path, gpu: str) -> tuple[Found | None, str]:
    """(what `halfway diagnose` found, what went wrong)."""
    document = out / "diagnose" / f"{name}.json"
    document.parent.mkdir(parents=True, exist_ok=True)
    document.unlink(missing_ok=True)
    command = [sys.executable, "-m", "e2e", "diagnose", "--quiet", "--json", document, *words]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    try:
        done = subprocess.run(
            [*map(str, command)], env=variables, capture_output=True, text=True, timeout=MOST_S
        )
    except subprocess.TimeoutExpired:
        return None, f"{name}: not done after {MOST_S} s"
    if done.returncode or not document.exists():
        said = (done.stderr.strip() or "nothing said").splitlines()[-1]
        return None, f"{name}: exit code {done.returncode}: {said}"
    return found_in(json.loads(document.read_text())), ""


def found_in(data: dict[str, Any]) -> Found:
    """What a document of `halfway diagnose` says of its last run."""
    last = data["runs"][-1]
    causes = [
        Cause(one["title"], one["ms"] if one.get("saves_ms") is None else one["saves_ms"])
        for one in last["findings"]
    ]
    step_s = last["window_ns"] / last["steps"] / 1e9
    recorded = (last.get("recorded_step_s") or {}).get("names") or step_s
    exact = all(sum(t["ns"] for t in one["terms"]) == one["window_ns"] for one in data["runs"])
    return Found(
        last["bare_step_s"] or step_s, recorded, last["busy"], exact, tuple(causes),
        bool(last.get("ruined")),
    )  # fmt: skip
