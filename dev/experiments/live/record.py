"""The live half: measures the parts of the real stack one by one, then sends it the session."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import tritonclient.grpc.aio as triton

from balancer.config.profile_file import Profile
from balancer.errors import OperatorError
from balancer.load.arrivals import bursty
from balancer.load.result import LoadResult, joined
from balancer.load.runner import DriveOptions, Progress, drive
from balancer.load.workload import LoadWorkload, ModelMix, RowSizes, mixed, streams
from balancer.profile.measure import Profiler, Sweep
from balancer.stack.stack import OwnStack
from dev.demo import steps
from dev.experiments.live.session import Session
from dev.stack import POLICY, emulated

WORKERS = 4
_SWEEP = Sweep(executions=30, seconds=2.5, warm_up=2)
_EASY_S = 6.0
"""Before the session, and again after it, lest what the machine does besides at one moment be taken for all."""
_EASY_MODEL = ModelMix("emulated_tft")
"""Its service takes 2 ms on each of the GPUs, so that at the session's rate hardly any request waits for another."""
_MODELS = tuple(model.name for model in steps.MIX)

_FIRST = "round_robin"
_LOG, _TRAINED_SAYS = "decisions", "trained.log"
_TRAINING = ("--unchecked", "--iterations", "120")
"""Here the load generator, Envoy, the balancer and the workers share the cores, which delays requests as no simulated
fleet does: `balancer twin` refuses the log. The experiment trains all the same, to measure what that is worth."""

_WEIGHTS_TIMEOUT_S = 5.0
_POLL_S = 0.05
_BEFORE_END_S = 0.1
"""So long before a turn ends, its decisions are counted: in time for the next swap."""

Weigh = Callable[[Mapping[str, Profile]], Mapping[str, float]]
Batches = dict[str, dict[str, dict[int, int]]]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Recording:
    session: Session
    profiles: Mapping[str, Profile]
    easy: LoadResult
    """Requests at the session's rate, in its bursts, but of one row and to a model so fast that none waits."""
    live: LoadResult
    swaps_s: tuple[float, ...]
    """From writing the file until the policy was in force, for each turn."""
    batches: Batches
    weights: Mapping[str, float]
    decided: tuple[Mapping[str, float], ...]
    """Requests that each policy decided in the counted part of each turn: its own, and its guard's baseline's."""

    def save(self, path: Path) -> None:
        document = {
            "session": dataclasses.asdict(self.session),
            "profiles": {worker: profile.model_dump(mode="json") for worker, profile in self.profiles.items()},
            "easy": _columns(self.easy),
            "live": _columns(self.live),
            "swaps_s": self.swaps_s,
            "batches": self.batches,
            "weights": dict(self.weights),
            "decided": self.decided,
        }
        path.write_text(json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
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
            weights=document["weights"],
            decided=tuple(document["decided"]),
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
    session: Session,
    out: Path,
    say: Callable[[str], None],
    tell: Callable[[Progress], None],
    weigh: Weigh | None = None,
) -> Recording:
    """Start the demo's stack, measure its parts, send the session, and stop it.

    Args:
        session: What to send, and who decides when.
        out: Gets the config file and the logs.
        say: Told each step.
        tell: Told how the session goes.
        weigh: Weights for the list of workers; None: all 1.

    Raises:
        OperatorError: a part cannot be started, or fails.
    """
    async with emulated(out / "run", WORKERS, _FIRST, *_of_sessions(session)) as stack:
        addresses = {worker.name: worker.grpc_endpoint for worker in stack.specs}
        say("service times of each Triton ...")
        # At once: they sleep rather than compute. `profile` sends one request at a time to each.
        measured = await asyncio.gather(
            *(asyncio.to_thread(_profile, worker.grpc_endpoint, worker.device) for worker in stack.specs)
        )
        profiles = dict(zip(addresses, measured, strict=True))
        weights = dict(weigh(profiles)) if weigh else dict.fromkeys(profiles, 1.0)
        if weigh:
            await _weigh(stack, weights)
        if session.logged_rounds:
            session = dataclasses.replace(
                session, learned=str(await _trained(stack, session, profiles, out, say, tell))
            )
        say("requests that do not wait, through everything ...")
        before = await drive(stack.url, _easy_workload(session, 0))
        say(f"the session, {session.turns()[-1].end_s:.0f} s ...")
        counted = await _batches(addresses)
        live, swaps_s, decided = await _send(stack, session, tell)
        batches = _grown(counted, await _batches(addresses))
        after = await drive(stack.url, _easy_workload(session, 1))
    return Recording(
        session=session,
        profiles=profiles,
        easy=joined([before, after]),
        live=live,
        swaps_s=swaps_s,
        batches=batches,
        weights=weights,
        decided=decided,
    )


def _of_sessions(session: Session) -> tuple[dict[str, Any], dict[str, str]]:
    """Config and environment of a stack whose emulated GPUs remember keys, which policies place."""
    if not session.sessions:
        return {}, {}
    cache = {"EMULATED_GPU_CACHE_KEYS": session.cache_keys, "EMULATED_GPU_CACHE_SAVING": session.cache_saving}
    return {"requests": {"sticky_keys": False}}, {name: str(value) for name, value in cache.items()}


async def _trained(
    stack: OwnStack,
    session: Session,
    profiles: Mapping[str, Profile],
    out: Path,
    say: Callable[[str], None],
    tell: Callable[[Progress], None],
) -> Path:
    """Record what it does under `expected_latency`, and train on that, as a user would. Returns the policy's file."""
    log, trained = stack.config_path.parent / _LOG, out / "trained"
    say(f"its own log, {session.logged.turns()[-1].end_s:.0f} s ...")
    await stack.swap(POLICY, sections={"decision_log": {"folder": _LOG}})
    await drive(stack.url, session.logged.workload(), DriveOptions(timeout_s=60.0), on_progress=tell)
    await stack.swap(_FIRST)
    say(f"training on it, some minutes; see {out / _TRAINED_SAYS} ...")
    command = ["train", "--out", str(trained), "--from-log", str(log), *_TRAINING]
    for worker, profile in profiles.items():
        (out / f"{worker}.json").write_text(profile.model_dump_json(), encoding="utf-8")
        command += ["--profile", str(out / f"{worker}.json")]
    with open(out / _TRAINED_SAYS, "wb") as says:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "balancer", *command), stdout=says, stderr=says
        )
        try:
            ended = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    if ended:
        raise OperatorError(f"training failed: {(out / _TRAINED_SAYS).read_text().strip().splitlines()[-1]}")
    return trained / "policy.npz"


async def _weigh(stack: OwnStack, weights: Mapping[str, float]) -> None:
    """Write the weights into the list of workers, and wait until the balancer has them."""
    stack.list_workers(*(worker.model_copy(update={"weight": weights[worker.name]}) for worker in stack.specs))
    try:
        async with asyncio.timeout(_WEIGHTS_TIMEOUT_S):
            while True:
                now = {worker["worker"]: worker["weight"] for worker in (await stack.get("/workers"))["workers"]}
                if now == weights:
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise OperatorError(
            f"the weights were not in force after {_WEIGHTS_TIMEOUT_S:g} s; {stack.balancer.log_tail()}"
        ) from None


def _profile(address: str, device: str) -> Profile:
    profiler = Profiler(address, _SWEEP, lambda model, point: None)
    try:
        return profiler.profile(device, _MODELS)
    finally:
        profiler.close()


def _easy_workload(session: Session, number: int) -> LoadWorkload:
    times, models, rows = streams(session.seed * 1_000_003 + 1_000 + number, 3)
    time_s = bursty(session.rate_per_s, _EASY_S, steps.BURSTS, times, level=True)
    return mixed(time_s, [_EASY_MODEL], RowSizes(), models, rows)


async def _decisions(stack: OwnStack) -> dict[str, float]:
    """How many requests each policy has decided so far, by name: a guard's baseline counts for itself."""
    return dict((await stack.get("/recent"))["decisions"])


async def _send(
    stack: OwnStack, session: Session, tell: Callable[[Progress], None]
) -> tuple[LoadResult, tuple[float, ...], tuple[Mapping[str, float], ...]]:
    """The session's requests, and for each turn how long the swap took and who decided how many that count."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def until(session_s: float) -> None:
        await asyncio.sleep(began_s + session_s - loop.time())

    async def swap_in_turn() -> tuple[list[float], list[Mapping[str, float]]]:
        swaps_s: list[float] = []
        decided: list[Mapping[str, float]] = []
        for turn in session.turns():
            await until(turn.start_s - session.pause_s / 2)
            stack.check()
            swaps_s.append(await stack.swap(turn.policy, **session.options(turn.policy)))
            await until(turn.counted_s)
            before = await _decisions(stack)
            await until(turn.end_s - _BEFORE_END_S)
            after = await _decisions(stack)
            decided.append({policy: count - before.get(policy, 0.0) for policy, count in after.items()})
        return swaps_s, decided

    sending = asyncio.create_task(drive(stack.url, session.workload(), DriveOptions(timeout_s=60.0), on_progress=tell))
    swapping = asyncio.create_task(swap_in_turn())
    try:
        # A swap that fails ends the sending too.
        live, (swaps_s, decided) = await asyncio.gather(sending, swapping)
    finally:
        for task in (sending, swapping):
            task.cancel()
        await asyncio.gather(sending, swapping, return_exceptions=True)
    return live, tuple(swaps_s), tuple(decided)


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
