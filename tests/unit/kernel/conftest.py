from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz.request import READER
from support.c_programs import SANITIZED, compiled
from support.understand import PROGRAM, Reader


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The module's reader of requests, with sanitizers that end it at the first mistake."""
    program = compiled(tmp_path_factory.mktemp("module") / "understand", *SANITIZED, PROGRAM, *READER)
    with Reader(program) as running:
        yield running
