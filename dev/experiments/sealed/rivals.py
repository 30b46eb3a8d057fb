"""Who is compared: heuristics with their defaults, and each of them tuned by a small grid.

They are tuned on what `learned` is trained on: the train scenarios, and some of the written distribution.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from policies import BUILTIN
from policies.base import FloatArray, Policy
from simulator.capacity import capacity_per_s
from simulator.compare.metrics import WARM_UP_SHARE, counted_latency_s
from simulator.run import run
from simulator.scenario import Scenario, load_scenario, scenario_names
from simulator.spec import SimulatedWorker
from simulator.train.distribution import NEVER_SEALED, scenario
from simulator.train.validation import TAIL_WEIGHT

DEFAULTS = ("expected_latency", "wlpr", "least_requests", "peak_ewma", "prequal", "power_of_two")
BASELINE = DEFAULTS[0]
TUNED = Path(__file__).parent / "tuned.json"
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "expected_latency": {
        "temperature": (0.0, 0.02),
        "delayed_share": (0.1, 0.2, 0.4),
        "delayed_share_other_models": (0.2, 0.5, 1.0),
        "work_behind_share": (0.0, 0.5, 1.0),
    },
    "wlpr": {"count_self": (True, False), "weights_are_capacities": (False, True)},
    "least_requests": {"choices": (0, 2, 3)},
    "peak_ewma": {"choices": (0, 2, 3, 5)},
    "prequal": {"hot_quantile": (0.6, 0.84, 0.95), "pool": (2, 3, 5), "latency": ("observed", "expected")},
    "power_of_two": {"choices": (2, 3, 5), "weighted": (False, True), "weights_are_capacities": (False, True)},
    "consistent_hash": {
        "balance_factor": (1.1, 1.25, 1.5),
        "floor": (2.0, 4.0, 8.0),
        "weights_are_capacities": (False, True),
    },
}
"""By policy, the values of its options; every combination is tried. `weights_are_capacities`: a worker's weight is its
capacity for the mix of requests, as an operator sets it who has measured; else it is 1."""
_WRITTEN = 24
_WRITTEN_SEED = 7000
_SEEDS = tuple(range(7000, 7004))
_REQUESTS = 4000
_WEIGHTS = "weights_are_capacities"


@dataclass(frozen=True)
class Rival:
    policy: Policy
    weights_are_capacities: bool

    def scenario(self, given: Scenario) -> Scenario:
        return with_weights(given) if self.weights_are_capacities else given


def with_weights(scenario: Scenario) -> Scenario:
    """The same, every worker's weight its capacity for these requests, over the mean worker's."""
    fleet, workload = scenario.fleet, scenario.workload

    @functools.cache
    def capacity(alike: SimulatedWorker) -> float:
        held = tuple(each for each in workload.traffic if not alike.models or each.name in alike.models)
        return capacity_per_s(replace(fleet, workers=(alike,)), replace(workload, traffic=held))

    # Late ones as if they were there; equal ones once.
    found = [capacity(replace(worker, name="one", present=True)) for worker in fleet.workers]
    mean = sum(found) / len(found)
    workers = tuple(replace(one, weight=each / mean) for one, each in zip(fleet.workers, found, strict=True))
    return replace(scenario, name=f"{scenario.name}, capacities as weights", fleet=replace(fleet, workers=workers))


def rival(name: str, settings: Mapping[str, Any]) -> Rival:
    options = {option: value for option, value in settings.items() if option != _WEIGHTS}
    return Rival(BUILTIN[name](**options), bool(settings.get(_WEIGHTS, False)))


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the options' values."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def tuned_on() -> list[Scenario]:
    """The train scenarios, and some of the written distribution that nothing else is made of."""
    drawn = (replace(scenario(_WRITTEN_SEED, NEVER_SEALED + k), name=f"written {k}") for k in range(_WRITTEN))
    return [*map(load_scenario, scenario_names("train")), *drawn]


def tune(
    names: Sequence[str] = (),
    requests: int = _REQUESTS,
    seeds: Sequence[int] = _SEEDS,
    log: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Of each policy the settings of the lowest loss on what `tuned_on` gives; `names`: on these scenarios alone.

    The loss is the mean over scenarios of log(mean ratio) + `TAIL_WEIGHT` * log(p99 ratio) to `BASELINE` with its
    defaults, on equal arrivals; failed requests count as at least a second, those never answered as 20 s.
    """
    scenarios = list(map(load_scenario, names)) or tuned_on()
    base = _latencies(scenarios, Rival(BUILTIN[BASELINE](), weights_are_capacities=False), requests, seeds)
    found: dict[str, Any] = {}
    for name in GRIDS:
        tried: list[dict[str, Any]] = []
        for settings in points(GRIDS[name]):
            ratios = np.log(_latencies(scenarios, rival(name, settings), requests, seeds) / base)
            mean, p99 = ratios.mean(axis=(1, 2))
            tried.append({"settings": settings, "loss": round(float(mean + TAIL_WEIGHT * p99), 5)})
        best = min(tried, key=lambda each: each["loss"])
        log(f"{name}: {best['settings']}, loss {best['loss']:.4f} ({len(tried)} tried)")
        found[name] = {"chosen": best, "tried": tried}
    return {
        "scenarios": [each.name for each in scenarios],
        "seeds": list(seeds),
        "requests": requests,
        "best": min(found, key=lambda name: found[name]["chosen"]["loss"]),
        "policies": found,
    }


def written(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1) + "\n"


def read_tuned() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TUNED.read_text(encoding="utf-8"))
    return found


def tuned_name(name: str) -> str:
    return f"{name}, tuned"


def rivals(tuned: Mapping[str, Any]) -> dict[str, Rival]:
    found = {name: Rival(BUILTIN[name](), weights_are_capacities=False) for name in DEFAULTS}
    for name, each in tuned["policies"].items():
        found[tuned_name(name)] = rival(name, each["chosen"]["settings"])
    return found


def _latencies(scenarios: Sequence[Scenario], one: Rival, requests: int, seeds: Sequence[int]) -> FloatArray:
    """Mean and p99 in seconds, `(2, scenarios, seeds)`."""
    found = []
    for given in scenarios:
        played = one.scenario(given)
        arrivals = [played.arrivals(seed, requests) for seed in seeds]
        result = run(played.fleet, arrivals, one.policy, seeds=seeds)
        latency_s = counted_latency_s(result)[:, int(requests * WARM_UP_SHARE) :]
        found.append([latency_s.mean(axis=1), np.quantile(latency_s, 0.99, axis=1)])
    return np.array(found).transpose(1, 0, 2)
