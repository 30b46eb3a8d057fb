"""Settings by name, as `--set` changes them: those of the algorithm, and those of the run around it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from balancer.files.schema import CHECKED, Count, Fraction, NotNegative, Positive, did_you_mean

ALGORITHMS = {
    "pgpe": ("simulator.train.pgpe", "Pgpe", "PgpeSettings"),
    "ppo": ("simulator.train.ppo", "Ppo", "PpoSettings"),
    "reinforce": ("simulator.train.reinforce", "Reinforce", "ReinforceSettings"),
}
"""By name: where it is, the class (a `trainer.Algorithm`), its settings; imported when used, for some need torch."""


@dataclass(config=CHECKED, frozen=True, slots=True)
class RunSettings:
    """What is trained on, and how it is judged on the way."""

    random_share: Fraction = 0.7
    """Of episodes with a random scenario, the others having one of those named; in validation as in training."""
    evaluate_every: Count = 10
    """Iterations from one evaluation to the next."""
    patience: Count = 10
    """Evaluations without improvement after which training ends."""
    validation_episodes: Annotated[int, Field(ge=2)] = 256
    """Played at each evaluation."""
    report_seeds: Annotated[int, Field(ge=2)] = 10
    """Of each scenario in the scoreboard at the end; five times as many random scenarios."""
    range_episodes: Count = 256
    """From which the ranges of the inputs are taken at the end."""
    episode_requests: Annotated[int, Field(ge=20)] = 3000
    """Of the episodes of evaluation, scoreboard and ranges."""


@dataclass(config=CHECKED, frozen=True, slots=True)
class DecisionSettings:
    """What algorithms that learn from single decisions have in common."""

    iterations: Count = 400
    """Steps, after which it is done; they shrink linearly to a twentieth."""
    episodes: Count = 32
    """Of an iteration."""
    requests: Count = 1000
    """Of an episode."""
    hidden: Count = 8
    beta: Positive = 20.0
    """At the start."""
    horizon: Positive = 5.0
    """Of the discount, in mean latencies of `expected_latency`."""
    tail_weight: NotNegative = 0.5
    deadline_weight: NotNegative = 0.5


Some = TypeVar("Some")


def algorithm_parts(name: str) -> tuple[Any, Any]:
    """The class of the algorithm and that of its settings.

    Raises:
        ModuleNotFoundError: what it needs is not installed.
    """
    module, algorithm, settings = ALGORITHMS[name]
    found = importlib.import_module(module)
    return getattr(found, algorithm), getattr(found, settings)


def flat_settings(settings: Any) -> dict[str, Any]:
    """All by name, those of parts as `part.name`."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{name}": inner for name, inner in flat_settings(value).items()}
        else:
            found[field.name] = value
    return found


def changed(settings: Some, changes: Mapping[str, Any]) -> Some:
    """The settings with the changes, by names as `flat_settings` has them.

    Raises:
        ValueError: there is no such setting, or it does not take the value; named, with the remedy.
    """
    known = flat_settings(settings)
    for name in changes:
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; {did_you_mean(name, known)}")
    parts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in changes.items():
        part, dot, inner = name.partition(".")
        if dot:
            parts.setdefault(part, {})[inner] = value
        else:
            own[name] = value
    own |= {part: changed(getattr(settings, part), inner) for part, inner in parts.items()}
    try:
        return dataclasses.replace(settings, **own)  # type: ignore[type-var]  # a dataclass, as all settings are
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name, rule = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
        raise ValueError(f"{name} is {wrong['input']!r}: {rule.replace('Input should', 'it must')}") from error
