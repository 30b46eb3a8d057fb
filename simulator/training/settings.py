"""Settings by name, as `--set` changes them: those of the algorithm, and those of the run around it."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from balancer.files.schema import did_you_mean

ALGORITHMS = {
    "pgpe": ("simulator.training.pgpe", "Pgpe", "PgpeSettings"),
    "ppo": ("simulator.training.ppo", "Ppo", "PpoSettings"),
    "reinforce": ("simulator.training.reinforce", "Reinforce", "ReinforceSettings"),
}
"""By name: where it is, the class (a `trainer.Algorithm`), its settings; imported when used, for some need torch."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What is trained on, and how it is judged on the way."""

    random_share: float = 0.7
    """Of episodes with a random scenario, the others having one of those named; in validation as in training."""
    evaluate_every: int = 10
    """Iterations from one evaluation to the next."""
    patience: int = 10
    """Evaluations without improvement after which training ends."""
    validation_episodes: int = 256
    """Played at each evaluation."""
    report_seeds: int = 10
    """Of each scenario in the scoreboard at the end; five times as many random scenarios."""
    range_episodes: int = 256
    """From which the ranges of the inputs are taken at the end."""
    episode_requests: int = 3000
    """Of the episodes of evaluation, scoreboard and ranges."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a number out of range."""
        if not 0 <= self.random_share <= 1:
            raise ValueError(f"random_share is {self.random_share}: give a share from 0 to 1")
        least = {"evaluate_every": 1, "patience": 1, "validation_episodes": 2, "report_seeds": 2, "range_episodes": 1}
        for name, at_least in {**least, "episode_requests": 20}.items():
            if getattr(self, name) < at_least:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least {at_least}")


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
    for name, value in changes.items():
        if name not in known:
            raise ValueError(f"there is no setting {name!r}; {did_you_mean(name, known)}")
        _check_kind(name, value, known[name])
    parts: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in changes.items():
        part, dot, inner = name.partition(".")
        if dot:
            parts.setdefault(part, {})[inner] = value
        else:
            own[name] = type(known[name])(value)
    own |= {part: changed(getattr(settings, part), inner) for part, inner in parts.items()}
    return dataclasses.replace(settings, **own)  # type: ignore[type-var]  # a dataclass, as all settings are


def _check_kind(name: str, value: Any, default: Any) -> None:
    if isinstance(default, bool | str):
        fits = type(value) is type(default)
        wanted = "true or false" if isinstance(default, bool) else "a word"
    else:
        whole = isinstance(default, int)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number and 0 <= value < math.inf and (not whole or value == int(value))
        wanted = f"a {'whole ' if whole else ''}number of at least 0, such as {default}"
    if not fits:
        raise ValueError(f"{name} is {value!r}: give {wanted}")
