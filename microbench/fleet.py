"""`fleet`: the same cases on every GPU of a host at once.

A process measures each GPU. One that dies or hangs costs its own rows alone.
"""

from __future__ import annotations

import json
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from microbench.command_line import MAX_SEED
from microbench.device.device import why_no_cuda
from microbench.device.host import software
from microbench.errors import UserError
from microbench.report.fleet import CHECK, COPY, FAULTS, GpuResult, judged, to_json
from microbench.report.report import report_of_file
from microbench.report.screen import print_report
from microbench.requests import Request
from microbench.results.comparison import parse_threshold
from microbench.results.kinds import DOCUMENT_VERSION
from microbench.results.runfile import write_text
from microbench.results.types import Json
from microbench.run import InOrder, default_budget_s
from microbench.run_output import STDOUT, command_line, now, run_console, run_file
from microbench.worker import Worker, unseen

HANG_S = 60.0  # without news, beyond what sampling takes: the GPU hangs


def check_fleet(request: Request, threshold: str) -> int:
    """Measure every GPU, print one table, write it; 1 where one failed or is slow, else 0.

    `threshold` is the slow-down that counts. UserError: a bad option, no GPU.
    """
    asked, outputs = request.conditions, request.conditions.outputs
    threshold_pct = parse_threshold(threshold)
    request.plan("cuda")  # UserError before a device is touched
    seed = secrets.randbelow(MAX_SEED)
    facts: Json = {"kind": CHECK, "schema_version": DOCUMENT_VERSION, "check": CHECK,
                   "command": list(command_line("microbench")), "seed": seed,
                   "software": software(), "threshold_pct": threshold_pct}  # fmt: skip
    # The same configurations on every GPU: what differs is then the GPU.
    conditions = replace(asked, seed=seed, tune=0)
    devices, console = devices_here(), run_console(outputs)
    with run_file(outputs, CHECK) as (path, _):
        # In the main thread: a child ends with the thread that started it.
        workers = [Worker(replace(conditions, device=name), HANG_S) for name in devices]
        with ThreadPoolExecutor(len(workers)) as threads:
            try:
                gpus = list(threads.map(partial(_measure, request), workers, range(len(workers))))
            finally:
                for worker in workers:
                    worker.close()
        rows = judged([row for _, measured in gpus for row in measured], threshold_pct)
        # The facts of one GPU and not of several: the first one's.
        facts["device"] = next((device for device, _ in gpus if device), Json())
        facts["finished_at"] = now()
        write_text(json.dumps(to_json(facts, rows), allow_nan=False), path)
        print_report(report_of_file(path), console, verbose=outputs.verbose)
        console.print(f"Run file: {path}")
        if outputs.json == STDOUT:
            sys.stdout.write(path.read_text(encoding="utf-8"))
    return 1 if any(row.finding in FAULTS for row in rows) else 0


def devices_here() -> list[str]:
    """The GPUs to measure: all. UserError where there is none."""
    import torch

    if reason := why_no_cuda():
        raise UserError(f"no CUDA device here: {reason}; fleet needs one")
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def _measure(request: Request, worker: Worker, gpu: int) -> tuple[Json, list[GpuResult]]:
    """The facts of a GPU and what it measures, as far as it gets. Nothing is raised."""
    rows: list[GpuResult] = []
    row, device = GpuResult(gpu), Json()
    try:
        greeting = worker.greet()
        device = greeting.device | {"card": None}  # without the hash that tells cards apart
        row = GpuResult(gpu, greeting.target.name)
        groups = request.plan(greeting.target.kind)
        names = {case.precision_name: None for group in groups for case in group.cases}
        for ceiling in worker.calibrate([*names], (), unseen):
            if ceiling.name == "memory" and ceiling.byte_per_s:
                rows.append(replace(row, case=COPY, work=1e9, median_s=1e9 / ceiling.byte_per_s))
        budget_s = request.conditions.budget or default_budget_s(groups, greeting.target.kind)
        schedule = InOrder(groups, budget_s)
        for group in groups:
            rows += map(row.of, worker.measure(group, schedule.share_s(group), unseen))
    except Exception as error:  # whatever it is, the other GPUs have their rows
        reason = str(error) or type(error).__name__
        rows.append(replace(row, status="failed", reason=reason))
    return device, rows
