"""A process in C decides over a fleet's block as the balancer does, in every bit; what does not fit is refused."""

from __future__ import annotations

import math
import mmap
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.blocks import BlockError, fleet_states_in
from support.busy import MODELS, busy_report

from balancer.kernel.answers import Compiler, answering
from balancer.kernel.block import ENTRY, HEADER
from balancer.kernel.compiled import call
from balancer.kernel.compiled.call import symbol_of
from balancer.kernel.compiled.header import header_of
from balancer.kernel.compiled.library import PATH, Compiled, Library, stamp
from balancer.kernel.deciding import AT_ONCE, SHED
from balancer.kernel.fleet_state import FIELDS, options_block
from balancer.kernel.plain import Kernel, Picked
from balancer.kernel.settings import Settings
from balancer.native.folder import in_file
from balancer.scheduler.events import Finished, WorkerAdded
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import Policy, Request

WORKERS, DECISIONS = 21, 400
HEADER_FILE = PATH.with_suffix(".h")


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled as strictly as Envoy's module will be."""
    made = tmp_path_factory.mktemp("c") / "decide"
    strict = ("-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
    source = Path(__file__).with_name("decide.c")
    subprocess.run(["cc", *strict, "-I", PATH.parent, "-o", made, source, "-ldl"], check=True)
    return made


def begin(router: Router) -> None:
    """Workers with reports, requests in flight, outcomes, errors; some that went."""
    for number in range(WORKERS):
        router.observe(WorkerAdded(f"w{number}", weight=1.0 + number % 3), 0.0)
    for k in range(1, 4):
        for number in range(WORKERS):
            router.observe(busy_report(number, k), 0.1 * k)
    router.tick(0.35)
    for k in range(60):
        now_s = 0.4 + 0.001 * k
        decision = router.route(Request(MODELS[k % 3], rows=1.0 + k % 4), now_s)
        if k % 3 == 0:
            router.observe(Finished(decision.number, decision.worker, 0.004 * (1 + k % 5), k % 4 != 0), now_s)


class Shared(NamedTuple):
    """A fleet whose block is a file, and one alike that is not."""

    fleet_state: Path
    shared: Router
    own: Router


def fleets(folder: Path, kernel: Kernel) -> Shared:
    policy, settings = BUILTIN["least_requests"](), Settings()
    shared = Router(policy, settings, seed=5, kernel=Compiled(Library(), in_file(folder / "fleet_state")))
    own = Router(policy, settings, seed=5, kernel=kernel)
    begin(shared)
    begin(own)
    return Shared(folder / "fleet_state", shared, own)


def write_options(folder: Path, policy: Policy, router: Router) -> Path:
    found = answering(policy, Compiler())
    assert found is not None
    path = folder / policy.name
    options_block(found, router.fleet.block.room, symbol_of(found.name), in_file(path), stamp())
    return path


def asked(number: int) -> tuple[Request, float, set[str]]:
    """A request, when, and who may serve it."""
    request = Request(
        MODELS[number % 3],
        rows=1.0 + number % 5,
        key=number * 0x9E3779B97F4A7C15 % 2**64 if number % 4 == 0 else None,
        deadline_s=0.05 if number % 7 == 0 else math.inf,
        priority=number % 3,
    )
    return request, 0.5 + 0.0007 * number, {f"w{w}" for w in range(WORKERS) if (number + w) % 5 or w % 2}


def decided(router: Router, policies: Sequence[Policy]) -> tuple[list[str], list[Picked]]:
    """Each policy in turn: what C is to be asked, and what Python picks; counted in."""
    lines, picks = [], []
    fleet, kernel = router.fleet, router.fleet.kernel
    for number in range(DECISIONS):
        request, now_s, subset = asked(number)
        which = number % len(policies)
        view = router.view(request, now_s, subset)
        key, mask = request.key or 0, "".join("01"[int(may)] for may in view.mask)
        numbers = (request.rows.hex(), key, int(request.key is not None), request.deadline_s.hex(), request.priority)
        numbered = 2**40 + number
        lines.append(" ".join(map(str, (which, view.column, *numbers, numbered, now_s.hex(), kernel.seed, mask))))
        asked_for = router, policies[which], request, numbered, view.column, view.mask, now_s, AT_ONCE
        picks.append(kernel.decide(fleet, *asked_for))
    return lines, picks


def text_of(picked: Picked) -> tuple[object, ...]:
    return (SHED,) if picked.worker < 0 else (picked.worker, picked.propensity, *picked.fallbacks)


def read(line: str) -> tuple[object, ...]:
    row, *rest = line.split()
    return (int(row), *(float.fromhex(p) for p in rest[:1]), *map(int, rest[1:]))


def run(decide: Path, *arguments: Path, asked: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    told = "\n".join(asked)
    return subprocess.run([decide, *arguments], input=told, capture_output=True, text=True, check=False)


# In NumPy, `learned` adds up in another order.
@pytest.mark.parametrize(
    ("kernel", "names"),
    [(Kernel, sorted(set(BUILTIN) - {"learned"})), (lambda: Compiled(Library()), sorted(BUILTIN))],
    ids=["as plain Python", "as compiled"],
)
def test_c_decides_and_counts_as_python_does(
    decide: Path, tmp_path: Path, kernel: Callable[[], Kernel], names: list[str]
) -> None:
    policies = [BUILTIN[name]() for name in names]
    fleet_state, shared, own = fleets(tmp_path, kernel())
    options = [write_options(tmp_path, policy, shared) for policy in policies]
    lines, picks = decided(own, policies)
    done = run(decide, PATH, fleet_state, *options, asked=lines)
    assert done.returncode == 0, done.stderr
    assert [read(line) for line in done.stdout.splitlines()] == [text_of(picked) for picked in picks]
    assert len({picked.worker for picked in picks}) > WORKERS // 2
    # What C counted in, the fleet whose block it is has, without being told.
    assert shared.fleet.queue.in_flight.sum() == 40 + sum(picked.worker >= 0 for picked in picks)
    for record in ("queue", "service", "latency", "tokens", "caches"):
        for name, array in vars(getattr(own.fleet, record)).items():
            np.testing.assert_array_equal(getattr(getattr(shared.fleet, record), name), array, err_msg=name)


def test_another_process_in_python_calls_the_same_functions(tmp_path: Path) -> None:
    fleet_state, shared, own = fleets(tmp_path, Compiled(Library()))
    with fleet_state.open("r+b") as file:
        there = fleet_states_in(mmap.mmap(file.fileno(), 0), stamp())
    assert there.queue.in_flight.ctypes.data != shared.fleet.queue.in_flight.ctypes.data
    Compiled(Library()).take(there, 3, 1, 2.0, None, 0.6)
    own.fleet.sent("w3", 1, 2.0, 0.6)
    for name, array in vars(own.fleet.queue).items():
        np.testing.assert_array_equal(getattr(shared.fleet.queue, name), array, err_msg=name)


def change(path: Path, dtype: np.dtype[Any], start: int, /, **fields: object) -> None:
    content = bytearray(path.read_bytes())
    for name, value in fields.items():
        np.frombuffer(content, dtype, 1, start)[name] = value
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"magic": 1}, "no block"),
        ({"abi": 2}, "a block of another version"),
        ({"stamp": b"0123456789abcdef"}, "a block of other sources"),
        ({"kind": 2}, "a block of another kind"),
        ({"bytes": 1 << 62}, "a block longer than its memory"),
        ({"workers": WORKERS + 1}, "an array is not within the block"),
        ({"models": 1 << 31}, "an array is not within the block"),
    ],
)
def test_c_refuses_a_block_that_does_not_fit(decide: Path, tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    fleet_state, shared, _ = fleets(tmp_path, Kernel())
    options = write_options(tmp_path, BUILTIN["wlpr"](), shared)
    change(fleet_state, HEADER, 0, **fields)
    done = run(decide, PATH, fleet_state, options)
    assert (done.returncode, done.stdout) == (3, "")
    assert why in done.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 1 << 62},
        {"offset": 2**64 - 8},
        {"offset": 12},
        {"shape": (-1, 0, 0)},
        {"shape": (1 << 60, 1 << 60, 0)},
        {"strides": (8, 8, 8)},
        {"axes": 3},
        {"type": ord("b")},
    ],
)
@pytest.mark.parametrize("kind", ["fleet_state", "options"])
def test_c_refuses_arrays_that_leave_the_block(decide: Path, tmp_path: Path, kind: str, fields: dict[str, Any]) -> None:
    fleet_state, shared, _ = fleets(tmp_path, Kernel())
    options = write_options(tmp_path, BUILTIN["learned"](), shared)
    # An array of two axes in each.
    place, path = (list(FIELDS).index("queue.own_rows"), fleet_state) if kind == "fleet_state" else (1, options)
    change(path, ENTRY, HEADER.itemsize + place * ENTRY.itemsize, **fields)
    done = run(decide, PATH, fleet_state, options)
    assert done.returncode == 3
    assert "an array is not within the block" in done.stderr


def test_c_refuses_options_for_fewer_workers(decide: Path, tmp_path: Path) -> None:
    fleet_state, shared, _ = fleets(tmp_path, Kernel())
    options = write_options(tmp_path, BUILTIN["wlpr"](), shared)
    change(options, HEADER, 0, room_workers=WORKERS - 1)
    assert "for fewer workers" in run(decide, PATH, fleet_state, options).stderr


def test_a_fleet_that_outgrows_its_block_takes_the_path_with_another(tmp_path: Path) -> None:
    fleet_state, shared, _ = fleets(tmp_path, Kernel())
    with fleet_state.open("r+b") as file:
        before = mmap.mmap(file.fileno(), 0)
    for number in range(WORKERS, 2 * WORKERS):
        shared.observe(WorkerAdded(f"w{number}"), 1.0)
    assert not np.frombuffer(before, HEADER, 1)[0]["in_force"]
    found = fleet_states_in(bytearray(fleet_state.read_bytes()), stamp())
    np.testing.assert_array_equal(found.queue.in_flight, shared.fleet.queue.in_flight)
    assert list(tmp_path.iterdir()) == [fleet_state]
    assert fleet_state.stat().st_mode & 0o077 == 0


def test_a_file_is_no_block_before_it_is_filled(tmp_path: Path) -> None:
    memory = in_file(tmp_path / "fleet_state")(8192)
    with pytest.raises(BlockError, match="no block"):
        fleet_states_in(memory, stamp())


def test_the_header_is_of_the_present_declarations() -> None:
    text = HEADER_FILE.read_text(encoding="utf-8")
    begin = text[: text.index("/* Of the library")]
    assert header_of({}, stamp(), Router(BUILTIN["wlpr"](), Settings()).fleet).startswith(begin)


def test_every_slot_of_a_call_is_declared_where_it_lies() -> None:
    assert [getattr(call, name) for name in call.DECLARED] == list(range(call.FALLBACKS + 1))
    text = HEADER_FILE.read_text(encoding="utf-8")
    assert f"int64_t fallbacks[{call.SLOTS - call.FALLBACKS}];" in text
    assert f"double report_batches[{call.MOST_BATCHES}]" in text
