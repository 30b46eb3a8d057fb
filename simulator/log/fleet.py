"""A simulated fleet calibrated on a decision log: what the log tells is taken from it, and the rest is assumed, in
`ASSUMPTIONS` and, where the log at hand is thin, in `Calibration.notes`.

Off-policy evaluation replays other policies in it, and training goes on in it; how well it fits is measured by
simulating the policy that was logged (`simulator.off_policy.calibrated`).
"""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from balancer.config.profile_file import Profile
from balancer.kernel.settings import HoldingSettings, Settings, ZoneSettings
from balancer.server.decision_log.lines import COLUMNS
from balancer.server.decision_log.recorded import DecisionLog, DecisionLogError, RecordedDecision, Workers
from policies.base import FloatArray
from simulator.arrivals import Arrivals
from simulator.log.executed import MOST_REQUESTS, Executed
from simulator.log.prompts import within
from simulator.log.service import Executions, estimated, pooled, service_time, speed, worked
from simulator.log.steps import Generating, policy_of, refine_steps
from simulator.log.workload import arrivals_from_log, generating, level_of, models_of, recorded_of
from simulator.scenario import Scenario
from simulator.service import from_profile
from simulator.spec import (
    BatchingSpec,
    Fault,
    FleetSpec,
    ModelSpec,
    NetworkSpec,
    Reports,
    ServiceTime,
    SimulatedWorker,
)
from simulator.workload.draws import Lognormal
from simulator.workload.workload import ModelTraffic, Workload

ASSUMPTIONS = (
    "Workers of one device kind have the same service times but for a speed; those of unknown kind have their own.",
    "What each execution took follows from what came to its worker and when it was answered; a device has as many at "
    "once, up to 4, and slows them down by as much, as makes that most likely.",
    "Versions of a model take equally long. Batches wait for no delay. Queues have as many levels as requests named; "
    "those that named none are of the last.",
    "What answers take beyond waiting and executions is the network: half on the way there, half back; by how much "
    "that differs, exponentially, on the way there. How much executions of one size vary is noise of theirs, or of "
    "requests the less the more are in it.",
    "Reports are evenly spaced and none is lost. A worker that could not be picked for more than a second was down.",
    "Requests come when they were decided on, whether they were held before or not; zones do not matter.",
    "Servers of language models compute 2048 tokens in a step at most; its time is linear in these, but for the first "
    "256. Prompts go on from where one that began alike has ended.",
    "A worker remembers so many keys, and one that it remembers saves the same share of any request's work.",
)
"""What no decision log tells; in words, for reports."""

_SETTLED_S = 1.0
"""For how long a worker cannot be picked at least, to have been away."""


@dataclass(frozen=True, slots=True)
class Calibration:
    fleet: FleetSpec
    traffic: tuple[ModelTraffic, ...]
    """By model of the fleet; only of what the log does not have of each request."""
    notes: tuple[str, ...]
    """Where this log tells less than it might, in words; empty: nowhere."""


def replayed(log: DecisionLog, calibration: Calibration, seed: int) -> Arrivals:
    """The requests of the log, as they came; what it does not have of each is drawn.

    Raises `ValueError` as `log.workload.arrivals_from_log`.
    """
    arrivals = capped(arrivals_from_log(log, [each.name for each in calibration.traffic]), calibration.fleet)
    dice, work = np.random.default_rng(seed), arrivals.work.copy()
    for m, traffic in enumerate(calibration.traffic):
        own = arrivals.model == m
        work[own] = traffic.work.quantile(dice.random(np.count_nonzero(own))) / traffic.work.mean
    return dataclasses.replace(arrivals, work=work)


def scenario_from_log(log: DecisionLog, calibration: Calibration, *, name: str = "log") -> Scenario:
    """The fleet and the requests of a decision log as a scenario to train on.

    Seeds begin at different places of the log, which goes round; `with_load` presses or stretches it in time.

    Raises:
        ValueError: the requests are no workload (`log.workload.recorded_from`).
    """
    fleet = calibration.fleet
    models = [model.name for model in fleet.models]
    recorded = recorded_of(capped(arrivals_from_log(log, models), fleet), models)
    times_s = [log.unix_s(decision.run, decision.at_s) for decision in log]
    span_s = max(max(times_s) - min(times_s), 1e-3)
    workload = Workload(len(recorded.time_s) / span_s, calibration.traffic, recorded=recorded)
    # A fault of the log's hour has no place in runs that begin anywhere in it.
    steady = dataclasses.replace(
        fleet, faults=(), workers=tuple(dataclasses.replace(worker, present=True) for worker in fleet.workers)
    )
    summary = f"A decision log of {len(recorded.time_s):,} requests in {span_s:,.0f} s"
    return Scenario(name, summary, "train", steady, workload, len(recorded.time_s))


def capped(arrivals: Arrivals, fleet: FleetSpec) -> Arrivals:
    """The arrivals with no request larger than its model's largest batch, or memory, as servers would have refused it
    or were wrong about the answer."""
    most = np.array([model.batching.max_batch_rows for model in fleet.models])[arrivals.model]
    prompts = None if arrivals.prompts is None else within(arrivals.prompts, fleet.models, arrivals.model)
    return dataclasses.replace(arrivals, rows=np.minimum(arrivals.rows, most).astype(np.int32), prompts=prompts)


def calibrate(log: DecisionLog, *, profiles: Sequence[Profile] = ()) -> Calibration:
    """The fleet that a decision log tells of.

    Args:
        log: From `read_log`.
        profiles: Measured beforehand (`balancer profile`): for workers of their device kinds, these service times go
            before what the log tells.

    Raises:
        ValueError: it has no decision.
    """
    if not log.decisions:
        raise ValueError("the log has no decision: record while requests flow")
    return _Calibration(log, profiles).found()


class _Listed(NamedTuple):
    """A worker, as discovery listed it."""

    device: str
    weight: float


class _Calibration:
    def __init__(self, log: DecisionLog, profiles: Sequence[Profile]) -> None:
        self._log, self._profiles = log, profiles
        self._notes: list[str] = []
        self._work: Mapping[str, float] = {}
        self._models = models_of(log)
        self._generate = generating(log)
        self._levels = _levels(log)
        self._seen = worked(log)
        timed = [(log.unix_s(decision.run, decision.at_s), decision) for decision in log]
        timed.sort(key=itemgetter(0))
        self._start_s, self._end_s = timed[0][0], timed[-1][0]
        self._roster = _roster(timed)
        self._held = self._find_held()
        self._there = _there(timed, self._held)
        self._kinds = {name: listed.device or name for name, listed in self._roster.items()}
        self._own = {
            name: {
                model: executions
                for model, executions in one.models.items()
                if executions.count and model not in self._generate
            }
            for name, one in self._seen.items()
        }
        self._fill_in()
        self._times = self._service_times()
        self._steps = Generating(log, self._generate, self._held, self._kinds)
        self._notes += self._steps.notes

    def found(self) -> Calibration:
        settings = _settings(self._log)
        bare = FleetSpec(
            tuple(map(self._model, self._models)),
            tuple(self._workers()),
            balancers=self._balancers(),
            reports=Reports(_report_period_s(self._log, settings), delay_s=0.0),
            network=NetworkSpec(),
            faults=tuple(self._faults()),
            settings=settings,
        )
        return Calibration(self._refined(bare), tuple(map(self._traffic, self._models)), tuple(self._notes))

    def _refined(self, bare: FleetSpec) -> FleetSpec:
        fitted = bare if self._generate.issuperset(self._models) else self._executed(bare)
        if not self._generate:
            return fitted
        try:
            policy = policy_of(self._log)
            arrivals = capped(arrivals_from_log(self._log, self._models, MOST_REQUESTS), fitted)
        except (DecisionLogError, ValueError) as error:
            self._notes.append(f"the log's own policy cannot be simulated, so steps are as answers say: {error}")
            return fitted
        return fitted if policy is None else refine_steps(fitted, arrivals, policy, self._steps)

    def _executed(self, bare: FleetSpec) -> FleetSpec:
        if self._reported_balancers() > bare.balancers or any(run.share < 1 for run in self._log.runs):
            self._notes.append("not all requests are in the log, so service times are as counted, waiting included")
            return bare
        executed = Executed(self._log, bare)
        profiled = frozenset((model.model, profile.device) for profile in self._profiles for model in profile.models)
        fitted, self._work = executed.fitted(bare, profiled), executed.work
        self._notes += filter(None, [executed.note()])
        return fitted

    def _traffic(self, model: str) -> ModelTraffic:
        return ModelTraffic(model, work=Lognormal(self._work[model])) if model in self._work else ModelTraffic(model)

    def _find_held(self) -> dict[str, set[str]]:
        """Models of each worker, of those that requests were for: as reported, or where it was ever eligible."""
        held = defaultdict(set, {name: set(one.models) & set(self._models) for name, one in self._seen.items()})
        for decision in self._log:
            if decision.request.model in self._models:
                for row in np.flatnonzero(decision.eligible):
                    held[decision.workers.names[row]].add(decision.request.model)
        return {name: own for name, own in held.items() if own}

    def _fill_in(self) -> None:
        """Where nobody's executions of a model were recorded, what balancers took its times to be stands in."""
        executed = {model for models in self._own.values() for model, each in models.items() if each.count}
        missing = [model for model in self._models if model not in executed | self._generate]
        if not missing:
            return
        largest = {model: max((each.max_batch_rows for each in self._known(model)), default=0) for model in missing}
        for model in [model for model in missing if not largest[model]]:
            rows = [float(np.max(d.request.rows)) for d in self._log if d.request.model == model]
            largest[model] = most = max(round(max(rows, default=1)), 1)
            self._notes.append(f"the largest batch of {model} is not told: taken to be that of the requests, {most}")
        for name, models in estimated(self._log, largest).items():
            self._own.setdefault(name, {}).update(models)
        self._notes.append(
            f"no executions of {', '.join(missing)} are recorded (the log is shorter than some 5 s, or of format "
            "version 1): the balancers' own estimates stand in for service times"
        )

    def _known(self, model: str) -> list[Executions]:
        return [one.models[model] for one in self._seen.values() if model in one.models]

    def _service_times(self) -> dict[str, dict[str, ServiceTime]]:
        own, kinds = self._own, self._kinds
        measured = {profile.device: from_profile(profile) for profile in self._profiles}
        wanted = sorted(
            (model, kind)
            for model, kind in {(m, kinds[name]) for name, held in self._held.items() for m in held if name in kinds}
            if model not in self._generate
        )
        times: dict[str, dict[str, ServiceTime]] = defaultdict(dict)
        for model, kind in wanted:
            parts = [own[name][model] for name in own if kinds.get(name) == kind and model in own[name]]
            if model in measured.get(kind, {}):
                times[model][kind] = measured[kind][model]
            elif parts:
                times[model][kind] = service_time(pooled(parts))
        for model, kind in wanted:
            if kind in times[model] or not times[model]:
                continue
            # As production does: the fastest that is known, until more is.
            times[model][kind] = min(times[model].values(), key=lambda each: each.device_s[0])
            self._notes.append(f"{kind} executed {model} never: it is taken to be as fast as the fastest that did")
        return dict(times)

    def _model(self, model: str) -> ModelSpec:
        if model in self._generate:
            most = max((one.models[model].instances for one in self._seen.values() if model in one.models), default=1)
            return self._steps.model(model, most)
        times = self._times[model]
        reported = [one.models[model] for name, one in self._seen.items() if name in self._held and model in one.models]
        profiled = [each for profile in self._profiles for each in profile.models if each.model == model]
        largest = max(rows for table in times.values() for rows in table.rows)
        return ModelSpec(
            model,
            times,
            batching=BatchingSpec(
                max((each.max_batch_rows for each in (reported or profiled)), default=largest),
                priority_levels=self._levels.get(model, 1),
                default_priority=self._levels.get(model, 1),
            ),
            instances=max((each.instances for each in (reported or profiled)), default=1),
        )

    def _workers(self) -> Iterator[SimulatedWorker]:
        profiled = {(model.model, profile.device) for profile in self._profiles for model in profile.models}
        for name, listed in self._roster.items():
            if name not in self._there:
                continue
            held, kind = self._held[name], self._kinds[name]
            # What a profile tells is each worker's own time; the speed is beside what the log tells of the kind.
            executed = {
                model: each
                for model, each in self._own.get(name, {}).items()
                if model in held and (model, kind) not in profiled
            }
            yield SimulatedWorker(
                name,
                kind,
                speed=speed(executed, {model: self._times[model][kind] for model in executed}),
                weight=listed.weight,
                models=() if held == set(self._models) else tuple(sorted(held)),
                present=self._there[name][0][0] - self._start_s <= _SETTLED_S,
            )

    def _faults(self) -> Iterator[Fault]:
        """Where it could not be picked for a while it was away: it had crashed, as far as others could tell."""
        for name, spans in self._there.items():
            (first_s, last_s), begins_s = (spans[0][0], spans[-1][1]), [begin_s for begin_s, _ in spans[1:]]
            if first_s - self._start_s > _SETTLED_S:
                yield Fault("join", name, first_s - self._start_s, duration_s=0.0)
            for (_, gone_s), back_s in zip(spans, begins_s, strict=False):
                yield Fault("crash", name, gone_s - self._start_s, back_s - gone_s)
            if self._end_s - last_s > _SETTLED_S:
                yield Fault("leave", name, last_s - self._start_s)

    def _balancers(self) -> int:
        recorded = len({run.process for run in self._log.runs})
        reported = self._reported_balancers()
        if reported > recorded:
            self._notes.append(
                f"agents report to {reported} balancers and the log has {recorded}: the others' requests are missing "
                "in the simulation; put the logs of all into one folder"
            )
        return recorded

    def _reported_balancers(self) -> int:
        return max((one.balancers for one in self._seen.values()), default=1)


def _roster(timed: Sequence[tuple[float, RecordedDecision]]) -> dict[str, _Listed]:
    """The workers of these decisions, which are in order of time, as discovery listed them last."""
    roster: dict[str, _Listed] = {}
    last: Workers | None = None
    for _, decision in timed:
        if decision.workers is not last:
            last = decision.workers
            for name, device, weight in zip(last.names, last.devices, last.weight, strict=True):
                roster[name] = _Listed(device or (roster[name].device if name in roster else ""), float(weight))
    return roster


def _there(
    timed: Sequence[tuple[float, RecordedDecision]], held: Mapping[str, Collection[str]]
) -> dict[str, list[tuple[float, float]]]:
    """By worker, from when to when it was there, moments aside; since 1970.

    Where it was not listed, or could not be picked for a model that it has, it was away until it could be again.
    """
    start_s, end_s = timed[0][0], timed[-1][0]
    found: dict[str, list[tuple[float, float]]] = {}
    away: set[str] = set()
    listed: Workers | None = None
    for at_s, decision in timed:
        if decision.workers is not listed:
            listed = decision.workers
            away |= held.keys() - set(listed.names)
        model = decision.request.model
        for name, can in zip(listed.names, decision.eligible.tolist(), strict=True):
            if can:
                spans = found.setdefault(name, [(at_s if name in away else start_s, at_s)])
                if name in away and at_s - spans[-1][1] > _SETTLED_S:
                    spans.append((at_s, at_s))
                away.discard(name)
                spans[-1] = spans[-1][0], at_s
            elif decision.subset is None and model in held.get(name, ()):
                away.add(name)
    for name in found.keys() - away:
        found[name][-1] = found[name][-1][0], end_s
    return found


def _report_period_s(log: DecisionLog, settings: Settings) -> float:
    """Twice the median age of the reports that decisions rested on: ages are even between 0 and the period."""
    row = COLUMNS.index("report_age_s")
    ages_s: FloatArray = np.concatenate([decision.columns[row] for decision in log])
    fresh_s = ages_s[(ages_s >= 0) & (ages_s <= settings.stale_after_s)]
    return max(2 * float(np.median(fresh_s)), 1e-3) if len(fresh_s) else Reports().period_s


def _settings(log: DecisionLog) -> Settings:
    """The routers', but for what the log has no more than the outcome of: which models a worker may have, zones, and
    how long requests were held."""
    if log.settings is None:
        return Settings(sticky_keys=_are_placed(log))
    return dataclasses.replace(log.settings, models={}, zones=ZoneSettings(), holding=HoldingSettings())


def _levels(log: DecisionLog) -> dict[str, int]:
    """Levels of priority by model, of those that have any: the largest number that requests had."""
    found: defaultdict[str, int] = defaultdict(int)
    for request in (*(each.request for each in log.decisions), *(each.request for each in log.refusals)):
        found[request.model] = max(found[request.model], level_of(request))
    return {model: most for model, most in found.items() if most > 1}


def _are_placed(log: DecisionLog) -> bool:
    """Whether the router's hash places keys, as it does by default; not where the policy in force decided of any."""
    of_keys = [d.policy for d in log if d.request.key is not None and not d.request.sequence]
    return not any(policy.in_force for policy in of_keys)
