"""From the options of a command line to a request."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.case import (
    AT_HAND,
    COMPRESSIONS,
    DATA_ALIASES,
    FULL,
    OP,
    SCHEMAS,
    SHORT,
    USUAL_LOADER,
    ArmOptions,
    TrainCase,
    TrainRequest,
    TrainSettings,
    parse_memory,
)
from e2e.schedule import CONSTANT
from e2e.training.distributed import place_of
from kernels.files import read_json_file
from microbench.command_line import Outputs, check_options, filled, options_of
from microbench.errors import UserError
from microbench.run_output import check_outputs
from microbench.sweep import parse_names, parse_numbers

MAX_SIDES = 4


def request_of(network: str, words: Mapping[str, Any], **instead: Any) -> TrainRequest:
    """The request of these options; those not given are as usual, or as `instead` has them.

    UserError for whatever can be found wrong before torch is loaded.
    """
    given = {name: value for name, value in words.items() if value is not None}
    if given.get("data") in DATA_ALIASES:
        given["data"] = DATA_ALIASES[given["data"]]
    usual = {name: option.default for name, option in options_of(*SCHEMAS, Outputs).items()}
    asked = usual | instead | given
    check_options(asked, *SCHEMAS)
    _check_together(asked)
    outputs = filled(Outputs, asked)
    check_outputs(outputs)
    as_given = {name: asked[name] for name in options_of(TrainCase)}
    as_given["held_out"] = asked["held_out"] or 0
    limit = asked["memory_limit"]
    as_given["memory_limit"] = parse_memory(limit) if limit else 0
    as_given["search"] = asked["search"] or _search_of(outputs.resume)
    as_given["freeze"] = asked["freeze"] or ""
    weights = asked["weights"] and weights_file(Path(asked["weights"]), network)
    as_given["weights"] = weights.name if weights else ""
    as_given["gpus"] = _ranks(asked["gpus"], asked["processes"])
    base = TrainCase("", "", 1, "", **as_given | _loading(asked))
    settings = filled(
        TrainSettings, asked | {"weights": weights}, network=network,
        input=parse_shape(asked["input"]), case=base,
    )  # fmt: skip
    arms = filled(ArmOptions, asked, base=base)
    _check_gpus(arms)
    return filled(TrainRequest, asked, arms=arms, settings=settings, outputs=outputs)


def weights_file(path: Path, network: str) -> Path:
    """The file of a network's weights: this one, or in this folder NETWORK.pth or .pt.

    torchvision's own names, NETWORK-0123abcd.pth, count too. UserError where there is none.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"--weights {path}: no such file or folder")
    plain = network.partition("@")[0]
    named = re.compile(rf"{re.escape(plain)}(-[0-9a-f]{{8}})?\.(pth|pt)", re.IGNORECASE)
    found = sorted(one for one in path.iterdir() if named.fullmatch(one.name))
    if not found:
        raise UserError(f"--weights {path} has no {plain}.pth, nor {plain}-HASH.pth")
    if len(found) > 1:
        names = ", ".join(one.name for one in found)
        raise UserError(f"--weights {path} has several of {plain}: {names}; give one of them")
    return found[0]


def _ranks(gpus: str | None, processes: int) -> int:
    """How many processes torchrun started; 1 without it. UserError where they are to be others."""
    place = place_of(os.environ)
    if place and place.rank:
        raise UserError("under torchrun there is train only: torchrun -m e2e NETWORK")
    if place and (gpus is not None or processes > 1):
        option = "--processes" if gpus is None else "--gpus"
        raise UserError(f"torchrun started {place.world} processes; leave out {option}")
    return place.world if place else 1


def gpus_of(options: ArmOptions) -> list[int]:
    """The numbers of GPUs that are asked for, [1] by default. UserError for what is none."""
    if options.gpus is None:
        return [options.base.gpus]
    return list(dict.fromkeys(parse_numbers(options.gpus, "--gpus")))


def _check_gpus(options: ArmOptions) -> None:
    """UserError for what cannot run over several GPUs."""
    several = max(gpus_of(options)) > 1
    if options.strong and options.gpus is None:
        raise UserError("--strong needs --gpus, such as --gpus 1,2,4")
    if options.compress is not None:
        parse_names(options.compress, COMPRESSIONS, "--compress")
        if not several:
            raise UserError("--compress needs several GPUs: --gpus 2, or torchrun")


def _search_of(path: Path | None) -> str:
    """The search of the run to go on with; files older than the option have the full one."""
    try:
        results: Any = read_json_file(path)["results"] if path else ()
        found = [one["case"].get("search", FULL) for one in results if one["op"] == OP]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        found = []  # the command says what is wrong with the file
    return str(found[0]) if found else SHORT


def _loading(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a case that say how data is loaded; UserError for what cannot be."""
    data, _, _ = asked["data"].partition(":")
    loader = asked["loader"] or USUAL_LOADER.get(data, data)
    if data == "synthetic" and loader not in (data, "pinned"):
        raise UserError(
            f"--data synthetic is one batch: --loader {loader} has nothing to load; "
            "try --data made or --data folder:DIR"
        )
    # What is at hand has no processes that load.
    workers = 0 if loader in AT_HAND else asked["workers"]
    prefetch = asked["prefetch"] or 0 if workers else 0
    cpus = asked["cpus"] or 0
    return dict(data=data, loader=loader, workers=workers, prefetch=prefetch, cpus=cpus)


def _check_together(asked: Mapping[str, Any]) -> None:
    """UserError for options that do not go together."""
    trains = asked["iterations"] is not None or asked["epochs"] is not None
    if asked["iterations"] is not None and asked["epochs"] is not None:
        raise UserError("--iterations and --epochs exclude each other; give one of them")
    if asked["repeats"] > 1 and not trains:
        raise UserError("--repeats needs --iterations or --epochs")
    if asked["same_seed"] and asked["repeats"] == 1:
        raise UserError("--same-seed needs --repeats")
    for name, without in (
        ("schedule", CONSTANT), ("held_out", None), ("count_gradients", None),
    ):  # fmt: skip
        if asked[name] != without and not trains:
            raise UserError(f"--{name.replace('_', '-')} needs --iterations or --epochs")


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Such as "3x512x512" as numbers; UserError for anything else."""
    if text is None:
        return None
    shape = text.strip().lower()
    if not re.fullmatch(rf"\d{{1,9}}(x\d{{1,9}}){{0,{MAX_SIDES - 1}}}", shape):
        raise UserError(f"--input: cannot read {text!r}; write 3x512x512, or 512 for tokens")
    return tuple(int(side) for side in shape.split("x"))
