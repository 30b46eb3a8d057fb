"""Helm, or a reason to skip."""

import pytest
from support.chart import why_absent


@pytest.fixture(autouse=True)
def _helm() -> None:
    if why := why_absent():
        pytest.skip(why)
