"""How long a study takes, about, and what is cut until it fits: every cut is listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from e2e.studies.expand import expand, listed
from e2e.studies.factors import Value
from e2e.studies.measures import MEASURES
from e2e.studies.tasks import Cut, Machine, Plan, Task, parse_recipe
from e2e.studies.types import Part

# Multiply-adds of a forward pass of one sample, in units of 1e9, rounded from known figures: an
# estimate of time needs no more.
GMACS = {
    "cnn-cifar": 0.013, "resnet18-cifar": 0.56, "resnet34-cifar": 1.16, "resnet50-cifar": 1.3,
    "vgg16-cifar": 0.31, "wrn-16-4": 0.39, "wrn-28-10": 5.25,
    "resnet18": 1.8, "resnet34": 3.7, "resnet50": 4.1, "resnet152": 11.5,
}  # fmt: skip
UNKNOWN_GMACS = 2.0
USUAL_PIXELS = 224 * 224
PASSES = 6  # operations of a training step for each multiply-add of a forward pass
# Operations a second that a training reaches, about; a core of a CPU where it is one.
RATES = {"cuda": {"float32": 3e13, "low": 1.2e14}, "cpu": {"float32": 2e10, "low": 1e10}}
FLOAT32 = ("fp32", "O0")
START_S = {"cuda": 12.0, "cpu": 7.0}  # of a process: loading torch, opening the data
BESIDE_S = {"cuda": 5.0, "cpu": 2.0}  # of an arm: set-up and closer looks
RECORDED_S = {"cuda": 4.0, "cpu": 1.0}  # of an arm whose steps are recorded for a ledger
LAUNCH_S = {"cuda": 0.008, "cpu": 0.02}  # at least, of a step
FED_S, PLAIN_S, CPU_S = 10.0, 5.0, 40.0  # of timing, as the scheduler has it
LOADER_S = 7.0  # of a loader alone
JPEGS_PER_S, CIFAR_PER_S = 120.0, 3000.0  # that a worker loads
EPOCH = {"generated": 50_000, "cifar10": 50_000, "made": 19_000}
FEWEST = {"iterations": 20, "epochs": 1, "measured_epochs": 1, "repeats": 1}


def estimate_s(plan: Plan, machine: Machine) -> float:
    """About how many seconds a plan takes: an estimate by arithmetic, no measurement."""
    return sum(task_s(task, machine) for task in plan.tasks if not task.skipped)


def task_s(task: Task, machine: Machine) -> float:
    """About how many seconds a task takes."""
    kind = "cpu" if task.words.get("device") == "cpu" else machine.kind
    arms = task.arms(kind)
    if task.kind == "loader":
        return START_S[kind] + LOADER_S * len(arms)
    comparisons = len(task.batches) * (len(task.workers) * 3 + 2 if task.kind == "stalls" else 1)
    each = len(arms) / max(1, len(task.batches))
    fed = "loader" in task.words and task.words["loader"] not in ("synthetic", "resident")
    timing_s = task.words.get("budget") or (
        CPU_S if kind == "cpu" else (FED_S if fed else PLAIN_S) * each
    )
    beside_s = BESIDE_S[kind] + RECORDED_S[kind] * ("ledger" in task.measure)
    found = START_S[kind] + comparisons * timing_s + beside_s * len(arms)
    if not task.trains:
        return found
    repeats = task.words.get("repeats", 1)
    for arm in arms:
        steps = task.words.get("iterations") or task.words.get("epochs", 0) * -(
            -EPOCH.get(task.words["data"].partition(":")[0], 50_000) // arm.batch
        )
        step_s = _step_s(task, arm.token, arm.batch, kind, machine.cores)
        evaluated = task.words.get("held_out", 10_000) / arm.batch * step_s / 3
        found += repeats * (steps * step_s + evaluated)
    return found


def _step_s(task: Task, token: str, batch: int, kind: str, cores: int) -> float:
    name, *_ = parse_recipe(token)
    rates = RATES[kind]
    rate = rates["float32" if name in FLOAT32 else "low"] * (cores if kind == "cpu" else 1)
    gmacs = GMACS.get(task.network.partition("@")[0], UNKNOWN_GMACS)
    if "input" in task.words and "cifar" not in task.network:
        gmacs *= prod(map(int, task.words["input"].split("x")[1:])) / USUAL_PIXELS
    step_s = max(LAUNCH_S[kind], PASSES * gmacs * 1e9 * batch / rate)
    if task.words.get("loader") in (None, "synthetic", "resident"):
        return step_s
    of_files = task.words["data"].startswith(("folder", "made"))
    loaded = (JPEGS_PER_S if of_files else CIFAR_PER_S) * max(1, task.words.get("workers", 1))
    return max(step_s, batch / loaded)


def scaled(
    parts: Sequence[Part],
    budget_s: float,
    machine: Machine,
    data: Mapping[str, Path],
    weights: Path | None,
) -> Plan:
    """The plan of parts, cut until its estimate fits `budget_s`, or until nothing is left to cut.

    In this order: repeats, then iterations or epochs, then inner workers and batches, then networks
    from the largest. Precisions and the ends of lists are never cut.
    """
    now = {part.id: part for part in parts}
    plan = expand(parts, machine, data, weights)
    for level in (("repeats",), ("iterations", "epochs", "measured_epochs"),
                  ("workers", "batch"), ("networks",)):  # fmt: skip
        while estimate_s(plan, machine) > budget_s:
            costs = dict.fromkeys(now, 0.0)
            for task in plan.tasks:
                costs[task.part] += 0.0 if task.skipped else task_s(task, machine)
            dearest = sorted(now.values(), key=lambda part: -costs[part.id])
            cut = next((one for part in dearest for one in _cuts(part, level)), None)
            if cut is None:
                break
            now[cut.id] = cut
            plan = expand(list(now.values()), machine, data, weights)
    cuts = [
        Cut(part.id, name, _text(asked), _text(now[part.id].factors[name]))
        for part in parts
        for name, asked in part.factors.items()
        if asked != now[part.id].factors[name]
    ]
    return replace(plan, cuts=tuple(cuts))


def _cuts(part: Part, level: tuple[str, ...]) -> Iterator[Part]:
    """The part with the next cut of each factor of a level."""
    trains = any(MEASURES[one].trains for one in part.measure)
    for name in level:
        if name in FEWEST and not trains:
            continue
        if name == "epochs" and part.factors.get("measured_epochs") is not None:
            continue  # those are what takes time; the others are projected
        value = part.factors.get(name)
        values = listed(value)
        less: Value = None
        if name in FEWEST and isinstance(value, int) and value > FEWEST[name]:
            less = max(FEWEST[name], value // 2)
        elif name in ("workers", "batch") and len(values) > 2:
            middle = len(values) // 2
            less = values[:middle] + values[middle + 1 :]
        elif name == "networks" and len(values) > 1:
            largest = max(values, key=lambda one: GMACS.get(one.partition("@")[0], UNKNOWN_GMACS))
            less = [one for one in values if one != largest]
        if less is not None:
            yield replace(part, factors={**part.factors, name: less})


def _text(value: Value) -> str:
    return ", ".join(map(str, listed(value)))
