"""A fleet's block in a file, as other processes map it, and what the header for C says of it."""

import mmap
from pathlib import Path

import numpy as np
from support.blocks import fleet_states_in

from balancer.kernel.block import HEADER
from balancer.kernel.compiled import call
from balancer.kernel.compiled.header import header_of
from balancer.kernel.compiled.library import PATH, Compiled, Library, stamp
from balancer.kernel.settings import Settings
from balancer.native.state import in_file
from balancer.scheduler.events import WorkerAdded
from balancer.scheduler.router import Router
from policies import BUILTIN

HEADER_FILE = PATH.with_suffix(".h")


def test_a_fleet_that_outgrows_its_block_takes_the_path_with_another(tmp_path: Path) -> None:
    path = tmp_path / "fleet_state"
    shared = Router(BUILTIN["least_requests"](), Settings(), kernel=Compiled(Library(), in_file(path)))
    shared.observe(WorkerAdded("w0"), 0.0)
    with path.open("r+b") as file:
        before = mmap.mmap(file.fileno(), 0)
    assert np.frombuffer(before, HEADER, 1)[0]["in_force"]
    for number in range(1, 40):
        shared.observe(WorkerAdded(f"w{number}"), 1.0)
    shared.fleet.sent("w39", 1, 2.0, 1.0)
    assert not np.frombuffer(before, HEADER, 1)[0]["in_force"]
    found = fleet_states_in(bytearray(path.read_bytes()))
    np.testing.assert_array_equal(found.queue.in_flight, shared.fleet.queue.in_flight)
    assert found.queue.in_flight.sum() == 1
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0


def test_the_header_is_of_the_present_declarations() -> None:
    text = HEADER_FILE.read_text(encoding="utf-8")
    begin = text[: text.index("/* Of the library")]
    assert header_of({}, stamp(), Router(BUILTIN["wlpr"](), Settings()).fleet).startswith(begin)


def test_every_slot_of_a_call_is_declared_where_it_lies() -> None:
    assert [getattr(call, name) for name in call.DECLARED] == list(range(call.FALLBACKS + 1))
    text = HEADER_FILE.read_text(encoding="utf-8")
    assert f"int64_t fallbacks[{call.SLOTS - call.FALLBACKS}];" in text
    assert f"double report_batches[{call.MOST_BATCHES}]" in text
