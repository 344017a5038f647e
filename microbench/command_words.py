"""Options that were not typed: those of the run file to resume, or a function's keywords.

Both are defaults of the command (click's `default_map`): click reads, checks and counts them as if
they were typed, and what is typed comes before them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import click
from click.core import ParameterSource

from kernels.error_words import suggest
from kernels.files import read_json_file
from microbench.command_line import Switch
from microbench.errors import UserError

# Of a call, not of a run.
SCREEN = ("json", "chart", "html", "overwrite", "verbose", "quiet")
# Options whose values may have a path after the colon: "folder:/data/imagenet".
PLACES = {"data": ("folder", "cifar10"), "network": ("hf",), "network_name": ("hf",)}
FILES = ("weights", "shapes")  # paths, of which a run file has the name
NO_NETWORK = "no NETWORK given, for example resnet50 (`halfway list`) or your own module:function"


class Named(click.Argument):
    """An argument that is required, unless --resume takes it from the run file."""

    def __init__(self, *words: Any, **said: Any) -> None:
        super().__init__(*words, **{**said, "required": False})


class Command(click.Command):
    """A command that applies switches, and with --resume takes the options of the run file.

    `either` are sets of alternative options: where one is given, none of the others is taken from
    the run file.
    """

    either: ClassVar[Sequence[frozenset[str]]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then apply --resume and switches.

        UsageError for options that conflict or are missing, UserError for a run file whose options
        are not enough to continue with.
        """
        rest = super().parse_args(ctx, list(args))
        path = None if ctx.resilient_parsing else ctx.params.get("resume")
        if path:
            given = {name for name in ctx.params if is_given(ctx, name)}
            ctx.default_map = {**self._kept(path, given), **(ctx.default_map or {})}
            ctx.params.clear()
            rest = super().parse_args(ctx, list(args))
        for param in self.params:
            if isinstance(param, Switch) and ctx.params.pop(str(param.name)):
                _set_switch(ctx, param)
            if isinstance(param, Named) and not is_given(ctx, str(param.name)):
                why = f"--resume {path} names no {param.metavar}; give it too"
                if not ctx.resilient_parsing:
                    raise click.UsageError(why if path else NO_NETWORK, ctx=ctx)
        return rest

    def check_taken(self, path: Path, name: str, value: Any) -> None:
        """UserError for a folder or file of which the run file has the name only."""
        if name in FILES and not Path(str(value)).exists():
            given = f"--{name} PATH/{Path(str(value)).name}"
            raise UserError(f"--resume {path} keeps no paths: give {given}")
        kind, colon, place = str(value).partition(":")
        if colon and kind in PLACES.get(name, ()) and not Path(place).exists():
            option = "--data" if name == "data" else "NETWORK"
            raise UserError(f"--resume {path} keeps no paths: give {option} {kind}:PATH/{place}")

    def _kept(self, path: Path, given: set[str]) -> dict[str, Any]:
        """The options of a run file that are to be taken; none where it is of another command.

        UserError where it keeps none and nothing else says what to measure. A file that cannot be
        read is what the command complains about.
        """
        try:
            document: Any = read_json_file(path)
            kind, options = document.get("kind"), document.get("options")
        except (OSError, ValueError, AttributeError):
            return {}
        if not isinstance(options, dict) or not kind:
            if given <= {"resume", *SCREEN}:
                raise UserError(
                    f"--resume {path} is of an older version, which kept no options; give them too"
                )
            return {}
        if kind != self.name:
            return {}
        for names in self.either:
            given |= names if names & given else set()
        known = {str(param.name) for param in self.params} - given - {"resume", *SCREEN}
        taken = {n: v for n, v in cast("dict[str, Any]", options).items() if n in known}
        for name, value in taken.items():
            if not isinstance(value, str | int | float):
                raise UserError(f"{path} is damaged or not a halfway file: options.{name}")
            self.check_taken(path, name, value)
        return taken


class Program(click.Group):
    """A group of commands that cannot be started within itself, by naming it as a network."""

    command_class = Command

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


def _set_switch(ctx: click.Context, switch: Switch) -> None:
    of, value = switch.of, switch.value
    if is_given(ctx, of.name) and ctx.params[of.name] != value:
        word, other = switch.opts[0], f"{of.words} {ctx.params[of.name]}"
        raise click.UsageError(f"{word} is {of.words} {value}: leave out {other}", ctx=ctx)
    ctx.params[of.name] = value
    ctx.set_parameter_source(of.name, ParameterSource.COMMANDLINE)


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
    but: Iterable[str] = (),
) -> Generator[dict[str, Any]]:
    """What a command is asked by keywords, and while it runs, that it is the command that runs.

    Keywords are the options and their other spellings with "_" for "-"; `also` has more, `but` are
    options that a function lacks. None is not asked; a function prints nothing unless quiet=False.
    TypeError for an unknown keyword, UserError for a value that means nothing.
    """
    known = {key: one for key, one in _spelled(command).items() if key not in set(but)}
    known |= {key: known[name] for key, name in also.items()}
    positional = [one for one in arguments if one is not None]
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
        context = command.make_context(str(command.name), positional, default_map=given)
    except click.ClickException as error:
        raise UserError(" ".join(error.format_message().split())) from None
    if options.get("quiet") is None:
        context.params["quiet"] = True
    with context.scope():
        yield context.params


def _spelled(command: click.Command) -> dict[str, tuple[click.Option, str]]:
    """Each keyword of a command, with the option and the word that it stands for."""
    found: dict[str, tuple[click.Option, str]] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            for word in (*param.opts, *param.secondary_opts):
                found[word.lstrip("-").replace("-", "_")] = param, word
            found.setdefault(str(param.name), (param, param.opts[0]))
    return found


def _text(value: Any, between: str = ",") -> str:
    """Lists with commas; a tuple in a list, or a shape, with "x"."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    return between.join(_text(part, "x") for part in cast("Iterable[object]", value))
