"""Traces with something wrong in them, read by `diagnose`, and what it wrote by `show`."""

from __future__ import annotations

import gzip
import json
import os
import random
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from .command_lines import ROOT, mains, prepare
from .forks import Attempt, Kind, here
from .hostile import MARKUP
from .judge import changed, files_in, in_csv, in_markdown, in_markup
from .run_files import VALUES, damage, with_wrong_bytes

SAMPLES = ROOT / "tests" / "samples" / "traces_h200"
EVENTS = "traceEvents"
DIAGNOSE_CODES = (0, 1, 2, 4)
PLANTED = (MARKUP, "\x1b]0;title\x07\x1b[2J", "=1+1", "a\nerror: b", "[bold]x[/]", "\ud800",
           "a\u202eb", "x" * 5000, "|", "[a](javascript:alert(1))", "")  # fmt: skip
NAMED = ("kernel", "cpu_op", "cuda_runtime", "user_annotation", "python_function", "gpu_memcpy")
FIELDS = ("ts", "dur", "cat", "ph", "name", "pid", "tid", "args")
NOTED = ("correlation", "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "device",
         "Sequence number", "stream", "Fwd thread id", "External id")  # fmt: skip
BOMB = 3 << 30  # bytes of text in a few of a file
BLOCK = 1 << 24


@cache
def sources() -> list[tuple[str, str]]:
    """Traces of one H200 as text: (name, JSON)."""
    return [(path.name, gzip.decompress(path.read_bytes()).decode())
            for path in sorted(SAMPLES.glob("*.json.gz"))]  # fmt: skip


def _prepare() -> None:
    from importlib import import_module

    prepare()
    import_module("e2e.commands.diagnose")
    sources()


# ---------------------------------------------------------------- damage


def damaged(rng: random.Random, text: str) -> bytes:
    """A trace, packed or not, with a few values wrong, one wrong in every event, or bytes."""
    deed = rng.random()
    if deed < 0.1:
        return with_wrong_bytes(rng, text.encode())
    if deed < 0.3:
        return with_wrong_bytes(rng, gzip.compress(text.encode(), 1))
    data: Any = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 5))):
        _one_deed(rng, data)
    content = json.dumps(data).encode()
    return gzip.compress(content, 1) if rng.random() < 0.5 else content


def _one_deed(rng: random.Random, data: Any) -> None:
    events = data.get(EVENTS)
    if not isinstance(events, list) or not events or rng.random() < 0.15:
        damage(rng, data)
    elif rng.random() < 0.5:
        damage(rng, rng.choice(events))
    else:
        rng.choice((_in_all, _in_names, _in_order, _in_halfways))(rng, data, events)


def _in_all(rng: random.Random, _data: Any, events: list[Any]) -> None:
    """One field, of events of one kind or of all, gets one value, or none."""
    kind = rng.choice((*NAMED, None))
    value: Any = rng.choice((*VALUES, *PLANTED))
    field, noted = rng.choice(FIELDS), rng.choice(NOTED)
    within = rng.random() < 0.5
    for event in events:
        if isinstance(event, dict) and kind in (None, event.get("cat")):
            place = event.get("args") if within else event
            if isinstance(place, dict):
                place[noted if within else field] = value


def _in_names(rng: random.Random, _data: Any, events: list[Any]) -> None:
    """Text is planted in names of operators, kernels, modules or steps."""
    kind, text = rng.choice(NAMED), rng.choice(PLANTED)
    share = rng.choice((0.02, 0.5, 1.0))
    for event in events:
        if isinstance(event, dict) and event.get("cat") == kind and rng.random() < share:
            name = str(event.get("name"))
            event["name"] = rng.choice((name + text, text + name, text, f"halfway::{text}"))


def _in_order(rng: random.Random, data: Any, events: list[Any]) -> None:
    """Events are lost, doubled, put in another order or another time."""
    deed = rng.randrange(4)
    if deed == 0:
        rng.shuffle(events)
    elif deed == 1:
        del events[:: rng.choice((2, 3, 10))]
    elif deed == 2:
        data[EVENTS] = events[: rng.randrange(len(events))] * rng.choice((1, 2))
    else:
        for event in events:
            if isinstance(event, dict) and isinstance(event.get("ts"), (int, float)):
                event["ts"] += rng.choice((0, 0, 1e3, -1e6))


def _in_halfways(rng: random.Random, data: Any, _events: list[Any]) -> None:
    """What the recorder noted."""
    facts = data.get("halfway")
    if isinstance(facts, dict):
        facts[rng.choice(list(facts))] = rng.choice(
            (*VALUES, *PLANTED, [10**400], [1e308] * 3, [float("nan")])
        )


# ---------------------------------------------------------------- files that are none


def _packed(start: bytes, block: bytes) -> Callable[[Path], None]:
    """Writes a small file that unpacks to BOMB bytes."""

    def write(path: Path) -> None:
        member = gzip.compress(block * (BLOCK // len(block)), 1)
        path.write_bytes(gzip.compress(start) + member * (BOMB // BLOCK))

    return write


def _text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf-8")


HEAD = '{"traceEvents": ['
ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a sparse file": lambda path: path.touch() or os.truncate(path, 1 << 34),
    "no file": lambda path: None,
    "packed spaces": _packed(b"{", b" "),
    "packed events": _packed(HEAD.encode(), b"{},"),
    "packed spans": _packed(
        HEAD.encode(), b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1},'
    ),
    "packed text": _packed(b'{"traceEvents": [{"name": "', b"x"),
    "packed digits": _packed(b'{"traceEvents": [{"ts": 1', b"0"),
    "depth": _text('{"a":' + "[" * 500_000),
    "some depth": _text('{"a":' + "[" * 900 + "]" * 900 + ', "traceEvents": []}'),
    "depth in an event": _text(HEAD + '{"args":' + '{"a":' * 50_000),
    "many digits": _text(HEAD + '{"ph":"X","cat":"kernel","ts":1' + "0" * 400 + ',"dur":1}]}'),
    "a large power": _text(HEAD + '{"ph":"X","cat":"kernel","ts":1e999999,"dur":1}]}'),
    "a power beyond": _text(HEAD + '{"ph":"X","cat":"kernel","ts":1e99999999999,"dur":1}]}'),
    "a small power": _text(HEAD + '{"ph":"X","cat":"kernel","ts":1e-999999999,"dur":1}]}'),
}


# ---------------------------------------------------------------- commands


def attempt(rng: random.Random, folder: Path) -> Attempt:
    """One damaged trace, diagnosed alone or beside a whole one; then its diagnosis is shown."""
    name, text = rng.choice(sources())
    trace = folder / rng.choice(("t.json", "t.json.gz"))
    if rng.random() < 0.05:
        what = rng.choice(list(ODD))
        ODD[what](trace)
        name = what
    else:
        trace.write_bytes(damaged(rng, text))
    words = ["diagnose", trace.name]
    if rng.random() < 0.25:
        (folder / "base.json").write_text(text, encoding="utf-8")
        words = rng.choice((["diagnose", "base.json", "--base", trace.name],
                            ["diagnose", trace.name, "--base", "base.json"],
                            ["diagnose", trace.name, "--base", trace.name]))  # fmt: skip
    words += rng.choice(([], ["--verbose"], ["--fail-on", "busy<101"], ["--quiet"]))
    wanted = rng.choice(([], ["--json", "new.json"], ["--html", "new.html"],
                         ["--json", "new.json", "--html", "new.html"]))  # fmt: skip
    before = files_in(folder.parent) if trace.is_file() and name not in ODD else None
    main = mains()["halfway"][0]
    outcome = here(main, "halfway", [*words, *wanted])
    complaints = list(outcome.complaints(DIAGNOSE_CODES))
    if before is not None:
        may = {"work/new.json", "work/new.html", "home/.cache", "home/.local"}
        complaints += changed(before, files_in(folder.parent), may)
    if not complaints and outcome.code in (0, 4):
        complaints += _written(rng, folder, wanted)
    return Attempt(f"{name}: {shlex.join(['halfway', *words, *wanted])}", complaints)


def _written(rng: random.Random, folder: Path, wanted: list[str]) -> Iterator[str]:
    """What is wrong with the page and the file, and with what `show` makes of the file."""
    if "--html" in wanted:
        yield from in_markup((folder / "new.html").read_text("utf-8"))
    if "--json" not in wanted:
        return
    json.loads((folder / "new.json").read_text("utf-8"))
    form = rng.choice(([], ["--verbose"], ["--csv"], ["--markdown"], ["--html", "shown.html"]))
    outcome = here(mains()["halfway"][0], "halfway", ["show", "new.json", *form])
    yield from (f"show: {one}" for one in outcome.complaints())
    if outcome.code and not ("--csv" in form or "--markdown" in form):
        yield f"show: exit code {outcome.code} for what diagnose wrote"
    out = outcome.out.decode(errors="replace")
    if "--csv" in form:
        yield from in_csv(out)
    if "--markdown" in form:
        yield from in_markdown(out)
    if "--html" in form and not outcome.code:
        yield from in_markup((folder / "shown.html").read_text("utf-8"))


TRACES = Kind("traces", attempt, limit_s=120.0, share=0.1, a_fork=20, prepare=_prepare)
