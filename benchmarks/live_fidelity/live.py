"""The live half: measures the parts of the real stack one by one, then sends it the session."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import tritonclient.grpc.aio as triton
import yaml

from balancer.demo import traffic
from balancer.demo.stack import DemoStack
from balancer.load.arrivals import bursty
from balancer.load.result import LoadResult, joined
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.workload import ModelMix, RowSizes, Workload, mixed, streams
from balancer.profile import Profiler, Sweep
from balancer.profile_file import Profile
from benchmarks.live_fidelity.session import Session

WORKERS = 4
_SWEEP = Sweep(executions=30, seconds=2.5, warm_up=2)
_EASY_S = 6.0
"""Before the session, and again after it, lest what the machine does besides at one moment be taken for all."""
_EASY_MODEL = ModelMix("emulated_tft")
"""Its service takes 2 ms on each of the GPUs, so that at the session's rate hardly any request waits for another."""
_MODELS = tuple(model.name for model in traffic.MIX)

Batches = dict[str, dict[str, dict[int, int]]]
"""Executions by worker, model and rows."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What was measured of the real stack."""

    session: Session
    profiles: Mapping[str, Profile]
    """Of each worker, by name: nothing else ran."""
    easy: LoadResult
    """Requests at the session's rate, in its bursts, but of one row and to a model so fast that none waits."""
    live: LoadResult
    """The session."""
    swaps_s: tuple[float, ...]
    """From writing the file until the policy was in force, for each turn."""
    batches: Batches
    """What was executed during the session."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        document = {
            "session": dataclasses.asdict(self.session),
            "profiles": {worker: profile.model_dump(mode="json") for worker, profile in self.profiles.items()},
            "easy": _columns(self.easy),
            "live": _columns(self.live),
            "swaps_s": self.swaps_s,
            "batches": self.batches,
        }
        path.write_text(json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        document = json.loads(path.read_text())
        session = document["session"] | {"policies": tuple(document["session"]["policies"])}
        return cls(
            session=Session(**session),
            profiles={
                worker: Profile.model_validate_json(json.dumps(one)) for worker, one in document["profiles"].items()
            },
            easy=_result(document["easy"]),
            live=_result(document["live"]),
            swaps_s=tuple(document["swaps_s"]),
            batches={
                worker: {model: {int(rows): n for rows, n in sizes.items()} for model, sizes in models.items()}
                for worker, models in document["batches"].items()
            },
        )


def _columns(result: LoadResult) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in dataclasses.asdict(result).items()
    }


def _result(columns: dict[str, Any]) -> LoadResult:
    names = ("models", "codes", "workers")
    fields: dict[str, Any] = {
        name: tuple(value) if name in names else np.array(value) if isinstance(value, list) else value
        for name, value in columns.items()
    }
    return LoadResult(**fields)


async def record(
    session: Session, out: Path, say: Callable[[str], None], tell: Callable[[Progress], None]
) -> Recording:
    """Start the demo's stack, measure its parts, send the session, and stop it.

    Raises:
        OperatorError: a part cannot be started, or fails.
    """
    async with DemoStack(out, WORKERS, "round_robin") as stack:
        # Where `balancer up` put the list of workers.
        listed = yaml.safe_load((out / "run" / "workers.yaml").read_text())["workers"]
        addresses = {worker["name"]: f"127.0.0.1:{worker['grpc_port']}" for worker in listed}
        say("service times of each Triton ...")
        # At once: they sleep rather than compute. `profile` sends one request at a time to each.
        profiles = await asyncio.gather(
            *(asyncio.to_thread(_profile, addresses[worker["name"]], worker["device"]) for worker in listed)
        )
        say("requests that do not wait, through everything ...")
        before = await drive(stack.url, _easy_workload(session, 0))
        say(f"the session, {session.turns()[-1].end_s:.0f} s ...")
        counted = await _batches(addresses)
        live, swaps_s = await _send(stack, session, tell)
        batches = _grown(counted, await _batches(addresses))
        after = await drive(stack.url, _easy_workload(session, 1))
    return Recording(
        session, dict(zip(addresses, profiles, strict=True)), joined([before, after]), live, swaps_s, batches
    )


def _profile(address: str, device: str) -> Profile:
    profiler = Profiler(address, _SWEEP, lambda model, point: None)
    try:
        return profiler.profile(device, _MODELS)
    finally:
        profiler.close()


def _easy_workload(session: Session, number: int) -> Workload:
    times, models, rows = streams(session.seed * 1_000_003 + 1_000 + number, 3)
    time_s = bursty(session.rate_per_s, _EASY_S, traffic.BURSTS, times, level=True)
    return mixed(time_s, [_EASY_MODEL], RowSizes(), models, rows)


async def _send(
    stack: DemoStack, session: Session, tell: Callable[[Progress], None]
) -> tuple[LoadResult, tuple[float, ...]]:
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def swap_in_turn() -> tuple[float, ...]:
        swaps_s = []
        for turn in session.turns():
            await asyncio.sleep(began_s + turn.start_s - session.pause_s / 2 - loop.time())
            stack.check()
            swaps_s.append(await stack.swap(turn.policy))
        return tuple(swaps_s)

    swapping = asyncio.create_task(swap_in_turn())
    try:
        live = await drive(stack.url, session.workload(), DriveOptions(timeout_s=60.0), on_progress=tell)
        return live, await swapping
    finally:
        swapping.cancel()


async def _batches(addresses: Mapping[str, str]) -> Batches:
    counted: Batches = {}
    for worker, address in addresses.items():
        async with triton.InferenceServerClient(address) as client:
            statistics = await client.get_inference_statistics()
        counted[worker] = {
            model.name: {batch.batch_size: batch.compute_infer.count for batch in model.batch_stats}
            for model in statistics.model_stats
            if model.name in _MODELS
        }
    return counted


def _grown(before: Batches, after: Batches) -> Batches:
    return {
        worker: {
            model: {rows: count - before[worker][model].get(rows, 0) for rows, count in sizes.items()}
            for model, sizes in models.items()
        }
        for worker, models in after.items()
    }
