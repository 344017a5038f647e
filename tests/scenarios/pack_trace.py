"""Makes a trace small enough to keep: one to three steps, and of them what a diagnosis reads.

Times, names, shapes and what launched what stay as they were recorded.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from e2e.profile.trace import FACTS, KEPT, KIND_OF_CATEGORY, STEP

MOST_BYTES, MOST_STEPS = 250_000, 3
_ARGS = {*KEPT, "correlation", "device", "stream"}


def pack(source: Path, target: Path, most_bytes: int = MOST_BYTES) -> int:
    """Write as many steps of a trace as fit in `most_bytes`, at least one; return the size."""
    data = source.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = json.loads(text, parse_float=Decimal)
    facts = trace.get(FACTS, {})
    for steps in range(min(MOST_STEPS, facts.get("traced", MOST_STEPS)), 0, -1):
        data = gzip.compress(_text(trace, facts, steps).encode(), 9, mtime=0)
        if len(data) <= most_bytes:
            break
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return len(data)


def _text(trace: dict[str, Any], facts: dict[str, Any], steps: int) -> str:
    first = facts.get("lead_in", 0) + steps
    kept = {**facts, "traced": steps} if facts else {}
    if times := facts.get("times"):
        kept["times"] = _first(times, first)
    head = {name: trace[name] for name in trace if name != "traceEvents"} | {FACTS: kept}
    events = _events(trace["traceEvents"], first)
    return f'{_json(head)[:-1]},"traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def _first(times: dict[str, Any], steps: int) -> dict[str, Any]:
    """The first steps of the recording without names, and all that they launched."""
    end = times["ends"][steps - 1]
    calls = [call for call in times["calls"] if call[1] < end]
    launched = {call[4] for call in calls}
    work = [one for one in times["work"] if one[5] in launched or one[2] < end]
    return {**times, "ends": times["ends"][:steps], "calls": calls, "work": work}


def _events(events: list[dict[str, Any]], steps: int) -> Iterator[str]:
    """Of the first steps, and of what they launched, only what is read."""
    kinds = {id(event): KIND_OF_CATEGORY.get(event.get("cat")) for event in events}
    known = [event for event in events if event["ph"] == "X" and kinds[id(event)]]
    ends = sorted(e["ts"] + e["dur"] for e in known if e["name"].startswith(STEP))
    end = ends[min(steps, len(ends)) - 1]
    launched = {
        event["args"].get("correlation")
        for event in known if kinds[id(event)] == "launch" and event["ts"] < end
    }  # fmt: skip
    for event in known:
        args = event.get("args", {})
        of_launch = kinds[id(event)] == "work" and args.get("correlation") in launched
        if event["ts"] < end or of_launch:
            plain = {name: event[name] for name in ("ph", "cat", "name", "pid", "tid")}
            plain["args"] = {name: args[name] for name in args if name in _ARGS}
            yield f'{_json(plain)[:-1]},"ts":{event["ts"]},"dur":{event.get("dur", 0)}}}'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=float)
