"""Keyword arguments of a function as words of the command line, so that both mean the same."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import click

from kernels.error_words import suggest
from microbench.errors import UserError

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
