"""What a structure of C is declared as here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ENDPOINT_BYTES = 64
"""Of an `address:port` with the zero that ends it."""
ENDPOINT = f"S{ENDPOINT_BYTES}"


class Struct(NamedTuple):
    """One of C's structures."""

    name: str
    says: str
    fields: tuple[tuple[str, Any, str], ...]
    """Name, type as NumPy names it, and what it says where the name does not."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """As NumPy has it."""
        return np.dtype([(name, kind) for name, kind, _ in self.fields], align=True)
