"""Random fleets and their requests. Most times are multiples of 2^-10 s, so that many events coincide."""

import dataclasses
import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
from hypothesis import strategies as st
from simulation.builders import arrivals_of, prompting

from balancer.kernel.settings import (
    EstimatorSettings,
    HeldModel,
    HoldingSettings,
    Limits,
    ModelSettings,
    Settings,
    TokenSettings,
    ZoneSettings,
)
from policies.hashing import mix
from simulator.arrivals import Arrivals
from simulator.spec import (
    Autoscale,
    BatchingSpec,
    CacheSpec,
    ColdStart,
    DeviceSpec,
    Fault,
    FaultKind,
    FleetSpec,
    GeneratingDevice,
    GenerationSpec,
    ModelSpec,
    NetworkSpec,
    Noise,
    Reports,
    ServiceTime,
    SimulatedWorker,
)

ZONES = ("", "a", "b", "c")
Draw = st.DrawFn
Value = TypeVar("Value")


class Scenario(NamedTuple):
    fleet: FleetSpec
    arrivals: Arrivals
    seed: int


def quanta(least: int, most: int) -> st.SearchStrategy[float]:
    """Multiples of 2^-10 s."""
    return st.integers(least, most).map(lambda count: count / 1024)


def maybe(strategy: st.SearchStrategy[Value], default: Value) -> st.SearchStrategy[Value]:
    return st.one_of(st.just(default), strategy)


@st.composite
def service_times(draw: Draw) -> ServiceTime:
    rows = (1, 4) if draw(st.booleans()) else (1,)
    first_s, growth_s = draw(quanta(1, 32)), draw(quanta(0, 16))
    host_s = tuple(draw(quanta(0, 4)) for _ in rows) if draw(st.booleans()) else ()
    return ServiceTime(rows, (first_s, first_s + growth_s)[: len(rows)], host_s)


@st.composite
def batchings(draw: Draw) -> BatchingSpec:
    most = draw(st.sampled_from([1, 2, 4, 8]))
    levels = draw(st.integers(1, 3))
    return BatchingSpec(
        max_batch_rows=most,
        queue_delay_s=draw(maybe(quanta(1, 32), 0.0)),
        preferred_rows=tuple(sorted(draw(st.sets(st.integers(1, most), max_size=2)))),
        priority_levels=levels,
        default_priority=draw(st.integers(1, levels)),
        max_queue_requests=draw(st.sampled_from([0, 0, 1, 4])),
        timeout_s=draw(maybe(quanta(4, 64), math.inf)),
        timeout_action=draw(st.sampled_from(["reject", "delay"])),
    )


noises = st.sampled_from([Noise(), Noise("lognormal", 0.5), Noise("exponential")])


@st.composite
def model_specs(draw: Draw, name: str) -> ModelSpec:
    service = {"*": draw(service_times())}
    if draw(st.booleans()):
        service["fast"] = draw(service_times())
    return ModelSpec(name, service, draw(noises), draw(batchings()), draw(st.integers(1, 3)))


def _generating_device(draw: Draw) -> GeneratingDevice:
    """With room for the longest request; times such that sums of them are exact."""
    memory_tokens = draw(st.sampled_from([56, 80, 200]))
    return GeneratingDevice(memory_tokens, draw(quanta(0, 1)) / 16, draw(quanta(0, 1)) / 64)


@st.composite
def generating_models(draw: Draw, name: str) -> ModelSpec:
    step_tokens, levels = draw(st.sampled_from([4, 16, 64])), draw(st.integers(1, 2))
    batching = BatchingSpec(
        priority_levels=levels,
        default_priority=draw(st.integers(1, levels)),
        max_queue_requests=draw(st.sampled_from([0, 0, 4])),
    )
    kinds = ("*", "fast") if draw(st.booleans()) else ("*",)
    devices = {kind: _generating_device(draw) for kind in kinds}
    generation = GenerationSpec(devices, step_tokens, draw(st.integers(1, 4)))
    service = {kind: draw(service_times()) for kind in kinds}
    return ModelSpec(name, service, draw(noises), batching, generation=generation)


@st.composite
def worker_specs(draw: Draw, w: int, models: tuple[str, ...], may_be_absent: bool) -> SimulatedWorker:
    return SimulatedWorker(
        name=f"w{w}",
        device=draw(st.sampled_from(["*", "fast"])),
        speed=draw(st.sampled_from([1.0, 0.5, 3.0])),
        weight=draw(st.sampled_from([1.0, 2.0])),
        models=draw(st.sampled_from([(), (), (), models[:1], models[-1:]])),
        # A router's rows are in order of joining, the engine's in that of the fleet: the draws agree if these do.
        present=not may_be_absent or draw(st.booleans()),
        sharing=DeviceSpec(draw(st.integers(1, 3)), draw(st.sampled_from([0.0, 0.25, 1.0]))),
        zone=draw(st.sampled_from(ZONES)),
    )


moments = st.one_of(quanta(0, 256), quanta(0, 256), quanta(0, 3072))
"""While requests come, or when those have come that come slowly."""
kinds: st.SearchStrategy[Any] = st.sampled_from(get_args(FaultKind))


@st.composite
def faults(draw: Draw, workers: int, models: tuple[str, ...]) -> Fault:
    kind = draw(kinds)
    # Stalls end, so that requests do.
    duration_s = draw(quanta(0, 256) if kind == "stall" else maybe(moments, math.inf))
    amount = draw(st.sampled_from([2.0, 4.0] if kind == "slow" else [0.5, 1.0]))
    model = draw(st.sampled_from(models)) if kind in ("load", "unload") else ""
    return Fault(kind, f"w{draw(st.integers(0, workers - 1))}", draw(moments), duration_s, amount, model)


profiles: st.SearchStrategy[Any] = st.dictionaries(
    st.tuples(st.sampled_from(["", "fast"]), st.sampled_from(["m0", "m1"])), st.tuples(quanta(0, 64), quanta(1, 16))
)
"""Of the two kinds of devices, where any are known beforehand."""
estimators = st.builds(
    EstimatorSettings,
    latency_decay_s=st.sampled_from([10.0, 0.125]),
    error_decay_s=st.sampled_from([10.0, 0.5]),
    service_memory=st.sampled_from([200.0, 8.0]),
    service_memory_s=st.sampled_from([30.0, 1.0]),
    default_service_s=st.sampled_from([0.01, 0.1]),
    tokens=st.sampled_from([TokenSettings(), TokenSettings(capacity=4.0, refill_per_s=16.0, target_pending=4.0)]),
    profiles=maybe(profiles, {}),
)
limits = st.sampled_from(
    [Limits(), Limits(), Limits(8.0), Limits(6.0, 2, 3.0), Limits(4.0, 1, 6.0), Limits(shed_late=True)]
)
tables: st.SearchStrategy[Any] = st.dictionaries(
    st.sampled_from(["m0", "m1"]),
    st.builds(
        ModelSettings,
        devices=st.sampled_from([(), ("fast",), ("other",)]),
        versions=st.sampled_from([(), ("1",), ("2",)]),
    ),
    max_size=1,
)
"""What workers may have a model: pins to versions, and devices."""
settings = st.builds(
    Settings,
    models=maybe(maybe(tables, {}), {}),
    limits=limits,
    estimators=estimators,
    reports_required=st.sampled_from([True, True, True, False]),
    stale_after_s=st.sampled_from([1.0, 0.1, 0.03]),
    sticky_keys=st.booleans(),
    max_fallbacks=st.integers(0, 3),
    slow_start_s=st.sampled_from([0.0, 0.0, 0.5, 4.0]),
    sampled_workers=st.sampled_from([32.0, 32.0, 0.1, 0.3]),
    zones=st.sampled_from([ZoneSettings(), ZoneSettings("a", 0.01), ZoneSettings("b", 0.0, ("a", "b", "c"))]),
)

reports = st.builds(
    Reports,
    period_s=st.sampled_from([0.05, 0.02, 0.25]),
    delay_s=quanta(0, 16),
    jitter_s=st.sampled_from([0.0, 0.05]),
    loss=st.sampled_from([0.0, 0.5]),
)

networks = st.builds(
    NetworkSpec,
    to_worker_s=quanta(0, 2),
    to_client_s=quanta(0, 2),
    jitter_s=st.sampled_from([0.0, 0.0, 0.01]),
    outcome_s=quanta(0, 8),
    across_s=st.sampled_from([{}, {}, {"a": {"b": 2 / 1024, "c": 0.01}}, {"a": {"b": 0.003}, "b": {"a": 0.003}}]),
)

autoscales = st.one_of(
    st.just(Autoscale()),
    st.builds(
        Autoscale,
        period_s=quanta(16, 128),
        up_pending=st.sampled_from([1.0, 2.0]),
        down_pending=st.sampled_from([0.5, 1.0]),
        load_s=quanta(0, 128),
    ),
)


@st.composite
def fleets(draw: Draw, models: Callable[[str], st.SearchStrategy[ModelSpec]] = model_specs) -> FleetSpec:
    names = tuple(f"m{m}" for m in range(draw(st.integers(1, 3))))
    count = draw(st.one_of(st.integers(1, 4), st.integers(1, 9)))
    workers = tuple(draw(worker_specs(w, names, 0 < w == count - 1)) for w in range(count))
    troubles = draw(st.lists(faults(count, names), max_size=5))
    balancers = draw(st.integers(1, 3))
    if not workers[-1].present and draw(st.booleans()):
        troubles.append(Fault("join", workers[-1].name, draw(quanta(64, 640)), draw(quanta(0, 64)), 1.0))
    return FleetSpec(
        models=tuple(draw(models(name)) for name in names),
        workers=workers,
        balancers=balancers,
        peers_s=draw(st.sampled_from([None, None, 0.0, 2 / 1024])),
        reports=draw(reports),
        network=draw(networks),
        faults=tuple(troubles),
        cold=draw(st.sampled_from([ColdStart(), ColdStart(3, 4.0)])),
        autoscale=draw(autoscales),
        cache=draw(st.sampled_from([CacheSpec(), CacheSpec(2, 0.5)])),
        retries=draw(st.integers(0, 3)),
        settings=draw(settings),
        zones=draw(maybe(st.tuples(*[st.sampled_from(ZONES)] * balancers), ())),
    )


@st.composite
def arrivals(draw: Draw, fleet: FleetSpec, most: int = 100, least: int = 1) -> Arrivals:
    """Bursts and pauses of `least` to `most` requests, or a few over several seconds; open loop or closed."""
    gaps = [1, 4, 16, 400] if least == 1 else [1, 4, 16]
    extras = draw(st.one_of(st.just(set[str]()), st.sets(st.sampled_from(["sequences", "streams", "patience"]))))
    seed, longest_gap = draw(st.integers(0, 1000)), draw(st.sampled_from(gaps))
    bits = [mix(mix(seed) ^ i) for i in range(draw(st.integers(least, most if longest_gap < 400 else 20)))]
    model = [b % len(fleet.models) for b in bits]
    most_rows = [fleet.models[m].batching.max_batch_rows for m in model]
    found = arrivals_of(
        list(accumulate((b >> 8) % (longest_gap + 1) / 1024 for b in bits)),
        model=model,
        rows=[1 + (b >> 16) % most if b >> 24 & 1 else 1 for b, most in zip(bits, most_rows, strict=True)],
        work=[(0.5, 1.0, 1.0, 2.0)[b >> 25 & 3] for b in bits],
        key=[b >> 27 & 7 if b >> 30 & 1 else 0 for b in bits],
        deadline_s=[0.05 if b >> 31 & 1 else math.inf for b in bits],
        priority=[b >> 32 & 3 for b in bits],
        balancer=[(b >> 34) % fleet.balancers for b in bits],
        tenant=[(b >> 40) % 3 for b in bits],
        clients=draw(st.sampled_from([0, 0, 0, 1, 4])),
        responses=[b >> 44 & 7 if b >> 47 & 1 and "streams" in extras else 0 for b in bits],
        first_share=[0.25 if b >> 48 & 1 else 1.0 for b in bits],
        patience_s=[(1 + (b >> 49 & 63)) / 1024 if b >> 55 & 1 and "patience" in extras else math.inf for b in bits],
    )
    return in_sequences(found, bits) if "sequences" in extras else found


def in_sequences(arrivals: Arrivals, bits: list[int]) -> Arrivals:
    """Half of the requests belong to one of a few sequences, whose first one mostly starts them."""
    sequence = np.array([b >> 56 & 7 if b >> 59 & 1 else -1 for b in bits], np.int32)
    sequence = np.where(sequence < len(bits), sequence, -1)
    key, model, rows = (getattr(arrivals, name).copy() for name in ("key", "model", "rows"))
    starts = np.zeros(len(bits), bool)
    for q in set(sequence.tolist()) - {-1}:
        own = np.flatnonzero(sequence == q)
        starts[own[0]] = q != 3
        key[own], model[own], rows[own] = mix(q + 1), model[own[0]], 1
    assert arrivals.extras is not None
    extras = dataclasses.replace(arrivals.extras, sequence=sequence.astype(np.int32), starts=starts)
    return dataclasses.replace(arrivals, key=key, model=model, rows=rows, extras=extras)


@st.composite
def scenarios(draw: Draw) -> Scenario:
    fleet = draw(fleets())
    return Scenario(fleet, draw(arrivals(fleet)), draw(st.integers(0, 1000)))


def either_model(name: str) -> st.SearchStrategy[ModelSpec]:
    return st.one_of(generating_models(name), generating_models(name), model_specs(name))


@st.composite
def generating_scenarios(draw: Draw) -> Scenario:
    """Prompts of up to 40 tokens that begin with one of a few texts; up to 12 tokens are generated."""
    fleet = draw(fleets(either_model))
    requests = draw(arrivals(fleet))
    bits = [mix(mix(draw(st.integers(0, 1000))) ^ i) for i in range(len(requests))]
    tokens = [1 + (b & 63) % 40 for b in bits]
    # Text t begins with its own blocks 100 t, 100 t + 1, ...; after the third, those of one request are its own.
    texts = [[100 * (b >> 6 & 3) + i + (i >= 3) * 1000 * (b >> 8 & 7) for i in range(10)] for b in bits]
    blocks = [text[: (b >> 11) % (count // 4 + 1)] for b, text, count in zip(bits, texts, tokens, strict=True)]
    output = [1 + (b >> 20) % 12 for b in bits]
    return Scenario(fleet, prompting(requests, tokens, output, blocks), draw(st.integers(0, 1000)))


held_models = st.builds(
    HeldModel, window_batches=st.sampled_from([0.0, 1.0, 1.0, 2.5]), forming=st.sampled_from([True, False])
)
holdings = st.builds(
    HoldingSettings,
    models=st.dictionaries(st.sampled_from(["m0", "m1", "m2"]), held_models, min_size=1).map(
        lambda models: {"m0": HeldModel(), **models}
    ),
    order=st.sampled_from(["arrival", "deadline", "priority", "fair", "shortest"]),
    detour=st.sampled_from([1.0, 1.5, math.inf]),
    default_deadline_s=st.sampled_from([1.0, 0.0625]),
    longest_wait_s=st.sampled_from([1.0, 0.0625]),
    max_requests=st.sampled_from([1000, 1000, 5]),
    max_s=st.sampled_from([10.0, 0.125]),
    overflow=st.sampled_from(["refuse", "place"]),
    weights=st.sampled_from([{}, {"a": 2.0, "b": 0.5}]),
)


@st.composite
def holding_scenarios(draw: Draw) -> Scenario:
    """Some models' requests are held, but for those that keys bind."""
    fleet, requests, seed = draw(scenarios())
    chosen = dataclasses.replace(fleet.settings, holding=draw(holdings))
    return Scenario(dataclasses.replace(fleet, settings=chosen, tenants=("a", "b")), requests, seed)
