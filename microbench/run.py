"""A measuring command from start to end: plan, measure group by group, save.

A child process measures (see `microbench.worker`), so a kernel that faults or hangs loses only its
own case.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import OPS
from kernels.case import Case
from kernels.op import TUNED
from microbench import run_output, timing
from microbench.command_line import MAX_SEED, kept
from microbench.device.host import LoadMeter, has_driver
from microbench.errors import NothingMeasured, UserError
from microbench.measure import MORE
from microbench.requests import Conditions, check_without
from microbench.results.merging import merged, newest
from microbench.results.types import NetworkUse, Result, Run
from microbench.roofline.ceilings import datasheet_ceilings, is_reference, large_ceilings
from microbench.roofline.explain import annotate
from microbench.stopping import on_interrupt
from microbench.sweep import Group
from microbench.timing.interleave import HEAVY
from microbench.worker import Greeting, Worker, WorkerDied, Workers

if TYPE_CHECKING:
    from microbench.report.live import LiveProgress
    from microbench.requests import Request

# Seconds of sampling per variant without --budget: a case that can drive a GPU to its power limit
# needs many cycles of the power controller (about 0.1 s each) for an interval of 0.5 %.
VARIANT_BUDGET_S = {"large": 0.7, "small": 0.25}
CPU_BUDGET_S = 25.0
# A problem with less than this share of a network's step needs fewer rounds: where its interval is
# ±10 %, that of the step gets a thousandth of it.
MINOR_SHARE = 0.01
FLOP_PER_BYTE = 200.0  # that cards have, about, in half precision
SAVING = 0.05  # the share of the time, at most, that writing the growing run file takes
MEMORY_SHARE = 0.9  # of the free memory that the tensors of one comparison may take
CHECK_FACTOR = 16  # times the tensors' bytes: the most that a small problem's check takes


def run_request(request: Request) -> run_output.Done:
    """Measure what is asked.

    UserError for a bad option, a device that is missing or fails, too little memory, or a run file
    that cannot be written or resumed; NothingMeasured, with the reasons, for an empty plan.
    """
    if not request.traces:
        _check_plan(request)  # UserError before a process starts
    with run_output.run_file(request.conditions.outputs, request.name) as (path, before):
        return _carried_out(request, path, before)


def _check_plan(request: Request) -> None:
    """UserError for an option of the plan, NothingMeasured for an empty one."""
    if not request.plan("cuda"):
        network = request.network("cuda")
        reasons = dict.fromkeys(layer.reason for layer in network.not_measured) if network else ()
        why = "; ".join(reasons) or "there is no convolution and no matrix multiplication"
        raise NothingMeasured(f"nothing can be measured: {why}")


def _carried_out(request: Request, path: Path, before: Run | None) -> run_output.Done:
    """What is asked, measured into the file at `path`, `before` continued."""
    asked = request.conditions
    usual = before.settings.get("seed") if before else None
    seed = secrets.randbelow(MAX_SEED) if usual is None else int(usual)
    seed = seed if asked.seed is None else asked.seed
    settings = replace(asked, seed=seed)
    workers = Workers(settings, compiles=_compiles(request))
    try:
        if request.traces:
            workers.load_ahead()
            _check_plan(request)
        workers.start()
        from microbench.report.live import LiveProgress  # while the process loads

        console = run_output.run_console(asked.outputs)
        greeting = workers.greet()
        groups = request.plan(greeting.target.kind)
        _check_memory(groups, greeting)
        check_without(asked.without, [c for g in groups for c in g.cases], greeting.target)
        network = request.network(greeting.target.kind)
        run = _begin(request.name, settings, greeting, network, before)
        todo = missing(groups, run, retry_skipped=asked.budget is not None)
        kind = greeting.target.kind
        processes = asked.processes or 1
        if todo or few_processes(groups, run, processes - 1):
            budget_s = asked.budget or default_budget_s(todo, kind, request.most_s)
            minor = minor_groups(groups, network) if kind == "cuda" and not asked.budget else ()
            schedule = InOrder(todo, budget_s, kind, processes, minor)
            quiet = asked.outputs.quiet
            with LiveProgress(console, todo, processes, quiet=quiet) as progress:
                # A CPU that measures is left alone.
                ahead = workers.load_ahead if kind == "cuda" else lambda: None
                runner = Runner(run, kind, path, workers.next, progress, processes, ahead)
                try:
                    with on_interrupt(lambda: run_output.say_stopped("microbench", path)):
                        run = runner.measure(schedule, groups)
                except WorkerDied as death:
                    raise UserError(f"{death.reason}; results so far: {path}") from None
        else:
            console.print(f"{path} is complete: nothing to measure.")
            assert before  # a new run lacks all
            run = replace(run, finished_at=before.finished_at)
            if run.finished_at is None:  # stopped after its last case
                run = annotate(replace(run, finished_at=run_output.now()))
                run_output.save(run, path)
    finally:
        workers.close()
    return run_output.Done(run, path, asked.outputs)


def _compiles(request: Request) -> bool:
    """Whether our Triton kernels are to be timed on a GPU, as far as is known without touching it.

    A network is not traced for it: there they are asked for by name.
    """
    asked = request.conditions
    if not asked.tune or asked.device == "cpu" or not has_driver():
        return False
    if request.traces:
        return TUNED in (asked.backend or "")
    return any(case.backend == TUNED for group in request.plan("cuda") for case in group.cases)


def _check_memory(groups: Sequence[Group], greeting: Greeting) -> None:
    """UserError when a comparison's matrices, held at once, do not fit the free memory."""
    from microbench.fmt import problem

    if greeting.free_bytes is None:
        return
    for group in groups:
        op = OPS[group.cases[0].op]
        # Variants with the same storage share matrices, so one case of each storage counts.
        stored = {case.precision.storage: case.min_bytes for case in group.cases}
        tensors = sum(stored.values())
        needed = tensors + min(op.check_bytes, (1 << 29) + CHECK_FACTOR * tensors)
        if needed > MEMORY_SHARE * greeting.free_bytes:
            raise UserError(
                f"{problem(group.cases[0])} in {', '.join(stored)} needs {needed / 1e9:.1f} GB, "
                f"but {greeting.free_bytes / 1e9:.1f} GB are free; "
                f"try smaller {op.knobs}"
            )


def _begin(
    name: str, asked: Conditions, greeting: Greeting, network: NetworkUse | None, before: Run | None
) -> Run:
    """A new run, or the one to go on with. UserError when that is of another command or network, or
    was taken on another device or under other conditions.
    """
    chosen = kept(asked) | {"seed": asked.seed}
    if before is None:
        return replace(run_output.new_run("microbench", greeting, chosen), network=network)
    path = asked.outputs.resume
    if before.kind not in ("", name):
        raise UserError(
            f"--resume {path} is a run of {before.kind}, not of {name}; start a new run"
        )
    if network and before.network:
        was, now = (f"{n.name} {n.batch} {n.image}" for n in (before.network, network))
        if was != now:
            raise UserError(f"--resume {path}: network was {was}, now {now}; start a new run")
    run_output.check_goes_on(path, before, greeting)
    for option, value in chosen.items():
        if before.settings.get(option, value) != value:
            raise UserError(
                f"--resume {path} was measured with --{option} {before.settings[option]}; "
                "use the same value"
            )
    return replace(before, finished_at=None, network=network)


# ---------------------------------------------------------------- group by group


def group_weight(group: Group) -> float:
    """Usual seconds of sampling: more where a case can drive a GPU to its power limit."""
    large = [case.problem.flops >= timing.LARGE_FLOPS for case in group.cases]
    return sum(VARIANT_BUDGET_S["large" if is_large else "small"] for is_large in large)


def default_budget_s(groups: Sequence[Group], kind: str, most_s: float = math.inf) -> float:
    """Seconds of sampling for all groups without --budget, at most `most_s`."""
    wanted_s = CPU_BUDGET_S if kind == "cpu" else sum(map(group_weight, groups))
    return min(wanted_s, most_s)


def minor_groups(groups: Sequence[Group], network: NetworkUse | None) -> list[str]:
    """Names of the problems that take less than MINOR_SHARE of a network's step, about.

    By what the arithmetic and the bytes of their uses take on a card of usual balance: a share in
    one precision is much like that in another.
    """
    uses: Counter[str] = Counter()
    for use in network.layers if network else ():
        uses[use.group] += use.count
    work = {
        group.name: uses[group.name] * (case.problem.flops + FLOP_PER_BYTE * case.min_bytes)
        for group in groups
        for case in group.cases[-1:]
    }
    return [name for name, share in work.items() if 0 < share < MINOR_SHARE * sum(work.values())]


@dataclass(frozen=True)
class InOrder:
    """One group after another; each has its share, by weight, of the seconds of sampling.

    `processes` measure each case and share its seconds; the groups named in `minor` need fewer
    rounds.
    """

    groups: Sequence[Group]
    budget_s: float
    kind: str = "cpu"
    processes: int = 1
    minor: Collection[str] = ()

    @cached_property
    def _of_usual(self) -> Mapping[str, float]:
        """The budget over what the groups usually take, by their names."""
        total = sum(map(group_weight, self.groups))
        return {group.name: self.budget_s / total for group in self.groups}

    def fewest(self, group: Group) -> int:
        """Rounds that a process takes of a group however long they take."""
        few = self.processes > 1 or group.name in self.minor
        return timing.FEWEST_OF_SEVERAL if few else timing.FEWEST_ROUNDS

    def share_s(self, group: Group) -> float:
        """Seconds of sampling in each process; the usual ones for what an earlier run measured."""
        return group_weight(group) * self._of_usual.get(group.name, 1.0) / self.processes

    def sampling_s(self, groups: Sequence[Group]) -> float:
        """What a process is expected to take: the shares, or what the fewest rounds take beyond."""
        expected_s = 0.0
        for group in groups:
            share_s = self.share_s(group)
            flops = max(case.problem.flops for case in group.cases)
            if self.kind == "cuda" and flops >= timing.LARGE_FLOPS:  # most of it warms the card
                share_s = max(share_s, HEAVY.least_s(len(group.cases), self.fewest(group)))
            expected_s += share_s
        return expected_s


@dataclass
class Runner:
    """Measures groups one after another and keeps the run file current."""

    run: Run
    kind: str
    path: Path | None
    start_session: Callable[[], Worker]
    progress: LiveProgress
    processes: int = 1  # that measure each case
    load_ahead: Callable[[], None] = lambda: None  # what the next process needs
    now: Callable[[], str] = run_output.now
    load: LoadMeter = field(default_factory=LoadMeter)
    saving: float = SAVING
    _next_save_s: float = field(default=0.0, init=False)

    def measure(self, schedule: InOrder, planned: Sequence[Group] = ()) -> Run:
        """The run with a result for every case. What is done is on disk even when this raises; only
        a process that is killed loses what it measured since the file was last written.

        One process measures what the schedule says; each of the others measures again what is
        `planned` and has been measured, with the same seconds for a case. The device's ceilings are
        measured after the first group, so that its row is there early; they explain it all the
        same.
        """
        self._session = self.start_session()
        self._schedule = schedule
        try:
            self._session.expect([case for group in schedule.groups for case in group.cases])
            for number in range(self.processes):
                self._pass(number, planned)
            others = self._session.others()
        except BaseException:
            if self.run.results:
                self._save()
            raise
        finally:
            self._session.close()
        # Later results may explain earlier ones.
        settings = self.load.noted(self.run.settings, others)
        self.run = annotate(replace(self.run, settings=settings, finished_at=self.now()))
        self._save()
        return self.run

    def _pass(self, number: int, planned: Sequence[Group]) -> None:
        """Measure in the first process what has no result, in a later one what was measured in
        fewer than `number` + 1.
        """
        todo = few_processes(planned, self.run, number) if number else self._schedule.groups
        if number and todo:
            self._restart()
            self.progress.next_process(number + 1, self.processes, todo)
        later_s = (self.processes - 1 - number) * self._schedule.sampling_s(planned)
        for done, group in enumerate(todo, 1):
            known = [self.run.by_key[case.key] for case in group.cases] if number else []
            checked = {result.case.key: result.variant or "" for result in known}
            results = self._measure(group, checked)
            if known:
                last = newest(result.measurement for result in known)
                results = merged(known, results, max(number, 1 + last))
            left_s = later_s + self._schedule.sampling_s(todo[done:])
            self._add(group, results, left_s)
            if not number and done == 1:
                self._calibrate([case for group in todo for case in group.cases])
            if number + 1 < self.processes:
                self.load_ahead()

    def _calibrate(self, cases: Sequence[Case]) -> None:
        precisions = list(dict.fromkeys(case.precision_name for case in cases))
        covered = {
            case.precision_name
            for case in [*cases, *(r.case for r in self.run.results)]
            if is_reference(case, self.kind)
        }
        large = [name for name in precisions if name not in covered]
        ceilings = datasheet_ceilings(str(self.run.device["name"]), precisions)
        try:
            ceilings += self._session.calibrate(precisions, large, self.progress.stage)
        except WorkerDied:
            self._restart()  # the case that did it will fail in its turn; go on without ceilings
        known = {c.key: c for c in (*self.run.ceilings, *ceilings)}
        self.run = replace(self.run, ceilings=tuple(known.values()))
        self._save_at_times()

    def _restart(self) -> None:
        self._session.close()
        self._session = self.start_session()

    def _measure(self, group: Group, checked: Mapping[str, str]) -> list[Result]:
        """A result for each case of the group; one that kills the session fails, alone."""
        found: dict[str, Result] = {}
        budget_s, fewest = self._schedule.share_s(group), self._schedule.fewest(group)
        while len(found) < len(group.cases):
            left = Group(tuple(case for case in group.cases if case.key not in found))
            try:
                results = self._session.measure(
                    left, budget_s, self.progress.stage, checked=checked, fewest=fewest
                )
            except WorkerDied as death:
                self._restart()
                blamed = next((c for c in left.cases if c.key == death.key), left.cases[0])
                found[blamed.key] = Result(blamed, "failed", death.reason)
            else:
                found.update({result.case.key: result for result in results})
        return [found[case.key] for case in group.cases]

    def _add(self, group: Group, results: Sequence[Result], left_s: float) -> None:
        run = self.run.with_results(results)
        found = large_ceilings(run.results, self.kind)
        known = {c.key: c for c in (*run.ceilings, *found)}
        keys = {result.case.key for result in results}
        self.run = annotate(replace(run, ceilings=tuple(known.values())), keys)
        self._save_at_times()
        done = [result for result in self.run.results if result.case.key in keys]
        self.progress.done(group, done, left_s, self._schedule.sampling_s([group]))

    def _save_at_times(self) -> None:
        """Save unless that would take more than its share of the time since it was last done."""
        started_s = time.monotonic()
        if started_s >= self._next_save_s:
            self._save()
            ended_s = time.monotonic()
            self._next_save_s = ended_s + (ended_s - started_s) / self.saving

    def _save(self) -> None:
        if self.path is not None:
            run_output.save(self.run, self.path)


def few_processes(planned: Sequence[Group], run: Run, number: int) -> list[Group]:
    """The comparisons of which cases were measured, but not by `number` + 1 processes."""
    again: list[Group] = []
    for group in planned:
        measured = [run.by_key.get(case.key) for case in group.cases]
        timed = [result for result in measured if result and result.measurement]
        if any(max(1, len(r.measurement.processes)) <= number for r in timed if r.measurement):
            again.append(Group(tuple(result.case for result in timed)))
    return again


def missing(groups: Sequence[Group], run: Run, *, retry_skipped: bool = False) -> list[Group]:
    """The groups that a resumed run still has to measure, with their missing cases.

    A case is done when it was measured, or skipped (unless `retry_skipped`, as with a larger
    budget, and it was for want of time). A group with missing cases keeps its baselines, timed
    again beside them: a ratio needs both interleaved. A group that several processes measured is
    measured anew, whole: its cases must have been in the same ones.
    """
    done = {
        result.case.key
        for result in run.results
        if result.status == "ok"
        or (result.status == "skipped" and not (retry_skipped and MORE in (result.reason or "")))
    }
    left: list[Group] = []
    for group in groups:
        if all(case.key in done for case in group.cases):
            continue
        known = (run.by_key.get(case.key) for case in group.cases)
        if any(result and result.measurement and result.measurement.processes for result in known):
            left.append(group)
            continue
        library = {OPS[case.op].library_backend("cuda") for case in group.cases} | {"cpu"}
        left.append(
            Group(tuple(c for c in group.cases if c.key not in done or c.backend in library))
        )
    return left
