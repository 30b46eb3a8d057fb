from collections.abc import Iterator

import pytest
from support.understand import Reader, reader_program


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The module's reader of requests, with sanitizers that end it at the first mistake."""
    with Reader(reader_program(tmp_path_factory.mktemp("module") / "understand")) as running:
        yield running
