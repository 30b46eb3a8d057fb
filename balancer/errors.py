"""Errors that the operator can mend, shown as a message and not as a traceback."""

from collections.abc import Callable, Iterable


class OperatorError(Exception):
    """Something that whoever started the program can mend; the message says what is wrong, where, and how."""


def missing(checks: Iterable[Callable[[], object]]) -> str:
    """The messages of all checks that raise OperatorError, a line each: who installs wants them at once."""
    messages = []
    for check in checks:
        try:
            check()
        except OperatorError as error:
            messages.append(str(error))
    return "\n".join(messages)
