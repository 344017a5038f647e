"""A study as its TOML file has it. Nothing in a file is ever executed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from e2e.case import TrainCase
from e2e.studies.columns import COLUMNS, HERE
from kernels.error_words import first_line, suggest
from microbench.errors import UserError

SCHEMA = 2
COMPARES = ("yes", "ratios", "no")
SHORT = "short"  # the profile for a first look

Name = Annotated[str, msgspec.Meta(pattern=r"^[\w-]+$")]  # part of a file's name
Options = dict[str, Any]  # of a command, by their names with "_" for "-"


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command with its options. Its results are cells, in the run file runs/ID.json.

    `network` is one or several, trained one after another. `of_epochs` is how many epochs the
    original trained, where these are fewer. In a file the options stand beside the other fields;
    of a list of `data` the first that the user has is taken.
    """

    id: Name
    profile: Name = "full"
    command: Literal["train", "predict", "stalls", "loader"] = "train"
    network: str | tuple[str, ...] = ()
    of_epochs: int | None = None
    options: Options = {}

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks, one after another; none for a loader."""
        return (self.network,) if isinstance(self.network, str) else self.network


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of a published table. `value` is our column for it, or a field of a case.

    `compare` says what of it compares with ours: "yes", "ratios" (to float32 on the same machine),
    "with DATA" or "no"; `reason` why not. `unit` follows each number of ours.
    """

    title: str
    value: str
    compare: str = "ratios"
    reason: str = ""
    unit: str = ""


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published table; the cells of `runs` are rows below it.

    `rows` have the values of `keys`, then those of `columns`. A key is a field of a case, or "here"
    for the author's machine. `words` are the author's for ours ("FP32" = "fp32"). `ratio_of` is the
    column whose ratio to float32 is shown too, titled `ratio_title`. A `template` is a table
    without numbers: its rows are no cells.
    """

    title: str
    runs: tuple[str, ...]
    keys: dict[str, str]
    columns: tuple[Shown, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    words: dict[str, str] = {}
    ratio_of: str = ""
    ratio_title: str = "x fp32"
    note: str = ""
    template: bool = False


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file. `options` are those of every run that takes them.

    `profiles` say how long each takes, and on what. `differences` are what is unlike the original,
    in sentences; `source` is the text that has the published numbers. `targets` are accuracies, 0
    to 1, whose time is asked.
    """

    name: Name
    run: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]
    title: str = ""
    source: str = ""
    question: str = ""
    differences: tuple[str, ...] = ()
    options: Options = {}
    profiles: dict[str, str] = {}
    targets: tuple[float, ...] = ()
    published: tuple[Published, ...] = ()

    def runs(self, profile: str) -> list[Run]:
        """The runs of a profile. UserError where there is no such profile."""
        found = [run for run in self.run if run.profile == profile]
        if not found:
            names = ", ".join(self.profile_names)
            raise UserError(f"{self.name} has no profile {profile!r}; it has {names}")
        return found

    @property
    def profile_names(self) -> list[str]:
        """The profiles that have runs, in order."""
        return list(dict.fromkeys(run.profile for run in self.run))

    @property
    def first_profile(self) -> str:
        """The profile that is run where none is named."""
        return SHORT if SHORT in self.profile_names else self.profile_names[0]


def shipped() -> list[str]:
    """The names of the studies that come with halfway."""
    found = (one.name for one in files("e2e.studies").joinpath("files").iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def read_study(name: str) -> Study:
    """The study of this name, or in this file. UserError, in one line, for what is wrong in it."""
    return parse_study(content_of(name), name)


def content_of(name: str) -> bytes:
    """The bytes of the study of this name, or in this file. UserError where there is none."""
    if name.endswith(".toml"):
        try:
            return Path(name).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {name}: {error.strerror}") from None
    if name not in shipped():
        near = suggest(name, shipped()) or f"; there are {', '.join(shipped())}, or FILE.toml"
        raise UserError(f"no study {name!r}{near}")
    return files("e2e.studies").joinpath("files", f"{name}.toml").read_bytes()


def parse_study(content: bytes, name: str) -> Study:
    """The study in a file's bytes; `name` is how errors call it. UserError as of `read_study`."""
    try:
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name} is no TOML: {first_line(error)}") from None
    schema = data.pop("schema", None)
    if schema != SCHEMA:
        raise UserError(f"{name}: schema is {schema!r}; this version reads {SCHEMA}")
    try:
        if isinstance(data.get("run"), list):
            data["run"] = [_with_options(one) for one in data["run"]]
        study = msgspec.convert(data, Study)
        _check(study)
    except (msgspec.ValidationError, UserError) as error:
        raise UserError(f"{name}: {first_line(error)}") from None
    return study


def _with_options(table: Any) -> Any:
    """A run's table with what are options of its command apart from the other fields."""
    if not isinstance(table, dict):
        return table
    fields = cast("dict[str, Any]", table)
    own = {name: value for name, value in fields.items() if name in Run.__struct_fields__[:-1]}
    return {**own, "options": {name: value for name, value in fields.items() if name not in own}}


def _check(study: Study) -> None:
    """UserError for what the types of the fields do not say."""
    places = [(run.profile, run.id) for run in study.run]
    for place in places:
        if places.count(place) > 1:
            raise UserError(f"profile {place[0]} has several runs {place[1]}")
    _known(study.profiles, study.profile_names, "profiles: unknown")
    for run in study.run:
        if bool(run.networks) == (run.command == "loader"):
            has = "has no network" if run.command != "loader" else "loads alone: leave out network"
            raise UserError(f"run {run.id} {has}")
    for one in study.published:
        _check_published(one, [run.id for run in study.run])


def _check_published(one: Published, runs: Sequence[str]) -> None:
    where = f"published {one.title}"
    values = [column.value for column in one.columns]
    cases = [*TrainCase.__dataclass_fields__, HERE]
    _known(one.runs, runs, f"{where}: unknown run")
    _known(one.keys.values(), cases, f"{where}: unknown key")
    _known(values, [*COLUMNS, *cases], f"{where}: unknown value")
    if one.ratio_of:
        _known([one.ratio_of], values, f"{where}: unknown ratio_of")
        _known(["recipe"], one.keys.values(), f"{where}: ratios need a key")
    for column in one.columns:
        if column.compare not in COMPARES and not column.compare.startswith("with "):
            words = ", ".join(COMPARES)
            raise UserError(f"{where}: {column.title} compares {column.compare!r}; write {words} "
                            "or with DATA")  # fmt: skip
    for row in one.rows:
        if len(row) != len(one.keys) + len(values):
            raise UserError(f"{where}: a row has {len(row)} values, not one for each column")
    texts = " ".join(str(value) for row in one.rows for value in row[len(one.keys) :])
    if one.template == any(letter.isdecimal() for letter in texts):
        raise UserError(f"{where}: a template, and only that, has no numbers")


def _known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """UserError for the first name that is not known, with a near one."""
    known = list(known)
    for name in names:
        if name not in known:
            near = suggest(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"{where} {name!r}{near}")
