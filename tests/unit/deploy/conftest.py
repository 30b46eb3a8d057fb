"""Helm, or a reason to skip."""

from __future__ import annotations

import pytest
from support.chart import why_absent


@pytest.fixture(autouse=True)
def _helm() -> None:
    if why := why_absent():
        pytest.skip(why)
