"""What goes wrong on the user's side: one line that says what and what to do, exit code 2."""


class UserError(Exception):
    """A mistake the user can mend. The message is one line."""


class NothingMeasured(Exception):
    """All that a run has tried has failed, and it has said why: exit code 1."""
