"""What goes wrong on the user's side: one line that says what and what to do, exit code 2."""


class UserError(Exception):
    """A mistake the user can mend. The message is one line."""
