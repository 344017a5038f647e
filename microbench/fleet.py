"""`fleet`: the same cases on every GPU of a host at once.

A process measures each GPU. One that dies or hangs costs its own row alone.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

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


def check_fleet(request: Request, threshold: str = "5%", fail_on: str = ",".join(KINDS)) -> int:
    """Measure every GPU, print one table, write it; the exit code.

    What counts is as written on the command line: a slow-down, and the findings to fail on. 1 where
    there is one of these, else 0. UserError: a bad option, no GPU.
    """
    asked = request.conditions
    start = Fleet((), parse_threshold(threshold))
    fails = [] if fail_on == "none" else parse_names(fail_on, KINDS, "--fail-on")
    refused = {"--resume": asked.outputs.resume, "--chart": asked.outputs.chart,
               "--processes": asked.processes, "--autotune": asked.autotune}  # fmt: skip
    for option, given in refused.items():
        if given:
            raise UserError(f"--device all takes no {option}")
    request.plan("cuda")  # UserError before a device is touched
    check_outputs(asked.outputs)
    devices = devices_here()
    seed = secrets.randbelow(MAX_SEED) if asked.seed is None else asked.seed
    facts: Json = {"command": list(command_line("microbench")), "seed": seed}
    with run_file(asked.outputs, CHECK) as (path, _):
        session = _Session(request, asked.outputs, facts, path)
        fleet = session.measure(start, devices, seed)
        session.report(fleet)
    return 1 if any(one.kind in fails for one in findings(fleet)) else 0


def devices_here() -> list[str]:
    """The GPUs to measure: all. UserError where there is none."""
    import torch

    from microbench.device.device import why_no_cuda

    reason = why_no_cuda()
    if reason is not None:
        raise UserError(f"no CUDA device here: {reason}; --device all needs one")
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


@dataclass(frozen=True)
class _Session:
    """A check under way: what is asked, where it goes, and what its file says besides the rows."""

    request: Request
    outputs: Outputs
    facts: Json
    path: Path

    def measure(self, fleet: Fleet, devices: Sequence[str], seed: int) -> Fleet:
        """The check with the rows of these devices, each in the file as soon as it is there."""
        # The same configurations on every GPU: what differs is then the GPU.
        conditions = replace(self.request.conditions, seed=seed, no_tune=True)
        # In the main thread: a child ends with the thread that started it.
        workers = [Worker(replace(conditions, device=name), HANG_S) for name in devices]
        done: SimpleQueue[GpuRow] = SimpleQueue()
        try:
            for i, (name, worker) in enumerate(zip(devices, workers, strict=True)):
                row = GpuRow(int(name.partition(":")[2] or i))
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

    def save(self, fleet: Fleet) -> None:
        """Write the file. OSError where the disk refuses."""
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

        sheet, data = fleet_sheet(fleet), fleet_to_json(fleet, self.facts)
        print_document(data, sheet, run_console(self.outputs), details=self.outputs.verbose)
        self.say(f"Run file: {self.path}")
        if self.outputs.json == STDOUT:
            sys.stdout.write(self.path.read_text(encoding="utf-8"))
        if self.outputs.html:
            write_page(document_page(data, sheet, "Output of fleet"), self.outputs.html)


def _unseen(_key: str, _stage: str) -> None:
    """Stages are not shown: the GPUs are in several at once."""
