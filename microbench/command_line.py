"""The parts that all command lines share: options declared as fields, and commands that have them.

An option is one field of a dataclass: `choice(its_default, "Its help")`. The click option, the
check of its value and what a resumed run must agree on are derived from it. Options that were not
typed, those of the run file to resume or a function's keywords, are defaults of the command
(click's `default_map`): click reads, checks and counts them as if they were typed, and what is
typed comes before them.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast, get_args, get_type_hints

import click
from click.core import ParameterSource

from kernels.files import read_json_file
from kernels.messages import suggest
from kernels.precision import ALIASES, PRECISIONS
from microbench.errors import UserError

FILE = click.Path(path_type=Path)
ALL = "--help-all"
SETTINGS: Any = {
    "help_option_names": ["-h", "--help", ALL], "max_content_width": 100, "show_default": True
}  # fmt: skip
OPTION = "option"  # the key of a field's metadata
MAX_SEED = 2**31
MAX_PROCESSES = 100

Check = Callable[[str, Any], None]  # the option as it is written, its value; raises UserError


class Schema(Protocol):
    """A dataclass whose fields may be options."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, kw_only=True)
class Option:
    """A field as a command-line option.

    `written` is the option's text, where it is not the field's name. Where it is `kept`, the run
    file has the value, and --resume must be given the same. `options_of` fills in what the field
    says; a default of None means that it depends.
    """

    help: str
    written: str = ""
    check: Check | None = None
    kept: bool = False
    name: str = ""
    default: Any = None
    type: Any = None

    @property
    def words(self) -> str:
        """The option as typed: "--label-smoothing"."""
        return self.written or "--" + self.name.replace("_", "-")

    def click(self, **changes: Any) -> Callable[..., Any]:
        """The click option; `changes` replace its help, default or type for one command."""
        words: dict[str, Any] = {"default": self.default, "help": self.help}
        if self.type is bool:
            words |= {"is_flag": True, "show_default": False}
        else:
            words["type"] = FILE if self.type is Path else self.type
        return click.option(self.words, self.name, **(words | changes))


def choice(default: Any, help: str, **changes: Any) -> Any:
    """A field of a dataclass that is an option; `changes` are fields of `Option`."""
    return field(default=default, metadata={OPTION: Option(help=help, **changes)})


@cache
def options_of(*schemas: type[Schema]) -> Mapping[str, Option]:
    """The options of dataclasses, by name, in the order of the fields."""
    options: dict[str, Option] = {}
    for schema in schemas:
        hints = get_type_hints(schema)
        for entry in fields(schema):
            if OPTION in entry.metadata:
                kind, *_ = get_args(hints[entry.name]) or (hints[entry.name],)  # of str | None, str
                made: Option = entry.metadata[OPTION]
                options[entry.name] = replace(
                    made, name=entry.name, default=entry.default, type=kind
                )
    return options


def check_options(words: Mapping[str, Any], *schemas: type[Schema]) -> None:
    """UserError for the first invalid value; None, an option not given, is not checked."""
    for option in options_of(*schemas).values():
        if option.check is not None and words.get(option.name) is not None:
            option.check(option.words, words[option.name])


def filled(schema: type[S], words: Mapping[str, Any], **others: Any) -> S:
    """The dataclass made from those words that are its fields, and from others."""
    known = {entry.name: words[entry.name] for entry in fields(schema) if entry.name in words}
    return schema(**(known | others))


def kept(*asked: Schema) -> dict[str, Any]:
    """The options that the run file keeps, and that --resume must be given again."""
    return {
        name: getattr(schema, name)
        for schema in asked
        for name, option in options_of(type(schema)).items()
        if option.kept
    }


def at_least(least: int, most: int | None = None) -> Check:
    """A check, raising UserError, that a number is at least `least`, and not above `most`."""

    def check(name: str, value: int) -> None:
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UserError(f"{name} must be {limits}, not {value}")

    return check


check_processes = at_least(1, MAX_PROCESSES)
check_seed = at_least(0, MAX_SEED - 1)


def one_of(choices: Sequence[str]) -> Check:
    """A check, raising UserError, that a word is one of the choices."""

    def check(name: str, value: str) -> None:
        if value not in choices:
            raise UserError(f"{name} must be one of {', '.join(choices)}, not {value!r}")

    return check


def above_0(most: float = sys.float_info.max) -> Check:
    """A check, raising UserError, that a number is above 0, and not above `most`."""

    def check(name: str, value: float) -> None:
        if not 0 < value <= most:
            limit = f", at most {most:.0f}" if most < sys.float_info.max else ""
            raise UserError(f"{name} must be above 0{limit}, not {value:g}")

    return check


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where a run is written and shown, as given on the command line."""

    json: Path | None = choice(
        None, "Run file to write; - is stdout  [default: in the state folder]"
    )
    overwrite: bool = choice(False, "Replace that file where it exists")
    resume: Path | None = choice(None, "Continue this run file: measure what it lacks")
    verbose: bool = choice(False, "Show all rows and every explanation")
    quiet: bool = choice(False, "Print errors only")


class Override:
    """An option whose help, default or type differs in one command."""

    def __init__(self, name: str, **changes: Any) -> None:
        self.name, self.changes = name, changes


OptionRow = str | Override | Callable[..., Any]  # of a schema, or a click option


def click_options(rows: Sequence[OptionRow], *schemas: type[Schema]) -> Callable[..., Any]:
    """A decorator that gives a command these options, in this order."""
    known = options_of(*schemas)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for row in reversed(rows):
            if isinstance(row, Override):
                add = known[row.name].click(**row.changes)
            else:
                add = known[row].click() if isinstance(row, str) else row
            command = add(command)
        return command

    return decorate


# ---------------------------------------------------------------- words


EXIT = "Exit codes: 0 measured, 1 nothing measured or your own code failed, 2 a mistake."
PYTHON = ".py"
SHOW = "halfway show"
# What other tools, and earlier versions, call an option or a command of ours.
FOREIGN = {
    "-b": "--batch", "--batch-size": "--batch", "-j": "--workers", "--num-workers": "--workers",
    "-o": "--json", "--output": "--json", "--precision": "--dtype", "--baseline": "--vs",
    "--channels-last": "--layout nhwc", "--autocast": "--amp", "--chart": f"{SHOW} FILE --chart",
    "--html": f"{SHOW} FILE --html PAGE", "--autotune": "--tune 24", "--no-tune": "--tune 0",
    "--other": "--base-args", "--verify": "--ladder", "bench": "gemm", "benchmark": "gemm",
    "help": "--help", "plot": "show FILE --chart", "profile": "diagnose", "explain": "dev explain",
}  # fmt: skip
# What run files of earlier versions have, if it was given, in place of an option and its value.
RETIRED = {"autotune": ("tune", 24), "no_tune": ("tune", 0)}
# Of a call, not of a run.
SCREEN = ("json", "overwrite", "verbose", "quiet")
# Options whose values may have a path after the colon: "folder:/data/imagenet".
PLACES = {"data": ("folder", "cifar10"), "network": ("hf",), "network_name": ("hf",)}
TIMM = "timm"  # a package of networks: "timm:NAME" is no function
FILES = ("shapes",)  # paths, of which a run file has the name
NO_NETWORK = "no NETWORK given, for example resnet50 (`halfway list`) or your own module:function"
# An argument that --resume may take from the run file; without that it is required.
NETWORK: Any = {"metavar": "NETWORK", "required": False}


class Command(click.Command):
    """A command that with --resume takes the options of the run file.

    `first` are the options that --help shows, by title; --help-all shows the others too. `either`
    are sets of alternative options: where one is given, none of the others is taken from the run
    file. `values` are words that say which option they are for: "fp16" is for --dtype.
    """

    allow_extra_args = True  # it refuses them itself, and says what was perhaps meant
    either: ClassVar[Sequence[frozenset[str]]] = ()
    values: ClassVar[Mapping[str, Collection[str]]] = {"dtype": (*PRECISIONS, *ALIASES)}

    def __init__(self, *words: Any, first: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*words, **{"epilog": EXIT if first else "", **more})
        self._first = first or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options that most need, under their titles; with --help-all the others too."""
        others = "Others" if self._first else "Options"
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in self._first}
        for param in self.get_params(ctx):
            named = (title for title, names in self._first.items() if param.name in names.split())
            if isinstance(param, click.Option) and (shown := param.get_help_record(ctx)):
                sections.setdefault(next(named, others), []).append(shown)
        more = [] if ctx.meta[ALL] or not self._first else sections.pop(others)
        for title, shown in filter(operator.itemgetter(1), sections.items()):
            with formatter.section(title):
                formatter.write_dl(shown)
        if more:
            formatter.write_paragraph()
            formatter.write_text(f"{ALL} shows {len(more)} more.")

    def meant(self, word: str) -> str:
        """What an unknown word was perhaps meant to be: "; did you mean --batch?"."""
        known = [word for param in self.params for word in (*param.opts, *param.secondary_opts)]
        near = FOREIGN.get(word, "")
        if near.partition(" ")[0] in known or near.startswith(SHOW):
            return f"; did you mean {near}?"
        for name, values in self.values.items():
            if (value := word.lstrip("-").lower()) in values and f"--{name}" in known:
                return f"; did you mean --{name} {value}?"
        return suggest(word, known)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then apply --resume.

        UsageError for what is unknown, conflicts or is missing, UserError for a run file whose
        options are not enough to continue with.
        """
        ctx.meta[ALL] = ALL in args
        try:
            rest = super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            name = error.option_name
            why = f"{self.name} has no option {name}{self.meant(name)}"
            raise click.NoSuchOption(name, why, ctx=ctx) from None
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(f"{self.name} takes no {rest[0]!r}{self.meant(rest[0])}", ctx)
        path = None if ctx.resilient_parsing else ctx.params.get("resume")
        if path:
            given = {name for name in ctx.params if is_given(ctx, name)}
            ctx.default_map = {**self._kept(path, given), **(ctx.default_map or {})}
            ctx.params.clear()
            rest = super().parse_args(ctx, list(args))
        names = (str(param.name) for param in self.params if param.metavar == NETWORK["metavar"])
        if not ctx.resilient_parsing and not all(is_given(ctx, name) for name in names):
            why = f"--resume {path} names no NETWORK; give it too"
            raise click.UsageError(why if path else NO_NETWORK, ctx=ctx)
        return rest

    def _kept(self, path: Path, given: set[str]) -> dict[str, Any]:
        """The options of a run file that are to be taken; none where it is of another command.

        UserError where it keeps none, or one that is retired. A file that cannot be read is what
        the command complains about.
        """
        try:
            document: Any = read_json_file(path)
            kind, options = document.get("kind"), document.get("options")
        except (OSError, ValueError, AttributeError):
            return {}
        if not isinstance(options, dict) or not kind:
            raise UserError(
                f"--resume {path} is of an older version, which kept no options; start a new run"
            )
        if kind != self.name:
            return {}
        for names in self.either:
            given |= names if names & given else set()
        known = {str(param.name) for param in self.params}
        written: Iterable[tuple[str, Any]] = cast("dict[str, Any]", options).items()
        words: dict[str, Any] = dict(RETIRED.get(name, (name, value)) for name, value in written)
        if lost := words.keys() - known:
            name = min(lost).replace("_", "-")
            raise UserError(f"--resume {path}: --{name} is of another version; start a new run")
        left = known - given - {"resume", *SCREEN}
        taken = {name: value for name, value in words.items() if name in left}
        for name, value in taken.items():
            if not isinstance(value, str | int | float):
                raise UserError(f"{path} is damaged or not a halfway file: options.{name}")
            kind, _, place = str(value).rpartition(":")  # of a folder or a file, the name alone
            if (name in FILES or kind in PLACES.get(name, ())) and not Path(place).exists():
                option = "NETWORK" if name.startswith("network") else f"--{name}"
                lacking = f"{kind}:PATH/{place}" if kind else f"PATH/{place}"
                raise UserError(f"--resume {path} keeps no paths: give {option} {lacking}")
        return taken


class Program(click.Group):
    """A group of commands that cannot be started within itself, by naming it as a network."""

    command_class = Command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click has it. UsageError for an unknown command, with what was perhaps meant."""
        name = args[0]
        if name in self.commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        program, near = ctx.command_path, FOREIGN.get(name)
        if name.endswith(PYTHON):
            near = f"diagnose {name}"
        hint = f"; did you mean {program} {near}?" if near else suggest(name, self.commands)
        why = f"no command {name!r}{hint or f'; `{program} --help` lists them'}"
        raise click.UsageError(why, ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click has it. RuntimeError within a command of ours; another program may call it."""
        around = click.get_current_context(silent=True)
        if around is not None and isinstance(around.find_root().command, Program):
            raise RuntimeError("a command cannot start the program within itself")
        return super().main(*args, **kwargs)


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether an option was typed, was a keyword, or is of the run file to resume."""
    source = ctx.get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


# ---------------------------------------------------------------- to a run file, and to people


def given(ctx: click.Context) -> dict[str, Any]:
    """The options that say what a command measures, as far as they were given."""
    left_out = ("resume", "out", *SCREEN)
    return {
        name: value
        for name, value in ctx.params.items()
        if name not in left_out and value is not None and is_given(ctx, name)
    }


def without_folder(name: str, value: Any) -> Any:
    """An option's value as a run file has it, which names no local path: of a file the name, of
    "folder:/data/imagenet" "folder:imagenet".
    """
    if isinstance(value, Path) or name in FILES:
        return Path(str(value)).name
    if not isinstance(value, str):
        return value
    kind, sign, path = value.partition(":" if ":" in value else "=")
    return f"{kind}{sign}{os.path.basename(os.path.normpath(path))}" if "/" in path else value


def check_there(name: str, option: str = "network") -> None:
    """UserError for a path or a module that an option names and that is not there.

    Nothing is imported: torch takes seconds.
    """
    kind, colon, path = name.partition(":")
    if kind in PLACES[option]:
        if not Path(path).expanduser().exists():
            raise UserError(f"{name}: no such file or folder")
    elif kind == TIMM:
        if not find_spec(TIMM):
            raise UserError(f"{name} needs timm: pip install timm")
    elif colon and kind.replace(".", "").isidentifier() and not kind.endswith(PYTHON):
        outermost = kind.partition(".")[0]
        here = PathFinder.find_spec(outermost, [os.getcwd()])
        if not (outermost in sys.modules or here or find_spec(outermost)):
            raise UserError(f"{name}: no module {outermost!r} here or among the installed packages")


def typed(command: click.Command, options: Mapping[str, Any]) -> list[str]:
    """A command as it would be typed."""
    positional, words = list[str](), list[str]()
    for param in command.params:
        value = options.get(str(param.name))
        if value is None:
            continue
        if isinstance(param, click.Argument):
            positional.append(str(value))
        elif isinstance(param, click.Option) and param.is_flag:
            words += (param.opts if value else param.secondary_opts)[:1]
        else:
            words += [param.opts[0], f"{value:g}" if isinstance(value, float) else str(value)]
    return [str(command.name), *positional, *words]


# ---------------------------------------------------------------- from keyword arguments


@contextmanager
def called(
    command: click.Command,
    arguments: Iterable[str | None],
    options: Mapping[str, Any],
    *,
    also: Mapping[str, str] = {},
) -> Generator[dict[str, Any]]:
    """What a command is asked by keywords, and while it runs, that it is the command that runs.

    Keywords are the options with "_" for "-"; `also` has more. None is not asked; a function prints
    nothing unless quiet=False. TypeError for an unknown keyword, UserError for a value that means
    nothing.
    """
    known = _spelled(command)
    known |= {key: known[name] for key, name in also.items()}
    positional = [argument for argument in arguments if argument is not None]
    given, by = dict[str, Any](), dict[str, str]()
    for key, value in options.items():
        if key not in known:
            raise TypeError(f"no option {key!r}{suggest(key, known)}")
        if value is None:
            continue
        option, word = known[key]
        name = str(option.name)
        if by.setdefault(name, key) != key:
            raise UserError(f"{by[name]} and {key} are one option: give one of them")
        if not option.is_flag:
            given[name] = _text(value, "x" if name == "input" else ",")
        elif not isinstance(value, bool):
            raise UserError(f"{key} takes True or False, not {value!r}")
        else:
            given[name] = value == (word in option.opts)
    try:
        context = command.make_context(str(command.name), positional, default_map=given, **SETTINGS)
    except click.ClickException as error:
        raise UserError(" ".join(error.format_message().split())) from None
    if options.get("quiet") is None:
        context.params["quiet"] = True
    with context.scope():
        yield context.params


def _spelled(command: click.Command) -> dict[str, tuple[click.Option, str]]:
    """Each keyword of a command, with the option and the word that it stands for."""
    spellings: dict[str, tuple[click.Option, str]] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            for word in (*param.opts, *param.secondary_opts):
                spellings[word.lstrip("-").replace("-", "_")] = param, word
            spellings.setdefault(str(param.name), (param, param.opts[0]))
    return spellings


def _text(value: Any, between: str = ",") -> str:
    """Lists with commas; a tuple in a list, or a shape, with "x"."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    return between.join(_text(part, "x") for part in cast("Iterable[object]", value))
