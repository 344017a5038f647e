"""A study as its TOML file has it. Nothing in a file is ever executed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from e2e.case import TrainCase
from e2e.studies.cells import COLUMNS, HERE
from kernels.messages import first_line, suggest
from microbench.errors import UserError

SCHEMA = 2

Name = Annotated[str, msgspec.Meta(pattern=r"^[\w-]+$")]  # part of a file's name
Options = dict[str, Any]  # of a command, by their names with "_" for "-"


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command with its options. Its results are cells, in the run file runs/ID.json.

    `network` is one or several, trained one after another. `of_epochs` is how many epochs the
    original trained, where these are fewer. In a file the options stand beside the other fields.
    What is `done`, and `why` a run broke off or was left out, is of a folder of results.
    """

    id: Name
    profile: Name = "full"
    command: Literal["train", "predict", "stalls", "loader"] = "train"
    network: str | tuple[str, ...] = ()
    of_epochs: int | None = None
    options: Options = {}
    done: bool = False
    why: str = ""

    @property
    def networks(self) -> tuple[str | None, ...]:
        """The networks, one after another; None for a loader."""
        return (self.network,) if isinstance(self.network, str) else self.network or (None,)


FIELDS = ("id", "profile", "command", "network", "of_epochs")  # of a run in a file


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of a published table. `value` is our column for it, or a field of a case.

    `reason` is why the numbers do not compare. `unit` follows each number of ours.
    """

    title: str
    value: str
    reason: str = ""
    unit: str = ""


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published table; the cells of `runs` are rows below it.

    `rows` have the values of `keys`, then those of `columns`. A key is a field of a case, or "here"
    for the author's machine. `words` are the author's for ours ("FP32" = "fp32"). A `template` is a
    table without numbers: its rows are no cells.
    """

    title: str
    runs: tuple[str, ...]
    keys: dict[str, str]
    columns: tuple[Shown, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    words: dict[str, str] = {}
    note: str = ""
    template: bool = False


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file. `options` are those of every run that takes them.

    `profiles` say how long each takes, and on what. `differences` are what is unlike the original,
    in sentences; `source` is the text that has the published numbers.
    """

    name: Name
    run: Annotated[tuple[Run, ...], msgspec.Meta(min_length=1)]
    title: str = ""
    source: str = ""
    question: str = ""
    differences: tuple[str, ...] = ()
    options: Options = {}
    profiles: dict[str, str] = {}
    published: tuple[Published, ...] = ()

    @property
    def profile_names(self) -> list[str]:
        """The profiles that have runs, in order."""
        return list(dict.fromkeys(run.profile for run in self.run))


def shipped() -> list[str]:
    """The names of the studies that come with halfway."""
    paths = (Path(file.name) for file in files("e2e.studies").joinpath("files").iterdir())
    return sorted(path.stem for path in paths if path.suffix == ".toml")


def read_study(name: str) -> Study:
    """The study of this name, or in this file. UserError, in one line, for what is wrong in it."""
    if name.endswith(".toml"):
        try:
            return parse_study(Path(name).read_bytes(), name)
        except OSError as error:
            raise UserError(f"cannot read {name}: {error.strerror}") from None
    if name not in shipped():
        near = suggest(name, shipped()) or f"; there are {', '.join(shipped())}, or FILE.toml"
        raise UserError(f"no study {name!r}{near}")
    return parse_study(files("e2e.studies").joinpath("files", f"{name}.toml").read_bytes(), name)


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
            data["run"] = [_with_options(table) for table in data["run"]]
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
    own = {name: value for name, value in fields.items() if name in FIELDS}
    return {**own, "options": {name: value for name, value in fields.items() if name not in own}}


def _check(study: Study) -> None:
    """UserError for what the types of the fields do not say."""
    places = [(run.profile, run.id) for run in study.run]
    _known(study.profiles, study.profile_names, "profiles: unknown")
    for run in study.run:
        if places.count((run.profile, run.id)) > 1:
            raise UserError(f"profile {run.profile} has several runs {run.id}")
        if not run.network and run.command != "loader":
            raise UserError(f"run {run.id} has no network")
    cases = [*TrainCase.__dataclass_fields__, HERE]
    for table in study.published:
        where = f"published {table.title}"
        _known(table.runs, [run.id for run in study.run], f"{where}: unknown run")
        _known(table.keys.values(), cases, f"{where}: unknown key")
        values = [column.value for column in table.columns]
        _known(values, [*COLUMNS, *cases], f"{where}: unknown value")
        for row in table.rows:
            if len(row) != len(table.keys) + len(values):
                raise UserError(f"{where}: a row has {len(row)} values, not one for each column")
        texts = " ".join(str(value) for row in table.rows for value in row[len(table.keys) :])
        if table.template == any(letter.isdecimal() for letter in texts):
            raise UserError(f"{where}: a template, and only that, has no numbers")


def _known(names: Iterable[str], known: Sequence[str], where: str) -> None:
    """UserError for a name that is not known, with a near one."""
    for name in set(names).difference(known):
        near = suggest(name, known) or f"; choose from {', '.join(known)}"
        raise UserError(f"{where} {name!r}{near}")
