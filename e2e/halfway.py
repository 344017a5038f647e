"""The console command `halfway`: every command of `python -m microbench` and `python -m e2e`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

import microbench.__main__ as kernels_line
from e2e import __main__ as training_line
from kernels import OPS
from microbench import __version__
from microbench.command_line import SETTINGS, Program
from microbench.run_output import CONSOLE
from microbench.streams import run_app

# Sections of --help and their commands.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Measure kernels": (*(op for op in OPS if op in kernels_line.app.commands), "payoff", "layers"),
    "Measure training": ("train", "predict", "stalls", "loader", "list"),
    "Repeat published experiments": ("study",),
    "Explain your own training": ("diagnose",),
    "Read run files": ("show", "report", "compare"),
    "Check the machine": ("doctor", "fleet"),
}  # fmt: skip
OF_DEV = ("explain",)


class Sections(Program):
    """A group whose --help lists its commands under titles."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands of each section, with their one-line help."""
        width = max(len(name) for name in self.commands)
        for title, names in SECTIONS.items():
            rows = [
                (name.ljust(width), self.commands[name].get_short_help_str(limit=72))
                for name in names
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text(f"More, by `halfway dev`: {', '.join(dev.commands)}.")


@click.group(cls=Sections, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="halfway")
def app() -> None:
    """Measure and explain low precision on a GPU, from kernels to training."""


@app.group(cls=Program, context_settings=SETTINGS)
def dev() -> None:
    """Explain old run files again."""


for _group in (kernels_line.app, training_line.app):
    for _name, _command in _group.commands.items():
        (dev if _name in OF_DEV else app).add_command(_command, _name)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code. A user's mistake is one line on stderr and code
    2.
    """
    return run_app(app, CONSOLE, arguments)


if __name__ == "__main__":
    sys.exit(main())
