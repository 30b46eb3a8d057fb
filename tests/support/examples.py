"""How many examples a property is held to: a third of them before each landing, all in `make check-long`."""

import os

_ALL = "ALL_EXAMPLES" in os.environ


def examples(count: int) -> int:
    """At most these."""
    return count if _ALL else max(count // 3, 5)
