"""What a run is: everything that its result depends on, as options name it, and made of that what is trained on."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from balancer.config.profile_file import load_profile
from balancer.load.arrivals import rescaled
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog, DecisionLogError
from policies.base import FloatArray
from policies.learned.artifact import Artifact, read_artifact
from policies.learned.features import SCHEMA
from policies.learned.network import Network, shapes
from simulator.envs.sampling import covering
from simulator.log.fleet import calibrate, scenario_from_log
from simulator.off_policy.calibrated import twin_of
from simulator.pool import TaskPool
from simulator.scenario import Scenario, load_scenario, scenario_names
from simulator.train.cost_search import CostSearch, Place, places_of
from simulator.train.pgpe import Pgpe
from simulator.train.scenarios import Randomised, random_scenario
from simulator.train.settings import TrainingSettings, make_settings
from simulator.train.validation import REPORT_SEED, ValidationEpisode, cases, validation_cases
from simulator.workload.trace import Recorded

NOT_TRAINED_ON = ("autoscale", "cache-affinity", "overload")
"""Of the train split, what the default leaves out: keys decide there, or nothing that routing does helps much."""
_ONE_FLEET = {
    **{"coefficients_share": 0.2, "requests": 12_000, "episode_requests": 12_000},
    **{"validation_episodes": 32, "report_seeds": 32, "range_episodes": 64},
    **{"hidden": 0, "beta": 50.0, "random_share": 0.0},
}
"""Defaults of training for one fleet: some two minutes of one core. One long episode teaches more than some short ones,
most of which go by before reports have told how fast workers are."""
_TRAINED_ON = 0.75
"""Share of a log that training sees; the rest is for validation."""
_BLOCKS = 64
"""Into which a log is cut for episodes, on average: training on one order of its requests learns that order."""
_LEAST_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Equal plans, versions and inputs give equal weights; see `course`."""

    seed: int = 0
    scenarios: tuple[str, ...] = ()
    fleet: str = ""
    """Scenario whose fleet is trained for, alone."""
    from_log: str = ""
    """The same, of a decision log."""
    last_hours: float = 0.0
    """Of the log; 0: all."""
    profile: tuple[str, ...] = ()
    unchecked: bool = False
    """Whether a log's fleet is trained for though its simulation is not like it."""
    init: str = ""
    """File of the policy to start from; empty: random weights."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By name; complete."""
    schema: str = SCHEMA

    @property
    def for_one_fleet(self) -> bool:
        return bool(self.fleet or self.from_log)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> TrainingPlan:
        lists = {name: tuple(found[name]) for name in ("scenarios", "profile")}
        return TrainingPlan(**{**found, **lists})


class Algorithm(Protocol):
    iteration: int

    @property
    def settings(self) -> TrainingSettings: ...

    @property
    def network(self) -> Network:
        """As it is so far."""

    @property
    def decisions(self) -> int:
        """Of an iteration."""

    def state(self) -> dict[str, FloatArray]:
        """All that `restore` needs to go on as if nothing had been."""

    def restore(self, state: Mapping[str, FloatArray]) -> None: ...

    def iterate(self, pool: TaskPool) -> dict[str, float]:
        """One step; returns what to plot."""


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    algorithm: Algorithm
    draw: Randomised
    validation: tuple[ValidationEpisode, ...]
    report: tuple[ValidationEpisode, ...]
    places: tuple[Place, ...] = ()
    """Where models have tolls."""
    weighs_keys: bool = False
    """Whether keys, which the router's hash places for `expected_latency`, are the trained policy's to weigh."""
    remarks: tuple[str, ...] = ()
    """On the fleet that was made of a log."""

    @property
    def inputs(self) -> str:
        """A hash of the scenarios: a log that grows, or a file that is edited, changes it."""
        return hashlib.sha256(pickle.dumps((self.draw, self.validation))).hexdigest()[:16]


def make_plan(given: Mapping[str, Any]) -> TrainingPlan:
    """The plan of the fields that are given, with defaults for all others.

    Raises:
        ValueError: a setting or file does not fit; named, with the remedy.
    """
    plan = TrainingPlan(**{**given, "settings": {}})
    several = [name for name in ("scenarios", "fleet", "from_log") if getattr(plan, name)]
    if len(several) > 1:
        raise ValueError(f"{' and '.join(several)} are given: train for many fleets, or for one; leave one out")
    if not several:
        names = tuple(name for name in scenario_names("train") if name not in NOT_TRAINED_ON)
        plan = dataclasses.replace(plan, scenarios=names)
    values = dict(given.get("settings", {}))
    if plan.init:
        hidden = start_of(plan.init).network.b1.size
        if values.setdefault("hidden", hidden) != hidden:
            raise ValueError(f"hidden is {values['hidden']}, and {plan.init} has {hidden}: leave one of the two out")
    if plan.for_one_fleet:
        values = _ONE_FLEET | values
    return dataclasses.replace(plan, settings=dataclasses.asdict(make_settings(values)))


def differences(plan: TrainingPlan, given: Mapping[str, Any]) -> list[str]:
    pairs = [(name, value, getattr(plan, name)) for name, value in given.items() if name != "settings"]
    pairs += [(name, value, plan.settings.get(name)) for name, value in given.get("settings", {}).items()]
    return [f"{name} is {_shown(value)} here and {_shown(was)} there" for name, value, was in pairs if value != was]


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else repr(value)


def start_of(init: str) -> Artifact:
    try:
        content = Path(init).read_bytes()
    except OSError as error:
        raise ValueError(f"init is {init}, which cannot be read ({error.strerror}); check the path") from error
    return read_artifact(content, init)


def course(plan: TrainingPlan) -> ResolvedPlan:
    """Read what the plan names.

    Raises:
        ValueError: something does not fit; named, with the remedy.
        OperatorError: a scenario, log or profile cannot be read.
    """
    if plan.from_log:
        found = log_scenarios(plan)
        return dataclasses.replace(course_over(plan, [found.seen], [found.unseen]), remarks=found.remarks)
    named = list(map(load_scenario, (plan.fleet,) if plan.fleet else plan.scenarios))
    return course_over(plan, named, named)


def course_over(plan: TrainingPlan, named: Sequence[Scenario], judged: Sequence[Scenario]) -> ResolvedPlan:
    """What the plan does with these scenarios: trained on, and judged by.

    Raises:
        ValueError: something does not fit; named, with the remedy.
    """
    settings = make_settings(plan.settings)
    if plan.from_log:
        lengths = {name: min(getattr(settings, name), named[0].requests) for name in ("requests", "episode_requests")}
        settings = dataclasses.replace(settings, **lengths)
    for one in named:
        if one.workload.clients:
            field_name = "fleet" if plan.fleet else "scenarios"
            raise ValueError(f"{field_name} has {one.name}, a closed loop, which is not trained on: leave it out")
    rivals = None
    if plan.for_one_fleet:
        rivals = named[0].fleet
        named, judged = list(map(weighing_keys, named)), list(map(weighing_keys, judged))
    covering([one.fleet for one in (*named, random_scenario(np.random.default_rng(0)))])  # they must fit together
    share = settings.random_share
    draw = Randomised(tuple(named), share)
    judged = judged if share < 1 else []
    if plan.init:
        start = start_of(plan.init).network
    else:
        start = initial(np.random.default_rng((plan.seed, 0)), settings.hidden, settings.beta)
    validation = validation_cases(judged, share, settings.validation_episodes)
    report = cases(judged, settings.report_seeds, 5 * settings.report_seeds if share else 0, REPORT_SEED)
    if rivals is None:
        return ResolvedPlan(Pgpe(settings, draw, plan.seed, start), draw, validation, report)
    validation, report = (tuple(case._replace(rivals=rivals) for case in each) for each in (validation, report))
    algorithm = CostSearch(settings, named[0], rivals, plan.seed, start)
    weighs_keys = rivals != named[0].fleet
    return ResolvedPlan(algorithm, draw, validation, report, places_of(named[0].fleet), weighs_keys)


def weighing_keys(scenario: Scenario) -> Scenario:
    """Without the router's hash, if it places keys that requests have."""
    settings = scenario.fleet.settings
    if not settings.sticky_keys or not scenario.arrivals(0, scenario.requests).keyed:
        return scenario
    fleet = dataclasses.replace(scenario.fleet, settings=dataclasses.replace(settings, sticky_keys=False))
    return dataclasses.replace(scenario, fleet=fleet)


def initial(generator: np.random.Generator, hidden: int, beta: float) -> Network:
    """Random hidden layers (He et al. 2015), and zero where the learned term comes out: it starts at zero."""
    made = {name: np.zeros(shape) for name, shape in shapes(hidden).items()}
    for name, fan_in in (("w1", len(made["w1"])), ("w2", 2 * hidden), ("context", 2 * hidden)):
        made[name] = generator.normal(size=made[name].shape) / np.sqrt(fan_in)
    return Network(**made | {"beta": np.array(beta)})


def log_of(plan: TrainingPlan) -> DecisionLog:
    """As much of the plan's log as it names."""
    log = read_log(Path(plan.from_log))
    return log.last(plan.last_hours) if plan.last_hours else log


def not_trained_on(plan: TrainingPlan) -> DecisionLog:
    """The last part of the plan's log."""
    log = log_of(plan)
    came_s = np.array([log.unix_s(each.run, each.at_s) for each in log])
    return log.last(float(came_s.max() - np.quantile(came_s, _TRAINED_ON)) / 3600)


class LogScenarios(NamedTuple):
    """The fleet of a log, under requests of its first part and under some of its last."""

    seen: Scenario
    unseen: Scenario
    remarks: tuple[str, ...] = ()


def log_scenarios(plan: TrainingPlan) -> LogScenarios:
    """Calibrate a fleet by the plan's log, and cut the log's requests in two. The check against the log makes the
    remarks, so an unchecked plan has none."""
    log, profiles = log_of(plan), [load_profile(Path(each)) for each in plan.profile]
    try:
        calibration = calibrate(log, profiles=profiles)
        whole = scenario_from_log(log, calibration)
        twin = None if plan.unchecked else twin_of(log, calibration)
        if twin and (differs := [why for fit in twin.models for why in fit.differs()]):
            raise ValueError(
                f"the fleet that is made of the log is not like it: {'; '.join(differs)}; see balancer twin "
                f"{plan.from_log}, give measured times (--profile), or train nonetheless (--unchecked)"
            )
    except (ValueError, DecisionLogError) as error:
        raise ValueError(f"from-log {plan.from_log}: {error}") from error
    count = whole.requests
    if count < _LEAST_REQUESTS:
        raise ValueError(f"from-log {plan.from_log} has {count} requests: record {_LEAST_REQUESTS} at least")
    cut = int(count * _TRAINED_ON)
    remarks = tuple(twin.remarks()) if twin else ()
    return LogScenarios(_part(whole, slice(0, cut)), _part(whole, slice(cut, count)), remarks)


def _part(whole: Scenario, chosen: slice) -> Scenario:
    """The scenario with some of its recorded requests, in blocks, which come as fast as they did."""
    recorded = cast(Recorded, whole.workload.recorded)
    part = recorded.part(chosen)
    time_s = part.time_s
    rate_per_s = whole.workload.rate_per_s * (len(time_s) - 1) / max(float(time_s[-1] - time_s[0]), 1e-9)
    # Conversations of prompts would be torn apart.
    block = 0 if recorded.prompts is not None else max(len(recorded.time_s) // _BLOCKS, 1)
    recorded = dataclasses.replace(part, time_s=rescaled(time_s, 1.0), block=block)
    workload = dataclasses.replace(whole.workload, rate_per_s=rate_per_s, recorded=recorded)
    return dataclasses.replace(whole, workload=workload, requests=len(time_s))
