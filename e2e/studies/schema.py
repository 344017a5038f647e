"""A study as its TOML file has it. Nothing in a file is ever executed."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable
from dataclasses import MISSING, fields
from importlib.resources import files
from pathlib import Path
from typing import TypeVar, cast

from e2e.studies.factors import FACTORS, Factors, Value
from e2e.studies.measures import MEASURES
from e2e.studies.types import Part, Profile, Published, Study, TableForm
from kernels.error_words import first_line, suggest
from microbench.errors import UserError
from microbench.results.values import Json

SCHEMA = 1
PROFILES = ("full", "quick", "smoke")
OF_PART = ("measure", "skip")  # of a part, beside its factors
OF_PROFILE = ("about", "parts", "part")
COMPARABLE = ("yes", "ratios", "no")
TEXTS = ("kind", "pretrained")  # fields, and factors whose fields are, that are texts
TOP = (
    "schema", "name", "title", "seed", "question", "differences", "defaults", "part", "profile",
    "published", "table",
)  # fmt: skip
# What older files have and nothing reads any more: of a file, of a profile, of a table.
RETIRED, RETIRED_BUDGET = ("figure", "claim", "puzzle"), "budget"
RETIRED_OF_TABLE = ("rows", "pivot", "where")
T = TypeVar("T", Published, TableForm)


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
        return _study(data, hashlib.sha256(content).hexdigest())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{name} is no TOML: {first_line(error)}") from None
    except (TypeError, ValueError, AttributeError) as error:  # a text where a list stands, say
        raise UserError(f"{name} is not laid out as a study: {first_line(error)}") from None
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


# ---------------------------------------------------------------- parsing


def _study(data: Json, sha256: str) -> Study:
    _known(data, (*TOP, *RETIRED), "")
    if data.get("schema") != SCHEMA:
        raise UserError(f"schema is {data.get('schema')!r}; this version reads {SCHEMA}")
    defaults = _factors(_table(data, "defaults", ""), "defaults")
    parts = tuple(_part(one) for one in _tables(data, "part"))
    if not parts:
        raise UserError("there is no [[part]]")
    ids = [part.id for part in parts]
    published = tuple(_made(Published, one, "published") for one in _tables(data, "published"))
    for one in published:
        _check_published(one)
    profiles = _table(data, "profile", "")
    tables = tuple(_made(TableForm, one, "table") for one in _tables(data, "table"))
    for form in tables:
        _known([*form.parts, *form.elsewhere.values()], ids, f"table {form.id}: part")
        _known(
            [form.published], [one.table for one in published],
            f"table {form.id}: published table",
        )  # fmt: skip
    retired = [name for name in RETIRED if name in data]
    if any(RETIRED_BUDGET in _table(profiles, name, "profile") for name in profiles):
        retired.append(RETIRED_BUDGET)
    return Study(
        _text(data, "name"), data.get("title", _text(data, "name")), data.get("seed", ""),
        data.get("question", ""), defaults, parts,
        {name: _profile(one, name, ids) for name, one in profiles.items()},
        published, tables, tuple(data.get("differences", ())), tuple(retired), sha256,
    )  # fmt: skip


def _part(data: Json) -> Part:
    where = f"part {data.get('id', '')}".strip()
    factors = _factors({k: v for k, v in data.items() if k not in (*OF_PART, "id")}, where,
                       also=("id", *OF_PART))  # fmt: skip
    measure = tuple(data.get("measure", ("speed",)))
    _known(measure, MEASURES, f"{where}: measure")
    if not measure:
        raise UserError(f"{where} measures nothing")
    return Part(_text(data, "id", where), measure, factors, data.get("skip") is True)


def _profile(data: Json, name: str, ids: list[str]) -> Profile:
    where = f"profile.{name}"
    _known([name], PROFILES, "profile")
    known = (*OF_PROFILE, RETIRED_BUDGET)
    factors = _factors({k: v for k, v in data.items() if k not in known}, where, also=known)
    _known(data.get("parts", ()), ids, f"{where}: part")
    own = _table(data, "part", where)
    _known(own, ids, f"{where}: part")
    laid = {part: _factors(one, f"{where}.part.{part}", also=OF_PART) for part, one in own.items()}
    return Profile(factors, data.get("about", ""), tuple(data.get("parts", ())), laid)


def _factors(data: Json, where: str, also: Iterable[str] = ()) -> Factors:
    _known(data, (*FACTORS, *also), where)
    for name, value in data.items():
        if name in FACTORS:
            check_factor(name, value, f"{where}: " * bool(where))
    return data


def check_factor(name: str, value: Value, where: str = "") -> None:
    """UserError unless the value, or each of a list of values, is of a type that the factor has."""
    factor = FACTORS[name]
    values: list[Value] = cast("list[Value]", value) if isinstance(value, list) else [value]
    for one in values:
        fits = isinstance(one, factor.types) and (not isinstance(one, bool) or bool in factor.types)
        if not fits or (isinstance(one, int | float) and one < 0):
            raise UserError(f"{where}{name} cannot be {one!r}: it takes {factor.says}")
        if isinstance(one, dict):
            _check_table(name, cast("Json", one), where)
    if not values:
        raise UserError(f"{where}{name} is an empty list")


def _check_table(name: str, table: Json, where: str) -> None:
    """UserError for a factor's table with an unknown field, without its first one, or of a wrong
    type.
    """
    factor = FACTORS[name]
    if factor.fields:
        _known(table, factor.fields, f"{where}{name}")
        if factor.fields[0] not in table:
            raise UserError(f"{where}{name} has no {factor.fields[0]}")
    for field_name, value in table.items():
        wanted = (str,) if field_name in TEXTS or name in TEXTS else (int, float)
        values = cast("list[Value]", value) if isinstance(value, list) else [value]
        if not all(isinstance(one, wanted) and not isinstance(one, bool) for one in values):
            raise UserError(f"{where}{name}: {field_name} cannot be {value!r}")


def _check_published(one: Published) -> None:
    width = len(one.key) + len(one.columns)
    for row in one.rows:
        if len(row) != width:
            raise UserError(f"published {one.table}: a row has {len(row)} values, not {width}")
    for column, how in one.comparable.items():
        if how not in COMPARABLE and not how.startswith("with "):
            raise UserError(f"published {one.table}: {column} is comparable {how!r}; "
                            f"write {', '.join(COMPARABLE)} or with DATA")  # fmt: skip


def _made(kind: type[T], data: Json, table: str) -> T:
    """The dataclass of a table of the file; lists become tuples."""
    where = f"{table} {data.get('id', data.get('table', ''))}".strip()
    if kind is TableForm:
        data = {name: value for name, value in data.items() if name not in RETIRED_OF_TABLE}
    known = {one.name: one for one in fields(kind)}
    _known(data, known, where)
    for name, one in known.items():
        required = one.default is MISSING and one.default_factory is MISSING
        if required and name not in data:
            raise UserError(f"{where} has no {name}")
    return kind(**{name: _frozen(value) for name, value in data.items()})


def _frozen(value: Value) -> Value:
    return tuple(map(_frozen, cast("list[Value]", value))) if isinstance(value, list) else value


def _known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """UserError for the first name that is not known, with a near one."""
    known = list(known)
    for name in names:
        if name not in known:
            near = suggest(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"{where}: unknown {name!r}{near}".removeprefix(": "))


def _table(data: Json, name: str, where: str) -> Json:
    found = data.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{where} {name} is no table".strip())
    return cast("Json", found)


def _tables(data: Json, name: str) -> list[Json]:
    found: Value = data.get(name, [])
    if not isinstance(found, list) or any(
        not isinstance(one, dict) for one in cast("list[Value]", found)
    ):
        raise UserError(f"{name} is written [[{name}]]")
    return cast("list[Json]", found)


def _text(data: Json, name: str, where: str = "") -> str:
    found = data.get(name)
    if not isinstance(found, str) or not found:
        raise UserError(f"{where} has no {name}".strip())
    return found
