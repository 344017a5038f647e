"""`fleet`: the same cases on every GPU of a host at once; under torchrun, of all hosts.

A process measures each GPU. One that dies or hangs costs its own row alone. Under torchrun each
rank leaves its rows for rank 0 in a key-value store, so no rank can block another.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from kernels.error_words import first_line
from microbench.command_line import MAX_SEED, Outputs
from microbench.errors import UserError
from microbench.fleet_verdict import (
    CHECK,
    KINDS,
    Fleet,
    GpuRow,
    copy_reading,
    findings,
    fleet_to_json,
    reading_of,
    row_from_json,
    row_to_json,
)
from microbench.results.comparison import parse_threshold
from microbench.results.runfile import write_text
from microbench.results.values import Json
from microbench.run_output import STDOUT, check_outputs, command_line, now, run_console, run_file
from microbench.runner import default_budget_s, group_weight
from microbench.sweep import parse_names
from microbench.worker import Worker

if TYPE_CHECKING:
    from microbench.requests import Request

HANG_S = 60.0  # without news, beyond what sampling takes: the GPU hangs
RANKS_S = 120.0  # that rank 0 waits for the others after its own rows are there
STORE_ERRORS = (RuntimeError, ValueError, KeyError)  # of torch's store, and what is sent through it


@dataclass(frozen=True)
class Place:
    """A process of torchrun: its rank, how many ranks there are, and the GPU that is its own."""

    rank: int
    world: int
    local_rank: int | None  # None: one process a host, which has all of its GPUs


def check_fleet(
    request: Request,
    threshold: str = "5%",
    expect: int | None = None,
    fail_on: str = ",".join(KINDS),
) -> int:
    """Measure every GPU, print one table, write it; the exit code.

    What counts is as written on the command line: a slow-down, how many GPUs there must be, the
    findings to fail on. 1 where there is one of these, else 0. UserError: a bad option, no GPU.
    """
    asked = request.conditions
    start = Fleet((), parse_threshold(threshold), expect)
    fails = [] if fail_on == "none" else parse_names(fail_on, KINDS, "--fail-on")
    refused = {"--resume": asked.outputs.resume, "--chart": asked.outputs.chart,
               "--processes": asked.processes, "--autotune": asked.autotune}  # fmt: skip
    for option, given in refused.items():
        if given:
            raise UserError(f"--device all takes no {option}")
    request.plan("cuda")  # UserError before a device is touched
    check_outputs(asked.outputs)
    place = place_of(os.environ)
    try:
        devices = devices_of(place)
    except UserError as error:
        if place is None:
            raise
        devices = []  # the other ranks are not to be ended by torchrun for that
        lost = GpuRow(place.local_rank or 0, rank=place.rank, reason=str(error))
        start = replace(start, rows=(lost,))
    seed = secrets.randbelow(MAX_SEED) if asked.seed is None else asked.seed
    facts: Json = {"command": list(command_line("microbench")), "seed": seed}
    session = _Session(request, replace(asked.outputs, quiet=True), place, facts, None)
    if place and place.rank:
        _send(place, session.measure(start, devices, seed).rows)
        return 0
    with run_file(asked.outputs, CHECK) as (path, _):
        session = replace(session, outputs=asked.outputs, path=path)
        fleet, hosts = session.measure(start, devices, seed), dict[int, str]()
        if place:
            fleet, hosts = _collect(place, fleet)
        session.save(fleet)
        session.report(fleet)
    found = findings(fleet)
    for rank, host in hosts.items():
        if any(one.where.startswith(f"rank {rank} ") for one in found):
            session.say(f"rank {rank} runs on {host}")  # not in the file, which names no host
    return 1 if any(one.kind in fails for one in found) else 0


def place_of(environment: Mapping[str, str]) -> Place | None:
    """This process as torchrun placed it; None without torchrun. UserError for half a place."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    try:
        alone = int(environment.get("LOCAL_WORLD_SIZE", "1")) == 1
        local = None if alone else int(environment["LOCAL_RANK"])
        return Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]), local)
    except (ValueError, KeyError) as error:
        raise UserError(f"RANK, WORLD_SIZE and LOCAL_RANK do not fit together: {error}") from None


def devices_of(place: Place | None) -> list[str]:
    """The GPUs to measure here: all, or under torchrun the one of this rank. UserError: none."""
    import torch

    from microbench.device.device import why_no_cuda

    reason = why_no_cuda()
    if reason is not None:
        raise UserError(f"no CUDA device here: {reason}; --device all needs one")
    count = torch.cuda.device_count()
    if place and place.local_rank is not None:
        return [f"cuda:{place.local_rank % count}"]
    return [f"cuda:{index}" for index in range(count)]


@dataclass(frozen=True)
class _Session:
    """A check under way: what is asked, where it goes, and what its file says besides the rows."""

    request: Request
    outputs: Outputs
    place: Place | None
    facts: Json
    path: Path | None

    def measure(self, fleet: Fleet, devices: Sequence[str], seed: int) -> Fleet:
        """The check with the rows of these devices, each in the file as soon as it is there."""
        # The same configurations on every GPU: what differs is then the GPU.
        conditions = replace(self.request.conditions, seed=seed, no_tune=True)
        rank = self.place.rank if self.place else None
        # In the main thread: a child ends with the thread that started it.
        workers = [Worker(replace(conditions, device=name), HANG_S) for name in devices]
        done: SimpleQueue[GpuRow] = SimpleQueue()
        try:
            for i, (name, worker) in enumerate(zip(devices, workers, strict=True)):
                row = GpuRow(int(name.partition(":")[2] or i), rank=rank)
                threading.Thread(
                    target=self._measure, args=(worker, row, done), daemon=True
                ).start()
            for number in range(1, len(devices) + 1):
                row = done.get()
                rows = sorted((*fleet.rows, row), key=lambda one: one.gpu)
                fleet = replace(fleet, rows=tuple(rows))
                self.save(fleet)
                self.say(f"[{number}/{len(devices)}] {row.where}: {row.reason or 'measured'}")
        finally:
            for worker in workers:
                worker.close()
        return fleet

    def _measure(self, worker: Worker, row: GpuRow, done: SimpleQueue[GpuRow]) -> None:
        """Put the row, filled in as far as the GPU gets. Nothing is raised."""
        try:
            for found in self._steps(worker, row):
                row = found
        except Exception as error:  # whatever it is, the other GPUs have their rows
            row = replace(row, reason=str(error) or type(error).__name__)
        done.put(row)

    def _steps(self, worker: Worker, row: GpuRow) -> Iterator[GpuRow]:
        """The row as it fills. WorkerDied where the GPU gets no further."""
        greeting = worker.greet()
        kind, others = greeting.target.kind, int(greeting.load.get("gpu_processes") or 0)
        known = {"device": greeting.device | {"card": None}, "software": greeting.software}
        self.facts.update(known)  # without the hash that tells cards apart
        yield (row := replace(row, name=greeting.target.name, others=others))
        groups = self.request.plan(kind)
        names = {case.precision_name: None for group in groups for case in group.cases}
        for one in worker.ask(("calibrate", tuple(names), (), ()), _unseen, HANG_S):
            if one.name == "memory" and one.byte_per_s:
                yield (row := replace(row, readings=(copy_reading(one.byte_per_s),)))
        budget_s = self.request.conditions.budget or default_budget_s(groups, kind)
        whole = sum(map(group_weight, groups))
        for group in groups:
            results = worker.measure(group, budget_s * group_weight(group) / whole, _unseen)
            yield (row := replace(row, readings=(*row.readings, *map(reading_of, results))))
        yield replace(row, state=worker.ask(("state",), _unseen, HANG_S))

    def save(self, fleet: Fleet) -> None:
        """Write the file, where this process has one. OSError where the disk refuses."""
        if self.path:
            self.facts["finished_at"] = now()
            write_text(json.dumps(fleet_to_json(fleet, self.facts), allow_nan=False), self.path)

    def say(self, line: str) -> None:
        """Print a line, unless it is to be quiet."""
        run_console(self.outputs).print(line, markup=False, highlight=False)

    def report(self, fleet: Fleet) -> None:
        """Print the table, and write the other outputs."""
        from microbench.report.documents import print_document
        from microbench.report.fleet import fleet_sheet
        from microbench.report.page import document_page, write_page
        from microbench.report.table import records, write_csv

        assert self.path
        sheet, data = fleet_sheet(fleet), fleet_to_json(fleet, self.facts)
        print_document(data, sheet, run_console(self.outputs), details=self.outputs.verbose)
        self.say(f"Run file: {self.path}")
        if self.outputs.json == STDOUT:
            sys.stdout.write(self.path.read_text(encoding="utf-8"))
        if self.outputs.html:
            write_page(document_page(data, sheet, "Output of fleet"), self.outputs.html)
        if self.outputs.csv:
            write_text(write_csv([records(sheet.table)]).rstrip("\n"), self.outputs.csv)


def _unseen(_key: str, _stage: str) -> None:
    """Stages are not shown: the GPUs are in several at once."""


# ---------------------------------------------------------------- several hosts


def _store(place: Place) -> Any:
    """The key-value store of torchrun's agent; without one, rank 0 opens it. STORE_ERRORS."""
    import torch.distributed as ranks

    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return cast(Any, ranks).TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
        is_master=place.rank == 0 and not agents, wait_for_workers=False,
        timeout=timedelta(seconds=RANKS_S),
    )  # fmt: skip


def _send(place: Place, rows: Sequence[GpuRow]) -> None:
    """Leave this rank's rows, and its host's name, for rank 0. UserError: it cannot be reached."""
    sent = {"rows": list(map(row_to_json, rows)), "host": socket.gethostname()}
    try:
        _store(place).set(_key(place.rank), json.dumps(sent, allow_nan=False))
    except STORE_ERRORS as error:
        reason = first_line(error)
        raise UserError(f"rank {place.rank} cannot send its rows to rank 0: {reason}") from None


def _collect(place: Place, fleet: Fleet) -> tuple[Fleet, dict[int, str]]:
    """The check with the rows of all ranks, and their hosts' names. A rank may send nothing."""
    rows, hosts, missing = list(fleet.rows), {place.rank: socket.gethostname()}, list[int]()
    store: Any = None
    until_s = time.monotonic() + RANKS_S
    for rank in range(1, place.world):
        try:
            store = store or _store(place)
            store.wait([_key(rank)], timedelta(seconds=max(0.1, until_s - time.monotonic())))
            sent = json.loads(store.get(_key(rank)))
            rows += [row_from_json(one, f"rank {rank}") for one in sent["rows"]]
            hosts[rank] = str(sent["host"])
        except STORE_ERRORS:
            missing.append(rank)
    return replace(fleet, rows=tuple(rows), missing=tuple(missing)), hosts


def _key(rank: int) -> str:
    return f"halfway/fleet/{rank}"
