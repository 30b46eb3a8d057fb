"""The cost's numbers and tolls for one fleet, from whole episodes of it.

First the numbers alone, then with them a toll for each model and worker, by CMA-ES (Hansen and Ostermeier 2001; its
separable form, Ros and Hansen 2008). All candidates of an iteration play the same arrivals, and so does
`expected_latency`: what is told is by how much each is better than that.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from cmaes import CMA, SepCMA

from policies.base import FloatArray
from policies.expected_latency import ExpectedLatency
from policies.hashing import hash_draw, key_of, kind_hash_of, model_hash_of
from policies.learned.features import NO_TOLLS, Numbers
from policies.learned.network import Network
from simulator.pool import TaskPool
from simulator.run import run
from simulator.scenario import Scenario
from simulator.spec import FleetSpec
from simulator.train.pgpe import Parts, parts_of, weighed
from simulator.train.settings import TrainingSettings
from simulator.train.validation import learned

_DEVIATION = 0.25
_TOLL_UNIT = 4.0
"""Services. Workers of a kind are alike, and small tolls leave them so: only large ones say which is whose."""
_RESTRAINT = 0.02
"""What tolls cost, times their mean square: those that change nothing stay small."""
_SHARPEST = 1e4
"""Of `beta`, which stands for a temperature of 0."""


class _Coordinate(NamedTuple):
    """A number as the search moves it, between 0 and 1."""

    most: float
    power: int

    def value(self, x: float) -> float:
        return self.most * min(max(x, 0.0), 1.0) ** self.power

    def place(self, value: float) -> float:
        return float(min(value / self.most, 1.0) ** (1 / self.power))


_TEMPERATURE = _Coordinate(0.2, 2)
_NUMBERS = {
    "error_penalty_s": _Coordinate(8.0, 2),
    "delayed_share": _Coordinate(2.0, 2),
    "delayed_share_other_models": _Coordinate(4.0, 2),
    "work_behind_share": _Coordinate(1.0, 1),
    "saving_factor": _Coordinate(64.0, 2),
    "ttft_weight": _Coordinate(1.0, 1),
}
_OF_BOTH = {"error_penalty_s", "saving_factor"}
_OF_GENERATED = {"ttft_weight"}
"""What else counts of them where a model generates; where one does not, all others do."""
_FAILING = {"errors", "crash"}
"""Faults that requests fail by."""


class Place(NamedTuple):
    """Where a model may be served."""

    model: str
    worker: str
    device: str


def numbers_of(fleet: FleetSpec) -> tuple[str, ...]:
    """Those that have a say in this fleet. What it never shows keeps its default: moved for nothing, it would end
    anywhere, and a twin, in which nothing fails, would serve where errors are free.
    """
    generates = {model.generation is not None for model in fleet.models}
    shown = {
        "error_penalty_s": any(fault.kind in _FAILING for fault in fleet.faults),
        "saving_factor": fleet.cache.entries > 0 or fleet.generates,
    }
    of_rows = _NUMBERS.keys() - _OF_GENERATED if False in generates else _OF_BOTH
    of_prompts = _OF_BOTH | _OF_GENERATED if True in generates else set[str]()
    return tuple(name for name in Numbers._fields if name in of_rows | of_prompts and shown.get(name, True))


def places_of(fleet: FleetSpec) -> tuple[Place, ...]:
    """Those that have tolls: with one model there is nothing to part the workers among."""
    if len(fleet.models) < 2:
        return ()
    return tuple(
        Place(model.name, worker.name, worker.device)
        for model in fleet.models
        for worker in fleet.workers
        if fleet.may_hold(worker, model.name)
    )


def tolls_of(places: Sequence[Place], raw: FloatArray) -> dict[Place, float]:
    """Of each place; of each model the least is none."""
    least = {place.model: np.inf for place in places}
    for place, toll in zip(places, raw, strict=True):
        least[place.model] = min(least[place.model], toll)
    return {place: float(toll - least[place.model]) for place, toll in zip(places, raw, strict=True)}


def table_of(tolls: Mapping[Place, float]) -> FloatArray:
    """`Network.tolls`: those of the places, and of each kind of device the mean of its places'."""
    kinds: dict[tuple[str, str], list[float]] = {}
    lines: dict[float, float] = {}
    for place, toll in tolls.items():
        lines[_identity(key_of(place.worker), place.model)] = toll
        if place.device not in ("", "*"):
            kinds.setdefault((place.device, place.model), []).append(toll)
    for (device, model), several in kinds.items():
        lines[_identity(kind_hash_of(device), model)] = float(np.mean(several))
    return np.array([*sorted(lines.items()), *NO_TOLLS.tolist()])


def _identity(name_hash: int, model: str) -> float:
    return float(hash_draw(np.array([name_hash], np.uint64), np.uint64(model_hash_of(model)))[0])


def toll_at(table: FloatArray, place: Place) -> float:
    (found,) = np.flatnonzero(table[:, 0] == _identity(key_of(place.worker), place.model))[:1].tolist() or [-1]
    return float(table[found, 1])


def named(table: FloatArray, places: Sequence[Place]) -> dict[str, dict[str, float]]:
    """For people: the toll by model and worker."""
    found: dict[str, dict[str, float]] = {}
    for place in places:
        found.setdefault(place.model, {})[place.worker] = round(toll_at(table, place), 3)
    return found


class CostSearch:
    """An algorithm as `Pgpe` is one, for one fleet: what it steps is the cost, and not what corrects it."""

    def __init__(
        self, settings: TrainingSettings, scenario: Scenario, rivals: FleetSpec, seed: int, start: Network
    ) -> None:
        """`rivals`: the fleet as `expected_latency` has it."""
        self._scenario, self._rivals, self._seed, self._start = scenario, rivals, seed, start
        self._numbers, self._places = numbers_of(scenario.fleet), places_of(scenario.fleet)
        first = self._of_numbers_alone = round(settings.coefficients_share * settings.iterations)
        # Without tolls it ends where those would begin.
        self.settings = settings if self._places else dataclasses.replace(settings, iterations=max(first, 1))
        self.iteration = 0
        self._costs: list[list[float]] = []
        known = dict(zip(Numbers._fields, start.numbers.tolist(), strict=True))
        numbers = [_NUMBERS[name].place(known[name]) for name in self._numbers]
        self._search: CMA | SepCMA = self._begin(CMA, np.array([_TEMPERATURE.place(1 / float(start.beta)), *numbers]))

    def _begin(self, kind: Callable[..., CMA | SepCMA], mean: FloatArray) -> CMA | SepCMA:
        s = self.settings
        return kind(mean=mean, sigma=_DEVIATION, population_size=s.candidates, seed=self._seed)

    @property
    def network(self) -> Network:
        return self._network_of(self._search.mean)

    def _network_of(self, found: FloatArray) -> Network:
        beta = 1 / max(_TEMPERATURE.value(found[0]), 1 / _SHARPEST)
        numbers, raw = self._start.numbers.copy(), self._tolls_in(found)
        for name, x in zip(self._numbers, found[1:], strict=False):
            numbers[Numbers._fields.index(name)] = _NUMBERS[name].value(x)
        tolls = table_of(tolls_of(self._places, raw)) if len(raw) else self._start.tolls
        return self._start._replace(beta=np.array(beta), numbers=numbers, tolls=tolls)

    def _tolls_in(self, found: FloatArray) -> FloatArray:
        """As the search moves them; none: it does not yet."""
        return _TOLL_UNIT * found[1 + len(self._numbers) :]

    @property
    def decisions(self) -> int:
        return self.settings.candidates * self.settings.episodes * self.settings.requests

    def state(self) -> dict[str, FloatArray]:
        """What was told so far: with equal seeds the search asks for the same again."""
        return {"costs": np.array(self._costs).reshape(self.iteration, self.settings.candidates)}

    def restore(self, state: Mapping[str, FloatArray]) -> None:
        for costs in state["costs"].tolist():
            self._tell(self._ask(), costs)

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot."""
        s = self.settings
        asked = self._ask()
        seeds = np.random.default_rng((self._seed, self.iteration)).integers(1 << 31, size=s.episodes).tolist()
        played = partial(parts_played, s, self._scenario, self._rivals, seeds)
        players = [None, *map(self._network_of, asked)]  # `expected_latency` first
        tasks = min(s.tasks, len(players))
        found = pool.map(played, [players[task::tasks] for task in range(tasks)])
        by_default, *by_networks = [found[k % tasks][k // tasks] for k in range(len(players))]
        costs = [advantage(parts, by_default, s) for parts in by_networks]
        restraint = [_RESTRAINT * float(np.square(self._tolls_in(x)).sum() / max(len(self._places), 1)) for x in asked]
        told = [cost + held for cost, held in zip(costs, restraint, strict=True)]
        self._tell(asked, told)
        return {"cost": float(np.mean(costs)), "best_cost": min(costs), "beta": float(self.network.beta)}

    def _ask(self) -> list[FloatArray]:
        if self.iteration == self._of_numbers_alone and self._places:
            tolls = [toll_at(self._start.tolls, place) / _TOLL_UNIT for place in self._places]
            self._search = self._begin(SepCMA, np.array([*self._search.mean, *tolls]))
        return [self._search.ask() for _ in range(self.settings.candidates)]

    def _tell(self, asked: Sequence[FloatArray], costs: Sequence[float]) -> None:
        self._search.tell(list(zip(asked, costs, strict=True)))
        self._costs.append(list(costs))
        self.iteration += 1


def parts_played(
    settings: TrainingSettings,
    scenario: Scenario,
    rivals: FleetSpec,
    seeds: Sequence[int],
    networks: Sequence[Network | None],
) -> list[Parts]:
    """What each network's episodes cost, all of the same arrivals; None: `expected_latency`'s."""
    arrivals = [scenario.arrivals(seed, settings.requests) for seed in seeds]
    found = []
    for network in networks:
        fleet, policy = (rivals, ExpectedLatency()) if network is None else (scenario.fleet, learned(network))
        found.append(parts_of(run(fleet, arrivals, policy, seeds=seeds)))
    return found


def advantage(parts: Parts, by_default: Parts, settings: TrainingSettings) -> float:
    """What costs more than by default, over all episodes; a logarithm, below 0 is better."""
    more = weighed(parts, by_default, settings) - weighed(by_default, by_default, settings)
    return float(more.mean())
