"""What Envoy's module decides and counts over the shared fleet state is what the router would, in every bit."""

import hashlib
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from support.settling import (
    LEAST_REQUEST,
    REQUESTS,
    SEED,
    SETTINGS,
    TAKEN,
    WORKERS,
    a_shared,
    begin,
    crossed,
    endpoint,
    endpoints_of,
    line_of,
    parts,
    printed_by,
    prompt_of,
    request_of,
    script,
)
from support.strangers import Costs, Softmax
from unit.native.conftest import compiled

from balancer.kernel.compiled.library import PATH, Compiled, Library, stamp
from balancer.kernel.settings import Settings
from balancer.native.enums import Source
from balancer.native.layouts import UNKNOWN_MODEL
from balancer.native.router import SharedRouter
from balancer.scheduler.events import PeerLost, PeerTold, WorkerAdded
from balancer.scheduler.peers import OwnPicks
from balancer.scheduler.router import Router
from policies import BUILTIN
from policies.base import Policy

POLICIES: dict[str, Policy] = {name: kind() for name, kind in BUILTIN.items()}
POLICIES |= {"a program": Softmax(), "a program of costs": Costs()}


KERNEL = Path(__file__).resolve().parents[3] / "out" / "aarch64" / "kernel.so"
"""Where `make wheel ARCH=aarch64` leaves it."""
COMPILER, EMULATOR, ROOT = "aarch64-linux-gnu-gcc", "qemu-aarch64", "/usr/aarch64-linux-gnu"
TOOLS = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
"""Debian's packages."""


def decide(
    shared: SharedRouter, *program: object, began_ns: int | None = None, prompts: bool = False
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Have the program and a router of this process decide the same; the lines that asked, and what both answered."""
    policy, settings = shared.policy, shared.settings
    own = Router(policy, settings, SEED, Compiled(Library()))
    began_ns = began_ns or time.monotonic_ns()
    for router in (shared, own):
        begin(router, began_ns * 1e-9)
    shared.serve(True)
    lines = list(script(own, began_ns + 60_000_000, prompts))
    wanted = [parts(line) for _, line in lines if line]
    assert [parts(line) for line in printed_by(program, [line for line, _ in lines])] == wanted
    for record in ("queue", "service", "latency", "tokens", "caches", "prefixes", "prefill", "decode", "lengths"):
        for array, there in vars(getattr(own.fleet, record)).items():
            np.testing.assert_array_equal(getattr(getattr(shared.fleet, record), array), there, err_msg=array)
    return [line for line, _ in lines], wanted


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, made for arm64."""
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {TOOLS}")
    if not KERNEL.exists() or stamp().encode() not in KERNEL.read_bytes():
        pytest.skip("needs a kernel of these sources: make wheel ARCH=aarch64")
    return compiled(tmp_path_factory.mktemp("c") / "settle", "-O2", compiler=COMPILER)


@pytest.mark.parametrize("name", sorted(BUILTIN))
@pytest.mark.parametrize("how", SETTINGS)
def test_it_does_so_on_arm64_too(emulated: Path, tmp_path: Path, name: str, how: str) -> None:
    shared = a_shared(tmp_path / "shared", POLICIES[name], SETTINGS[how])
    decide(shared, EMULATOR, "-L", ROOT, emulated, KERNEL, tmp_path / "shared")


@crossed(POLICIES, "expected_latency", "limits")
def test_it_decides_counts_and_learns_as_the_router_does(settle: Path, tmp_path: Path, name: str, how: str) -> None:
    shared = a_shared(tmp_path / "shared", POLICIES[name], SETTINGS[how])
    lines, wanted = decide(shared, settle, PATH, tmp_path / "shared")
    assert len({line[0] for line in wanted}) == 2
    assert shared.fleet.caches.key.any() == shared.fleet.caches.ended_rows.any() == (not SETTINGS[how].sticky_keys)
    # The lot of what is in flight is with the state, and what ended was told of.
    ended = sum(line.startswith("end") for line in lines)
    taken = sum(line[0] == str(TAKEN) for line in wanted)
    assert shared.state.in_flight == taken - ended
    outcomes = np.concatenate([batch.copy() for batch in shared.state.outcomes()])
    assert len(outcomes) == len(wanted) - taken + ended
    assert outcomes["matched"].sum() == ended
    # Peers are told of what Envoys picked, and what they tell counts beside it.
    told = OwnPicks(shared.fleet).since(OwnPicks(shared.fleet).nothing_told(), 1000)
    assert (sum(picks.sent for picks in told), sum(picks.done for picks in told)) == (taken, ended)
    for event in (PeerTold("peer", tuple(told)), PeerLost("peer")):
        shared.observe(event, time.monotonic())
        beside = taken - ended if isinstance(event, PeerTold) else 0
        assert shared.fleet.queue.in_flight.sum() == taken - ended + beside
    # What asks for a model that nobody has is refused.
    nobody = sum(line.startswith("ask") and line.split()[-4] == "nobody" for line in lines)
    assert (outcomes["column"] == UNKNOWN_MODEL).sum() == nobody
    assert set(outcomes["column"][outcomes["source"] == Source.BY_POLICY]) <= set(shared.fleet.models.values()) - {0}


OF_PROMPTS = ("expected_latency", "least_tokens", "prefix_score", "prefix_load_cost", "cache_aware", "round_robin")


@pytest.mark.parametrize("name", OF_PROMPTS)
def test_it_does_so_with_prompts(settle: Path, tmp_path: Path, name: str) -> None:
    shared = a_shared(tmp_path / "shared", POLICIES[name], SETTINGS["limits"])
    _, wanted = decide(shared, settle, PATH, tmp_path / "shared", prompts=True)
    prefixes = shared.fleet.prefixes
    assert prefixes.key.any()
    assert prefixes.waiting_tokens.any()
    assert shared.fleet.lengths.ended_tokens.any()
    # Other balancers are to hear of each prompt that was sent, the last ones of each worker.
    shared.tick(time.monotonic())
    told = [prompt for worker in shared.fleet.names for prompt in shared.fleet.untold_prompts.take(worker)]
    sent = sum(line[0] == str(TAKEN) and prompt_of(k)[0] != "-" for k, line in enumerate(wanted))
    assert len(told) == sent
    assert all(prompt.tokens >= prompt.prefix[-1][1] for prompt in told if prompt.prefix)
    assert not {len(prompt.prefix) for prompt in told} <= {0, 1}
    # What is given up waits no more.
    shared.give_up(time.monotonic() + 2 * shared.settings.outcome_timeout_s)
    assert shared.state.in_flight == 0
    assert not prefixes.waiting_tokens.any()


def test_decisions_are_what_they_have_been(settle: Path, tmp_path: Path) -> None:
    """One digest of all policies, which holds a fault that Python has too. Who means to change decisions writes
    another."""
    seen = hashlib.sha256()
    for nth, name in enumerate(sorted(POLICIES)):
        how = list(SETTINGS)[nth % len(SETTINGS)]
        shared = a_shared(tmp_path / name, POLICIES[name], SETTINGS[how])
        _, wanted = decide(shared, settle, PATH, tmp_path / name, began_ns=10**12)
        for *words, propensity, answer in wanted:
            seen.update(f"{words} {propensity:.9g} {answer}".encode())
        for record in ("queue", "service", "latency", "tokens", "caches"):
            for array in vars(getattr(shared.fleet, record)).values():
                seen.update(",".join(f"{number:.9g}" for number in array.ravel().tolist()).encode())
    assert seen.hexdigest()[:16] == "5d69e68b300d122b"


def test_sequences_stay_with_their_workers_when_the_balancer_is_silent(settle: Path, tmp_path: Path) -> None:
    shared = a_shared(tmp_path / "shared", POLICIES["round_robin"], Settings())
    began_ns = time.monotonic_ns()
    begin(shared, began_ns * 1e-9)
    # One that drains keeps its sequences.
    shared.observe(WorkerAdded("w2", weight=3.0, draining=True), began_ns * 1e-9)
    shared.serve(True)
    requests = [request_of(k) for k in range(REQUESTS)]
    lines = [line_of(request, grpc, began_ns + 60_000_000) for request, grpc in requests]
    printed = [parts(line) for line in printed_by((settle, PATH, tmp_path / "shared"), [*lines, "mute", *lines])]
    alive, silent = printed[:REQUESTS], printed[REQUESTS:]
    stayed, drained = 0, {endpoint("w2", True), endpoint("w2", False)}
    for (request, _), before, after in zip(requests, alive, silent, strict=True):
        assert after[0] == str(LEAST_REQUEST)
        kept = request.sequence and before[0] == str(TAKEN)
        # All others may go to any that may serve them.
        named = set(after[-1].split(","))
        assert after[-1] == before[-1] if kept else named.isdisjoint(drained)
        stayed += kept
    assert stayed > 40


def test_who_speaks_another_protocol_is_not_asked(settle: Path, tmp_path: Path) -> None:
    """Whoever has the model: half of the workers have no port of the kind."""
    shared = a_shared(tmp_path / "shared", POLICIES["expected_latency"], Settings())
    tritons, others = ([f"w{number}" for number in range(first, WORKERS, 2)] for first in (0, 1))
    shared.list_endpoints({**endpoints_of(tritons), "openai": {name: endpoint(name, False) for name in others}})
    began_ns = time.monotonic_ns()
    begin(shared, began_ns * 1e-9)
    shared.serve(True)
    lines = [line_of(request, grpc, began_ns + 60_000_000) for request, grpc in map(request_of, range(REQUESTS))]
    printed = [parts(line) for line in printed_by((settle, PATH, tmp_path / "shared"), lines)]
    named = {one for line in printed if line[0] == str(TAKEN) for one in str(line[-1]).split(",")}
    may = {endpoint(name, grpc) for name in tritons for grpc in (True, False)}
    assert named
    assert named <= may
    silent = [parts(line) for line in printed_by((settle, PATH, tmp_path / "shared"), ["mute", *lines])]
    assert {one for line in silent if line[0] == str(LEAST_REQUEST) for one in str(line[-1]).split(",") if one} <= may
