"""How many examples Hypothesis tries: a third of them in `make test`, all in `make check-long`, to save CI's time."""

import os

_ALL = "ALL_EXAMPLES" in os.environ


def examples(count: int) -> int:
    """`count`, if `ALL_EXAMPLES` is set; else a third of it, but at least 5."""
    return count if _ALL else min(count, max(count // 3, 5))
