"""Which keys an emulated GPU has seen lately: their requests are cheaper, as on a real one with a prefix cache.

The law is the simulator's (`simulator/engine/README.md`, Cache): a table of so many places, in which a key stands at
its hash modulo their number, so that a new key replaces the one in its place. It stands in for real caches and is none.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path

HEADER = "x-routing-key"
"""Of a request: Triton hands it to the model as a parameter of that name (`--grpc-header-forward-pattern`)."""
_PLACE_BYTES = 8


def key_in(parameters: str) -> str:
    """The key among the parameters of a request, as the Python backend has them: JSON; empty: none."""
    if HEADER not in parameters.lower():
        return ""
    found = {name.lower(): value for name, value in json.loads(parameters).items()}
    return str(found.get(HEADER, ""))


class KeyCache:
    """Shared by all models of a worker through a file; whoever looks up holds the worker's GPU."""

    def __init__(self, path: Path, places: int, saving: float) -> None:
        """`places`: 0: no key is ever warm; `saving`: share of a request's work that a warm key saves.

        Raises:
            ValueError: a number is out of range; named, with the remedy.
        """
        if places < 0 or not 0 <= saving <= 1:
            raise ValueError(
                f"EMULATED_GPU_CACHE_KEYS={places} and EMULATED_GPU_CACHE_SAVING={saving:g}: give 0 or more keys, and "
                "a share from 0 to 1"
            )
        self._places, self._saving = places, saving
        self._table: mmap.mmap | None = None
        if places:
            with path.open("a+b") as file:
                file.truncate(places * _PLACE_BYTES)
                self._table = mmap.mmap(file.fileno(), places * _PLACE_BYTES)

    def work(self, key: str) -> float:
        """What is left of a request's work, 1 where its key is not warm; it is from now on."""
        if self._table is None or not key:
            return 1.0
        mark = hashlib.blake2b(key.encode(), digest_size=_PLACE_BYTES).digest()
        first = int.from_bytes(mark, "big") % self._places * _PLACE_BYTES
        place = slice(first, first + _PLACE_BYTES)
        if self._table[place] == mark:
            return 1.0 - self._saving
        self._table[place] = mark
        return 1.0

    def close(self) -> None:
        """Let go of the file."""
        if self._table is not None:
            self._table.close()
