"""Garbage that refers to itself does not pile up in a process that has settled, and threads share one heap."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from balancer.server.malloc_trim import settle


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


HEAPS = """
import ctypes, sys, threading
from balancer.server import malloc_trim
if sys.argv[1] == "gathered":
    malloc_trim.gather()
ready = threading.Barrier(5)
def take():
    taken = bytes(10_000)
    ready.wait()
    ready.wait()
for _ in range(4):
    threading.Thread(target=take).start()
ready.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
ready.wait()
"""


def heaps(how: str) -> int:
    """Of the C library, in a process with four threads."""
    done = subprocess.run([sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


def test_threads_have_one_heap_between_them() -> None:
    assert heaps("gathered") == 1
    assert heaps("as they come") > 1
