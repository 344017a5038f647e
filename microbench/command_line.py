"""What all command lines share: options declared as fields, and how a program ends.

An option is one field of a dataclass: `field(default=..., metadata=option("Its help"))`. The click
option, the check of its value and what a resumed run must agree on are derived from it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from microbench.errors import NothingMeasured, UserError

FILE = click.Path(path_type=Path)
OPTION = "option"  # the key of a field's metadata
MAX_SEED = 2**31
AS_FIELD = object()  # in place of a default: the field's own

Check = Callable[[str, Any], None]  # the option as it is written, its value; raises UserError


class Schema(Protocol):
    """A dataclass whose fields may be options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field is asked for on a command line.

    `default` is what is asked where nothing is written, None where that decides itself; `type` what
    is read, where it is not the field's type; `written` the words of the option, where they are not
    the field's name. Where a run is `kept`, the run file holds the value, and --resume must be
    given the same.
    """

    name: str
    help: str
    default: Any = None
    type: Any = str
    written: str = ""
    check: Check | None = None
    kept: bool = False

    @property
    def words(self) -> str:
        """The option as it is written: "--label-smoothing"."""
        return self.written or "--" + self.name.replace("_", "-")

    def click(self, **changes: Any) -> Callable[..., Any]:
        """The click option; `changes` are what one command says otherwise (help, default, type)."""
        said: dict[str, Any] = {"default": self.default, "help": self.help, "type": self.type}
        said |= changes
        default = said["default"]
        words, name = self.words, self.name
        if said["type"] is bool:
            switch = "/" in words
            return click.option(
                words, name, is_flag=True, help=said["help"],
                **({"default": default} if switch else {}),
            )  # fmt: skip
        shown = default is not None
        if isinstance(default, float):
            said["default"] = f"{default:g}"  # as --help shows it
        return click.option(words, name, show_default=shown, **said)


def option(
    help: str,
    *,
    default: Any = AS_FIELD,
    type: Any = None,
    written: str = "",
    check: Check | None = None,
    kept: bool = False,
) -> dict[str, Any]:
    """Metadata that make a field an option; see `Option`."""
    said = {"default": default, "type": type, "written": written, "check": check, "kept": kept}
    return {OPTION: {"help": help, **said}}


@cache
def options_of(*schemas: type[Schema]) -> Mapping[str, Option]:
    """The options among the fields of dataclasses, by name, in the order of the fields."""
    return {option.name: option for schema in schemas for option in _options_of(schema)}


def _options_of(schema: type[Schema]) -> Iterator[Option]:
    hints = get_type_hints(schema)
    for one in fields(schema):
        said = dict(one.metadata.get(OPTION, {}))
        if not said:
            continue
        if said["default"] is AS_FIELD:
            said["default"] = None if one.default is MISSING else one.default
        said["type"] = said["type"] or _plain(hints[one.name])
        yield Option(name=one.name, **said)


def _plain(hint: Any) -> Any:
    """The type that is read for a field: without None, paths as click has them."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not type(None))
    return FILE if hint is Path else hint


def usual(*schemas: type[Schema]) -> dict[str, Any]:
    """What is asked where nothing is written."""
    return {option.name: option.default for option in options_of(*schemas).values()}


def check_options(words: Mapping[str, Any], *schemas: type[Schema]) -> None:
    """UserError for the first value that means nothing; None was not asked for."""
    for one in options_of(*schemas).values():
        if one.check is not None and words.get(one.name) is not None:
            one.check(one.words, words[one.name])


def filled(schema: type[S], words: Mapping[str, Any], **others: Any) -> S:
    """The dataclass with those of the words that are fields of it, and others."""
    known = {one.name: words[one.name] for one in fields(schema) if one.name in words}
    return schema(**(known | others))


def kept(*asked: Schema) -> dict[str, Any]:
    """What a run file holds of the options, and --resume must be given again."""
    return {
        name: getattr(one, name)
        for one in asked
        for name, option in options_of(type(one)).items()
        if option.kept
    }


def at_least(least: int) -> Check:
    """A check that a number is no smaller."""

    def check(name: str, value: int) -> None:
        if value < least:
            raise UserError(f"{name} must be at least {least}, not {value}")

    return check


def one_of(choices: Sequence[str]) -> Check:
    """A check that a word is one of the choices."""

    def check(name: str, value: str) -> None:
        if value not in choices:
            raise UserError(f"{name} must be one of {', '.join(choices)}, not {value!r}")

    return check


def check_budget(name: str, seconds: float) -> None:
    """UserError for a budget that no time can be taken with."""
    if not 0 < seconds < float("inf"):
        raise UserError(f"{name} must be more than 0 seconds, not {seconds:g}")


def check_seed(name: str, seed: int) -> None:
    """UserError for a seed that a generator does not take."""
    if not 0 <= seed < MAX_SEED:
        raise UserError(f"{name} must be a number from 0 to {MAX_SEED - 1}")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a run is written, drawn and shown, as given on the command line."""

    json: Path | None = field(
        default=None,
        metadata=option("Run file to write; - is stdout  [default: in the state folder]"),
    )
    csv: Path | None = field(default=None, metadata=option("Write the results as CSV"))
    chart: Path | None = field(default=None, metadata=option("Write a chart: .png, .svg or .html"))
    html: Path | None = field(
        default=None, metadata=option("Write an HTML page, one file, works offline")
    )
    resume: Path | None = field(
        default=None, metadata=option("Continue this run file: measure what is missing")
    )
    verbose: bool = field(default=False, metadata=option("Show all rows and every explanation"))
    quiet: bool = field(default=False, metadata=option("Print errors only"))


@dataclass(frozen=True)
class Said:
    """An option of which a command says something otherwise: help, default or type."""

    name: str
    changes: Mapping[str, Any]


Row = str | Said | Callable[..., Any]  # an option of a schema, or a click option of one command
REST = "..."  # stands for all options that no command lists


def said(name: str, **changes: Any) -> Said:
    """A row of a command whose option has another help, default or type than elsewhere."""
    return Said(name, changes)


def click_options(
    command: str, rows: Mapping[str, Sequence[Row]], *schemas: type[Schema]
) -> Callable[..., Any]:
    """A decorator that gives a command its options: its row of the table, in this order.

    REST stands for every option of the schemas that no row of the table names.
    """
    known = options_of(*schemas)
    named = {_name(row) for row in (row for one in rows.values() for row in one)}
    found: list[Callable[..., Any]] = []
    for row in rows[command]:
        if row == REST:
            found += [one.click() for name, one in known.items() if name not in named]
        elif isinstance(row, str):
            found.append(known[row].click())
        elif isinstance(row, Said):
            found.append(known[row.name].click(**row.changes))
        else:
            found.append(row)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        for add in reversed(found):
            decorated = add(decorated)
        return decorated

    return decorate


def _name(row: Row) -> str:
    return row if isinstance(row, str) else row.name if isinstance(row, Said) else ""


def run_app(app: click.Group, program: str, arguments: list[str] | None) -> int:
    """Run a command line; a user's mistake is one line on stderr and exit code 2.

    1 where all that a run has tried has failed, 130 where the user stopped it.
    """
    try:
        code = app(arguments, prog_name=program, standalone_mode=False)
    except UserError as error:
        return _complain(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(" ".join(error.format_message().split()), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except NothingMeasured:
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone; nothing is left to say
        return 1
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
