"""Errors that end a command with a message and an exit code instead of a traceback."""


class UserError(Exception):
    """A mistake that the user can fix: one line with the value and the choices. Exit code 2."""


class NothingMeasured(Exception):
    """Every case that a run tried has failed; the report gives the reasons. Exit code 1."""
