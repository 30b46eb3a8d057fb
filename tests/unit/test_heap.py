"""Garbage that refers to itself does not pile up in a process that has settled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from balancer.heap import settle


class Connection:
    """Refers to itself, as the parts of a connection do to each other."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def settled() -> Iterator[None]:
    settle()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("settled")
def test_a_connection_that_lived_for_long_is_let_go_soon_after_it_ended() -> None:
    old = Connection()
    ended = weakref.ref(old)
    gc.collect(0)
    gc.collect(1)  # it has survived all but a full collection
    del old
    for _ in range(100_000):
        Connection()
        if ended() is None:
            return
    pytest.fail("100,000 connections later it is still there")
