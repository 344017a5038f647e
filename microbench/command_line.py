"""What all command lines share: options that show their defaults, and how a program ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from microbench.errors import NothingMeasured, UserError

FILE = click.Path(path_type=Path)


def option(name: str, default: str | None, text: str, **more: Any) -> Callable[..., Any]:
    """An option that shows its default."""
    names = (name, more.pop("into")) if "into" in more else (name,)
    return click.option(
        *names, default=default, show_default=default is not None, help=text, **more
    )


def with_options(
    options: Sequence[Callable[..., Any]], command: Callable[..., Any]
) -> Callable[..., Any]:
    """The command with these options, in this order."""
    for add in reversed(options):
        command = add(command)
    return command


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
