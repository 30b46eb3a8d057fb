"""Steps a second of reinforcement learning environments, ours and others', for scale."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from benchmarks.results import Aim, Table

ENVIRONMENTS = (1, 64, 1024)
_SCENARIO = "several-models"
_OURS = f"balancer/Fleet-v0, {_SCENARIO}"
_LEAST_STEPS_PER_S = {64: 400_000.0}
_ROUNDS = 5
_STEPS = 200
_NO_PARK = (
    "not installed: it is not on PyPI, where `park` is another project; "
    "with github.com/park-project/park on the path this row fills itself"
)


def for_scale(quick: bool) -> tuple[Table, dict[str, Any]]:
    """A row for each environment, and the raw numbers."""
    rounds = 1 if quick else _ROUNDS
    parts: dict[str, Callable[[int, int], float] | str] = {
        "Gymnasium CartPole-v1, its vector environment": _cart_pole,
        _OURS: _fleet if _registered() else "not in this version",
        "Park load_balance": _park if _there("park.envs") else _NO_PARK,
    }
    rows: list[list[str]] = []
    raw: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, str):
            rows.append([name, *[""] * len(ENVIRONMENTS), part])
            raw[name] = part
            continue
        counts = ENVIRONMENTS if part is not _park else (1,)
        steps_per_s = {count: part(count, rounds) for count in counts}
        rows.append([name, *(f"{steps_per_s[e] / 1e3:,.0f}" if e in steps_per_s else "" for e in ENVIRONMENTS), ""])
        raw[name] = steps_per_s
    columns = ["environment", *(f"{count:,} at once" for count in ENVIRONMENTS), ""]
    return Table("For scale: thousand steps a second, random actions", columns, rows), raw


def aims(raw: dict[str, Any]) -> list[Aim]:
    """Of what `for_scale` found; none where our environment is missing."""
    found = raw[_OURS]
    if isinstance(found, str):
        return []
    return [
        Aim(f"Environments, {count} side by side", found[count] / 1e3, "thousand steps/s", least / 1e3, True)
        for count, least in _LEAST_STEPS_PER_S.items()
    ]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _registered() -> bool:
    if _there("simulator.envs"):
        importlib.import_module("simulator.envs")
    return "balancer/Fleet-v0" in gymnasium.registry


def _cart_pole(count: int, rounds: int) -> float:
    return _steps_per_s(gymnasium.make_vec("CartPole-v1", count, vectorization_mode="vector_entry_point"), rounds)


def _fleet(count: int, rounds: int) -> float:
    return _steps_per_s(
        gymnasium.make_vec("balancer/Fleet-v0", count, vectorization_mode="vector_entry_point", scenario=_SCENARIO),
        rounds,
    )


def _steps_per_s(environments: gymnasium.vector.VectorEnv[Any, Any, Any], rounds: int) -> float:
    """Median over rounds; CPU time of environments' steps alone."""
    environments.reset(seed=0)
    environments.action_space.seed(0)
    actions = [environments.action_space.sample() for _ in range(_STEPS)]
    found = []
    for i in range(rounds + 1):  # the first warms up
        began_s = time.thread_time()
        for action in actions:
            environments.step(action)
        if i:
            found.append(_STEPS * environments.num_envs / (time.thread_time() - began_s))
    environments.close()
    return float(np.median(found))


def _park(_: int, rounds: int) -> float:
    environment = importlib.import_module("park").make("load_balance")
    environment.reset()
    found = []
    for i in range(rounds + 1):
        actions = [environment.action_space.sample() for _ in range(_STEPS)]
        began_s = time.thread_time()
        for action in actions:
            if environment.step(action)[2]:
                environment.reset()
        if i:
            found.append(_STEPS / (time.thread_time() - began_s))
    return float(np.median(found))
