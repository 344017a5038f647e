"""Errors that end a command with a message and an exit code instead of a traceback."""


class UserError(Exception):
    """A mistake that the user can fix: one line with the value and the choices. Exit code 2."""


class NothingMeasured(Exception):
    """Nothing could be measured: `str()` or the report has the reasons. Exit code 1."""
