"""Words of a command that were not typed: from the run file to resume, or from keywords."""

from __future__ import annotations

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

SCREEN = ("json", "chart", "html", "overwrite", "verbose", "quiet")  # of a call, not of a run
# Commands with --resume, as run files keep them; a word that is none is a network to train.
COMMANDS = (
    "gemm", "conv", "payoff", "layers", "train", "predict", "stalls", "loader",
)  # fmt: skip
IMPLIED = "train"
# Options whose values may have a path after the colon: "folder:/data/imagenet".
PLACES = {"data": ("folder", "cifar10"), "network": ("hf",), "network_name": ("hf",)}
FILES = ("weights", "shapes")  # paths, of which a run file has the name
NO_NETWORK = "no NETWORK given, for example resnet50 (`halfway list`) or your own module:function"


class Named(click.Argument):
    """An argument that is required, unless --resume takes it from the run file."""

    def __init__(self, *words: Any, **said: Any) -> None:
        super().__init__(*words, **{**said, "required": False})


class Command(click.Command):
    """A command that applies switches, and with --resume continues the run file's own command.

    `either` are sets of alternative options: where one is given, none of the others is taken from
    the run file.
    """

    either: ClassVar[Sequence[frozenset[str]]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, then apply switches and --resume.

        UsageError for options that conflict or are missing, UserError for a run file whose command
        is not enough to continue with.
        """
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if isinstance(param, Switch) and ctx.params.pop(str(param.name)):
                _set_switch(ctx, param)
        if not ctx.resilient_parsing:
            if ctx.params.get("resume"):
                self._take_from(ctx, ctx.params["resume"])
            for param in self.params:
                if isinstance(param, Named) and ctx.params[str(param.name)] is None:
                    raise _missing(ctx, param)
        return rest

    def check_taken(self, path: Path, name: str, value: Any) -> None:
        """UserError for a folder or file of which the run file has the name only."""
        if name in FILES and not Path(value).exists():
            given = f"--{name} PATH/{Path(value).name}"
            raise UserError(f"--resume {path} keeps no paths: give {given}")
        kind, colon, place = str(value).partition(":")
        if colon and kind in PLACES.get(name, ()) and not Path(place).exists():
            option = "--data" if name == "data" else "NETWORK"
            raise UserError(f"--resume {path} keeps no paths: give {option} {kind}:PATH/{place}")

    def _take_from(self, ctx: click.Context, path: Path) -> None:
        """Take what was not written from the command that a run file keeps."""
        given = {name for name in ctx.params if _is_given(ctx, name)}
        known = self._kept(path, alone=given <= {"resume", *SCREEN})
        for names in self.either:
            given |= names if names & given else set()
        for name, value in known.items():
            if name not in given and name not in SCREEN:
                self.check_taken(path, name, value)
                ctx.params[name] = value
                ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)

    def _kept(self, path: Path, *, alone: bool) -> dict[str, Any]:
        """The options that the command of a run file was given; none where it is of another one.

        `alone`: nothing else says what to measure, so that a command which is not understood is a
        UserError. A file that cannot be read is what the command complains about.
        """
        words = _words_kept(path)
        if words is None:
            return {}
        first, *rest = words or [""]
        if first.removesuffix("-predictions") == self.name:
            words = rest
        elif first in COMMANDS or self.name != IMPLIED:
            if alone and first not in COMMANDS:
                raise UserError(f"--resume {path} keeps no command; give its options too")
            return {}
        try:
            found = self.make_context(str(self.name), list(words))
        except (click.ClickException, click.exceptions.Exit) as error:
            if not alone:
                return {}
            why = error.format_message() if isinstance(error, click.ClickException) else "--help"
            raise UserError(
                f"--resume {path}: its command is not understood ({' '.join(why.split())}); give "
                "its options too"
            ) from None
        return {name: value for name, value in found.params.items() if _is_given(found, name)}


def _missing(ctx: click.Context, param: click.Parameter) -> click.ClickException:
    path = ctx.params.get("resume")
    if path is None:
        return click.UsageError(NO_NETWORK, ctx=ctx)
    return click.UsageError(f"--resume {path} names no {param.metavar}; give it too", ctx=ctx)


def _set_switch(ctx: click.Context, switch: Switch) -> None:
    of, value = switch.stands_for
    if _is_given(ctx, of.name) and ctx.params[of.name] != value:
        word, other = switch.opts[0], f"{of.words} {ctx.params[of.name]}"
        raise click.UsageError(f"{word} is {of.words} {value}: leave out {other}", ctx=ctx)
    ctx.params[of.name] = value
    ctx.set_parameter_source(of.name, ParameterSource.COMMANDLINE)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _words_kept(path: Path) -> list[str] | None:
    """What followed the program's name in the command of a run file; None for no run file."""
    try:
        document: Any = read_json_file(path)
        command: list[Any] = document["command"]
        words = [str(word) for word in command]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return words[3:] if words[:2] == ["python", "-m"] else words[1:]


# ---------------------------------------------------------------- from keyword arguments

WORDS = "halfway.words"  # in a context's `meta`: what stands for the words of sys.argv
Option = tuple[click.Option, str]  # and the word that a keyword stands for


@contextmanager
def called(
    command: click.Command,
    arguments: Iterable[str | None],
    options: Mapping[str, Any],
    *,
    also: Mapping[str, str] = {},
    but: Iterable[str] = (),
) -> Generator[dict[str, Any]]:
    """What a command is asked by keywords, and while it runs, that these are its words.

    Keywords are the options and their other spellings with "_" for "-"; `also` has more, `but` are
    options that a function lacks. None is not asked; a function prints nothing unless quiet=False.
    TypeError for an unknown keyword, UserError for a value that means nothing.
    """
    known = {key: one for key, one in _spelled(command).items() if key not in set(but)}
    known |= {key: known[name] for key, name in also.items()}
    words = [str(command.name), *(one for one in arguments if one is not None)]
    by: dict[str, str] = {}
    for key, value in options.items():
        if key not in known:
            raise TypeError(f"no option {key!r}{suggest(key, known)}")
        if value is None:
            continue
        option, word = known[key]
        other = by.setdefault(str(option.name), key)
        if other != key:
            raise UserError(f"{other} and {key} are one option: give one of them")
        words += _written(key, value, option, word)
    try:
        context = command.make_context(words[0], words[1:])
    except click.ClickException as error:
        raise UserError(" ".join(error.format_message().split())) from None
    if options.get("quiet") is None:
        context.params["quiet"] = True
    context.meta[WORDS] = words
    with context.scope():
        yield context.params


def _spelled(command: click.Command) -> dict[str, Option]:
    """Each keyword of a command."""
    found: dict[str, Option] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            for word in (*param.opts, *param.secondary_opts):
                found[word.lstrip("-").replace("-", "_")] = param, word
            found.setdefault(str(param.name), (param, param.opts[0]))
    return found


def _written(key: str, value: Any, option: click.Option, word: str) -> list[str]:
    """A keyword and its value as words."""
    if not option.is_flag:
        return [word, _text(value, "x" if option.name == "input" else ",")]
    if not isinstance(value, bool):
        raise UserError(f"{key} takes True or False, not {value!r}")
    return [word] if value else list(option.secondary_opts[:1])


def _text(value: Any, between: str = ",") -> str:
    """Lists with commas; a tuple in a list, or a shape, with "x"."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    return between.join(_text(part, "x") for part in cast("Iterable[object]", value))
