"""What Envoy's module decides and counts over the shared books is what the router would, in every bit."""

from __future__ import annotations

import subprocess
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
    begin,
    endpoint,
    line_of,
    parts,
    request_of,
    script,
)
from support.strangers import Costs, Softmax

from balancer.core.events import WorkerAdded
from balancer.core.router import Router
from balancer.core.settings import Settings
from balancer.front.folder import Folder
from balancer.front.layouts import UNKNOWN_MODEL, Source
from balancer.front.module import Module
from balancer.front.router import SharedRouter
from balancer.native.library import PATH, Compiled, Library
from policies import BUILTIN
from policies.base import Policy

POLICIES: dict[str, Policy] = {name: kind() for name, kind in BUILTIN.items()}
POLICIES |= {"a program": Softmax(), "a program of costs": Costs()}


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("how", SETTINGS)
def test_it_decides_counts_and_learns_as_the_router_does(settle: Path, tmp_path: Path, name: str, how: str) -> None:
    policy = POLICIES[name]
    library, folder = Library(), Folder(tmp_path / "shared")
    shared = SharedRouter(policy, SETTINGS[how], SEED, library, Module(library), folder)
    own = Router(policy, SETTINGS[how], SEED, Compiled(library))
    began_ns = time.monotonic_ns()
    for router in (shared, own):
        begin(router, began_ns * 1e-9)
    names = [f"w{number}" for number in range(WORKERS)]
    shared.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
    shared.serve(True)
    lines = list(script(own, began_ns + 60_000_000))
    asked = "\n".join(line for line, _ in lines)
    done = subprocess.run([settle, PATH, folder.path], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = [parts(line) for _, line in lines if line]
    assert [parts(line) for line in done.stdout.splitlines()] == wanted
    assert len({line[0] for line in wanted}) == 2
    for record in ("queue", "service", "latency", "tokens", "caches"):
        for array, there in vars(getattr(own.fleet, record)).items():
            np.testing.assert_array_equal(getattr(getattr(shared.fleet, record), array), there, err_msg=array)
    assert shared.fleet.caches.key.any() == shared.fleet.caches.ended_rows.any() == (not SETTINGS[how].sticky_keys)
    # The lot of what is in flight is with the state, and what ended was told of.
    ended = sum(line.startswith("end") for line, _ in lines)
    taken = sum(line[0] == str(TAKEN) for line in wanted)
    assert shared.state.in_flight == taken - ended
    told = np.concatenate([batch.copy() for batch in shared.state.outcomes()])
    assert len(told) == len(wanted) - taken + ended
    assert told["matched"].sum() == ended
    # What asks for a model that nobody has is refused.
    nobody = sum(line.startswith("ask") and line.split()[-2] == "nobody" for line, _ in lines)
    assert (told["column"] == UNKNOWN_MODEL).sum() == nobody
    assert set(told["column"][told["source"] == Source.BY_POLICY]) <= set(shared.fleet.models.values()) - {0}


def test_sequences_stay_with_their_workers_when_the_balancer_is_silent(settle: Path, tmp_path: Path) -> None:
    library, folder = Library(), Folder(tmp_path / "shared")
    shared = SharedRouter(POLICIES["round_robin"], Settings(), SEED, library, Module(library), folder)
    began_ns = time.monotonic_ns()
    begin(shared, began_ns * 1e-9)
    # One that drains keeps its sequences.
    shared.observe(WorkerAdded("w2", weight=3.0, draining=True), began_ns * 1e-9)
    names = [f"w{number}" for number in range(WORKERS)]
    shared.tell({n: endpoint(n, True) for n in names}, {n: endpoint(n, False) for n in names})
    shared.serve(True)
    requests = [request_of(k) for k in range(REQUESTS)]
    lines = [line_of(request, grpc, began_ns + 60_000_000) for request, grpc in requests]
    asked = "\n".join([*lines, "mute", *lines])
    done = subprocess.run([settle, PATH, folder.path], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [parts(line) for line in done.stdout.splitlines()]
    alive, silent = told[:REQUESTS], told[REQUESTS:]
    stayed = 0
    for (request, _), before, after in zip(requests, alive, silent, strict=True):
        assert after[0] == str(LEAST_REQUEST)
        kept = request.sequence and before[0] == str(TAKEN)
        assert after[-1] == (before[-1] if kept else "")
        stayed += kept
    assert stayed > 40
