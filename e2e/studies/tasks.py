"""What a plan is made of: tasks and their arms, and the machine that it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.case import ON_CPU
from e2e.studies.factors import Factors, Value
from e2e.studies.measures import MEASURES
from microbench.errors import UserError

RECIPE = re.compile(r"(?P<name>[^+@]+)(?P<more>(?:\+bn32|\+scale[\d.]+|@dynamic)*)$")


@dataclass(frozen=True)
class Machine:
    """What a plan must know of the machine: "cuda" or "cpu", usable cores, GPUs."""

    kind: str
    cores: int
    gpus: int = 1


@dataclass(frozen=True)
class Arm:
    """One cell of a task. `token` is the recipe as the study writes it."""

    token: str
    recipe: str
    batch: int
    layout: str = ""
    workers: int | None = None
    loss_scale: float | None = None
    keep_batchnorm_fp32: bool = False

    @property
    def factors(self) -> dict[str, Value]:
        """What a table calls its factors."""
        named = {"recipe": self.token, "batch": self.batch, "layout": self.layout}
        found = {name: value for name, value in named.items() if value}
        return found if self.workers is None else found | {"workers": self.workers}


@dataclass(frozen=True)
class Task:
    """One network with one setting of a part: what one request of training does.

    `kind` is "train", "stalls" or "loader". `words` are the options of the training. `file` is the
    name of its run file, without the ending; `skipped` why it is not run. `projected` is how many
    times longer the training that the study asks for is.
    """

    part: str
    number: int
    measure: tuple[str, ...]
    network: str
    recipes: tuple[str, ...]
    batches: tuple[int, ...]
    layouts: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    scales: Mapping[str, float] | float | None = None
    bn32: bool = False
    targets: tuple[float, ...] = ()
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    named: Factors = field(default_factory=dict[str, Value])
    file: str = ""
    skipped: str = ""
    projected: float = 1.0

    @property
    def id(self) -> str:
        """ "PART/N"."""
        return f"{self.part}/{self.number}"

    @property
    def kind(self) -> str:
        """What measures it."""
        named = {"loader-alone": "loader", "stalls": "stalls"}
        return next((named[one] for one in self.measure if one in named), "train")

    @property
    def trains(self) -> bool:
        """Whether anything is trained from scratch."""
        return any(MEASURES[one].trains for one in self.measure)

    def arms(self, kind: str) -> list[Arm]:
        """Its cells on a kind of device: on a CPU amp is amp-bf16, as everywhere."""
        workers: Sequence[int | None] = self.workers if self.kind != "train" else (None,)
        recipes = ("",) if self.kind == "loader" else self.recipes
        return [
            self._arm(token, batch, layout, count, kind)
            for batch in self.batches
            for count in workers
            for layout in self.layouts or ("",)
            for token in recipes
        ]

    def _arm(self, token: str, batch: int, layout: str, workers: int | None, kind: str) -> Arm:
        if not token:
            return Arm("", "", batch, workers=workers)
        name, bn32, scale, dynamic = parse_recipe(token)
        if kind == "cpu" and name in ON_CPU:
            token = token.replace(name, ON_CPU[name], 1)
            name = ON_CPU[name]
        given = self.scales.get(name) if isinstance(self.scales, Mapping) else self.scales
        scale = None if dynamic else scale if scale is not None else given
        return Arm(token, name, batch, layout, workers, scale, bn32 or self.bn32)


@dataclass(frozen=True)
class Plan:
    """All tasks of a study. `lacking` are factors that training has not, as sentences by name."""

    tasks: tuple[Task, ...]
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_recipe(token: str) -> tuple[str, bool, float | None, bool]:
    """(name, float32 batch-norm, static scale, dynamic scale) of "O3+bn32+scale256". UserError."""
    found = RECIPE.match(token)
    if not found:
        raise UserError(f"recipe {token!r}: write NAME, NAME+bn32, NAME+scale256 or NAME@dynamic")
    more = found["more"]
    scale = re.search(r"\+scale([\d.]+)", more)
    return found["name"], "+bn32" in more, float(scale[1]) if scale else None, "@dynamic" in more
