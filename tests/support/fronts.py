"""Who decides, where what all front ends share keeps the promise: one in every run, the others in the long one."""

from pathlib import Path
from typing import Any

import pytest


def one_of(first: str, *rest: str) -> list[Any]:
    """Values of a parameter: the first in every run, the others in `make check-long` only."""
    return [first, *(pytest.param(other, marks=pytest.mark.long) for other in rest)]


def envoy_section(frontend: str, directory: Path) -> dict[str, Any]:
    """The section `envoy` of a stack in a directory, with Envoy's log there."""
    return {
        "access_log": str(directory / "envoy-access.log"),
        "frontend": frontend,
        "shared_folder": str(directory / "shared"),
    }


def frontend(first: str, *rest: str) -> pytest.MarkDecorator:
    """Of a test: with the first front end in every run, with the others in `make check-long` only."""
    return pytest.mark.parametrize("frontend", one_of(first, *rest))
