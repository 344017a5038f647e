"""From a study to its tasks: lists crossed. Pure, and without torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from e2e.case import SCHEMAS
from e2e.studies.factors import FACTORS, Factors, Value
from e2e.studies.tasks import Machine, Plan, Task, parse_recipe
from e2e.studies.types import Part, Study
from microbench.command_line import options_of
from microbench.errors import UserError

# Within a task these are variants and comparisons, not tasks of their own.
INSIDE = ("recipes", "batch", "layout", "data", "seeds", "targets")
OWN_DATA = ("generated", "made", "synthetic")  # that need no folder
SHOWN = ("loader", "workers", "cpus", "lr", "epochs", "device")  # options that cells show
# Factors that cells show in another way; of the others they show those that differ.
SHOWN_OTHERWISE = ("networks", "gpus", "batch", "global_batch", *SHOWN)
# Options that a run takes only where something is trained from scratch.
OF_TRAINING = (
    "iterations", "epochs", "repeats", "same_seed", "schedule", "held_out", "evaluate",
)  # fmt: skip
STEPS = ("iterations", "epochs")  # one of them: the later layer has its way


def layers(study: Study, profile: str, sets: Factors) -> list[Part]:
    """The parts that are run, with all their factors: defaults, part, profile, the user's.

    UserError for a profile that the study has not.
    """
    laid = study.profiles.get(profile)
    if laid is None:
        raise UserError(
            f"{study.name} has no profile {profile!r}; it has {', '.join(study.profiles)}"
        )
    found: list[Part] = []
    for part in study.parts:
        own = laid.part.get(part.id, {})
        if part.skip or own.get("skip") or (laid.parts and part.id not in laid.parts):
            continue
        merged: dict[str, Value] = {}
        for layer in (study.defaults, part.factors, laid.factors, own, sets):
            if any(name in layer for name in STEPS):
                merged = {k: v for k, v in merged.items() if k not in STEPS}
                if "iterations" in layer:
                    merged.pop("measured_epochs", None)
            merged |= {k: v for k, v in layer.items() if k in FACTORS}
        measure = tuple(own.get("measure", part.measure))
        found.append(replace(part, measure=measure, factors=merged))
    return found


def expand(
    parts: Sequence[Part], machine: Machine, data: Mapping[str, Path], weights: Path | None
) -> Plan:
    """The tasks of parts; `data` are folders by name. UserError for a value that cannot be."""
    lacking: dict[str, str] = {}
    tasks: list[Task] = []
    for part in parts:
        crossed = _crossed(part, part.factors, machine)
        several = {name for name, values in crossed.items() if len(values) > 1}
        found = [
            _task(part, number, one, several, machine, data, weights, lacking)
            for number, one in enumerate(_product(part.factors, crossed), 1)
        ]
        tasks += _with_files(found)
    return Plan(tuple(tasks), lacking=lacking)


def _crossed(part: Part, factors: Factors, machine: Machine) -> dict[str, list[Value]]:
    """The factors whose lists make tasks of their own."""
    found: dict[str, list[Value]] = {}
    of_loading = {"loader-alone", "stalls"} & set(part.measure)
    for name, value in factors.items():
        values = listed(value)
        if name == "gpus":
            values = [one for text in values for one in _gpus(text, machine)]
        if name in INSIDE or not FACTORS[name].crossed or (name == "workers" and of_loading):
            continue
        if name == "networks" and "loader-alone" in part.measure:
            values = values[:1]
        found[name] = values
    lr = listed(factors.get("lr"))
    if any(isinstance(one, Mapping) for one in lr):  # a rate of its own for each batch
        name = "batch" if "batch" in factors else "global_batch"
        found[name] = listed(factors.get(name, 128))
    return found


def _product(factors: Factors, crossed: Mapping[str, list[Value]]) -> Iterable[dict[str, Value]]:
    """All that is crossed; one GPU exchanges no gradients, however they would be compressed."""
    first = crossed.get("compress", [None])[0]
    for values in itertools.product(*crossed.values()):
        found = {**factors, **dict(zip(crossed, values, strict=True))}
        if found.get("gpus", 1) > 1 or found.get("compress") == first:
            yield found


def _gpus(value: Value, machine: Machine) -> list[int]:
    """1, 2, 4 ... of "1..N"; a number as it is."""
    if isinstance(value, int):
        return [value]
    if value != "1..N":
        raise UserError(f'gpus cannot be {value!r}; write numbers, or "1..N"')
    powers = [2**i for i in range(machine.gpus.bit_length()) if 2**i <= machine.gpus]
    return list(dict.fromkeys([1, *powers, machine.gpus]))


def _task(
    part: Part,
    number: int,
    factors: dict[str, Value],
    several: set[str],
    machine: Machine,
    data: Mapping[str, Path],
    weights: Path | None,
    lacking: dict[str, str],
) -> Task:
    gpus = factors.get("gpus", 1)
    batches = [int(one) for one in listed(factors.get("batch", factors.get("global_batch", 128)))]
    if "global_batch" in factors and "batch" not in factors:
        batches = [max(1, one // gpus) for one in batches]
    words = _words(factors, batches, weights, lacking)
    if gpus == 1:
        words.pop("compress", None)  # there is nothing to exchange
    else:
        words["gpus"] = str(gpus)
    spec = _data(factors, data)
    counts = tuple(_workers(one, machine) for one in listed(factors.get("workers", 4)))
    if machine.kind == "cpu" or factors.get("device") == "cpu":
        words["device"] = "cpu"
    words["data"] = spec or "generated"
    if "loader" in words or "workers" in factors:
        words["workers"] = counts[0]
    recipes = tuple(listed(factors.get("recipes", ["fp32", "amp"])))
    for token in recipes:
        parse_recipe(token)
    shown = [name for name in SHOWN if name in words]
    task = Task(
        part.id, number, part.measure, factors["networks"], recipes, tuple(batches),
        tuple(listed(factors.get("layout"))), counts, factors.get("loss_scale"),
        factors.get("keep_batchnorm_fp32") is True, tuple(listed(factors.get("targets"))), words,
        {
            "network": factors["networks"], "gpus": gpus, "data": words["data"].partition(":")[0],
            **{name: words[name] for name in shown},
            **{k: v for k, v in factors.items() if k in several and k not in SHOWN_OTHERWISE},
        },
        skipped=_untestable(factors, gpus, spec, machine),
    )  # fmt: skip
    return _with_steps(task, factors)


def _untestable(factors: Factors, gpus: int, spec: str | None, machine: Machine) -> str:
    """Why there can be no such cells on this machine, or with what is given; "" where there can."""
    if gpus > machine.gpus:
        return f"{gpus} GPUs: this machine has {machine.gpus}"
    if spec is None:
        names = ", ".join(f"--data {one.rpartition(':')[2]}=DIR" for one in listed(factors["data"]))
        return f"no data: give {names}"
    return ""


def _with_steps(task: Task, factors: Factors) -> Task:
    """The task with as many epochs as are run, or without what only a training takes."""
    if not task.trains:
        return replace(task, words={k: v for k, v in task.words.items() if k not in OF_TRAINING})
    asked, most = task.words.get("epochs"), factors.get("measured_epochs")
    if asked is None or most is None:
        return task
    done = max(1, min(most, asked))
    return replace(task, words={**task.words, "epochs": done}, projected=asked / done)


def _words(
    factors: Factors, batches: Sequence[int], weights: Path | None, lacking: dict[str, str]
) -> dict[str, Any]:
    """The options of a training; `lacking` gets what it has not."""
    words: dict[str, Any] = {}
    for name, value in factors.items():
        factor = FACTORS[name]
        if name in ("networks", "recipes", "batch", "gpus", "layout", "workers", "data"):
            continue
        if factor.lacking:
            lacking[name] = factor.lacking
        elif factor.option and value != factor.neutral:
            words[factor.option] = factor.write(value)
    if "seeds" in factors:
        words |= _seeds(listed(factors["seeds"]))
    rate: Value = factors.get("lr")
    if isinstance(rate, Mapping):
        found = cast("Mapping[str, float]", rate)
        whole = batches[0] * factors.get("gpus", 1)  # of all GPUs
        words["lr"] = found["value"] * whole / found.get("per", whole)
    if "pretrained" in factors and "weights" in words:
        file = factors["pretrained"].get(factors["networks"])
        path = weights / file if weights and file else None
        del words["weights"]
        if path and path.exists():
            words["weights"] = path
        else:
            lacking["pretrained"] = "no --weights DIR with its file: accuracy is not of fine-tuning"
    return words


def _seeds(seeds: Sequence[int]) -> dict[str, Any]:
    """The options for trainings from these seeds. UserError for any that no option gives."""
    if not seeds:
        raise UserError("seeds is empty; write a list such as [1, 2, 3]")
    same = len(set(seeds)) == 1 < len(seeds)
    if not same and list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        raise UserError(f"seeds cannot be {list(seeds)}: one seed again and again, or consecutive")
    return {"repeats": len(seeds), "seed": seeds[0], "same_seed": same}


def _data(factors: Factors, folders: Mapping[str, Path]) -> str | None:
    """The first of the data that is there: "cifar10:DIR"; None where none is."""
    for one in listed(factors.get("data", "generated")):
        kind, _, name = str(one).partition(":")
        if kind in OWN_DATA:
            return kind
        folder = folders.get(name or kind)
        if folder is not None:
            return f"{kind}:{folder}"
    return None


def _workers(value: Value, machine: Machine) -> int:
    if value == "cores/gpus":
        return max(1, machine.cores // max(1, machine.gpus))
    if isinstance(value, str):
        raise UserError(f'workers cannot be {value!r}; write numbers, or "cores/gpus"')
    return int(value)


def _with_files(tasks: Sequence[Task]) -> list[Task]:
    """The tasks of a part with their run files: one, or one for each of what a run has once."""
    kept = [name for name, option in options_of(*SCHEMAS).items() if option.kept]
    files: dict[tuple[Any, ...], str] = {}
    found: list[Task] = []
    for task in tasks:
        own = tuple(task.words.get(name) for name in (*kept, "data", "device"))
        if not task.skipped:
            files.setdefault(own, f"{task.part}-{len(files) + 1}" if files else task.part)
        found.append(replace(task, file=files.get(own, task.part)))
    return found


def listed(value: Value) -> list[Value]:
    """A list as it is, a single value as a list; [] for None."""
    if value is None:
        return []
    return list(cast("list[Value]", value)) if isinstance(value, list) else [value]
