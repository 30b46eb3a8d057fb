"""Who is compared: `expected_latency` at three weights of the first token, and the field's rules, with their defaults
and tuned by a grid. All are tuned on scenarios of the written distribution that no sealed one is."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dev.experiments.language.distribution import scenario
from dev.experiments.sealed.rivals import points
from policies import BUILTIN
from policies.base import FloatArray
from simulator.compare.metrics import RunMetrics, measure
from simulator.pool import TaskPool
from simulator.run import run
from simulator.train.distribution import NEVER_SEALED
from simulator.train.validation import TAIL_WEIGHT

OURS = "expected_latency"
FIELD = ("prefix_score", "prefix_load_cost", "cache_aware", "least_tokens")
TUNED = Path(__file__).parent / "tuned.json"
GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    OURS: {"saving_factor": (2.0, 4.0, 8.0, 16.0, 32.0), "temperature": (0.0, 0.02, 0.05)},
    "prefix_score": {
        "prefix_weight": (0.5, 1.0, 2.0, 3.0, 6.0),
        "queue_weight": (1.0, 2.0),
        "memory_weight": (0.0, 2.0),
    },
    "prefix_load_cost": {"prefill_weight": (0.25, 1.0, 4.0, 16.0, 64.0), "temperature": (0.0, 0.1)},
    "cache_aware": {
        "cache_threshold": (0.1, 0.3, 0.5),
        "balance_abs_threshold": (2.0, 8.0, 32.0),
        "balance_rel_threshold": (1.1, 1.5),
    },
}
"""By policy, the values of its options; every combination is tried."""
FIGURES = {
    "first": "mean to first token",
    "first_p99": "p99 of it",
    "whole": "mean whole answer",
    "whole_p99": "p99 of it",
}
GOALS: Mapping[str, FloatArray] = {
    "both": np.array([1.0, TAIL_WEIGHT, 1.0, TAIL_WEIGHT]),
    "first token": np.array([1.0, TAIL_WEIGHT, 0.0, 0.0]),
    "whole answer": np.array([0.0, 0.0, 1.0, TAIL_WEIGHT]),
}
"""What is tuned for: weights of the logarithms of `FIGURES`."""
SCENARIOS, SEEDS = 24, (7000, 7001, 7002)
_SEED = 7100
_NEVER_S = 1e4
"""Of who answered nothing."""


def play(place: tuple[int, int], name: str, options: Mapping[str, Any], seeds: Sequence[int]) -> RunMetrics:
    """One policy in the scenario of that seed and number."""
    given = scenario(*place)
    arrivals = [given.arrivals(seed) for seed in seeds]
    return measure(run(given.fleet, arrivals, BUILTIN[name](**options), seeds=seeds))


def _play(task: tuple[tuple[int, int], str, Mapping[str, Any], Sequence[int]]) -> RunMetrics:
    return play(*task)


def figures(found: RunMetrics) -> FloatArray:
    """Logarithms of `FIGURES` in seconds, `(4, seeds)`."""
    seconds = found.first_mean_s, found.first_p99_s, found.latency.mean_s, found.latency.p99_s
    logarithms: FloatArray = np.log(np.nan_to_num(np.stack(seconds), nan=_NEVER_S))
    return logarithms


def play_all(
    places: Sequence[tuple[int, int]],
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    seeds: Sequence[int],
    pool: TaskPool,
) -> list[list[RunMetrics]]:
    """By setting, then by place."""
    tasks = list(itertools.product(settings, places))
    # Inherited: each has a core, and many threads would fight for it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = pool.map(_play, [(place, *each, seeds) for each, place in tasks])
    return [found[i : i + len(places)] for i in range(0, len(found), len(places))]


def _places() -> list[tuple[int, int]]:
    return [(_SEED, NEVER_SEALED + number) for number in range(SCENARIOS)]


def _settings(names: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, options) for name in names for options in ({}, *points(GRIDS[name]))]


def runs_of(names: Sequence[str]) -> int:
    return len(_places()) * len(_settings(names))


def tune(names: Sequence[str], pool: TaskPool) -> dict[str, Any]:
    """Of each of these policies, for each goal, the options of the lowest loss: the mean over scenarios and seeds of
    the goal's weighted logarithms of latencies, over those of the policy's defaults."""
    places, settings = _places(), _settings(names)
    played = play_all(places, settings, SEEDS, pool)
    means = [np.mean([figures(each).mean(axis=1) for each in of_one], axis=0) for of_one in played]
    found: dict[str, Any] = {}
    for name in names:
        own = [(options, mean) for (of, options), mean in zip(settings, means, strict=True) if of == name]
        (_, base), tried = own[0], own[1:]
        losses = {
            goal: [round(float((mean - base) @ weights), 5) for _, mean in tried] for goal, weights in GOALS.items()
        }
        chosen = {goal: tried[int(np.argmin(of))][0] for goal, of in losses.items()}
        found[name] = {"chosen": chosen, "tried": [options for options, _ in tried], "losses": losses}
    return found


@functools.cache
def read_tuned() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TUNED.read_text(encoding="utf-8"))
    return found


def subjects() -> dict[str, dict[str, Any]]:
    """Ours, by what the page calls them, with their options."""
    tuned = read_tuned()[OURS]["chosen"]["both"]
    return {
        OURS: {},
        f"{OURS}, ttft_weight 0": {"ttft_weight": 0.0},
        f"{OURS}, ttft_weight 1": {"ttft_weight": 1.0},
        f"{OURS}, tuned": tuned,
    }


def rivals() -> dict[str, tuple[str, dict[str, Any]]]:
    """The field's, by what the page calls them: rule and options."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in FIELD:
        found[name] = name, {}
        chosen = read_tuned()[name]["chosen"] if name in GRIDS else {}
        for goal, options in chosen.items():
            # Where one choice is the best for several goals, it stands once.
            goals = [each for each in chosen if chosen[each] == options]
            if goal == goals[0]:
                of = "" if len(goals) == len(GOALS) else f" for {' and '.join(goals)}"
                found[f"{name}, tuned{of}"] = name, options
    return found
