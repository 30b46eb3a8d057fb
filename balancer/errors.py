"""Errors that the operator can mend, shown as a message and not as a traceback."""

from __future__ import annotations


class OperatorError(Exception):
    """Something that whoever started the program can mend; the message says what is wrong, where, and how."""
