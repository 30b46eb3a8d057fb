"""Policies in a simulated fleet that is calibrated on the log, under the log's own requests.

Here picks change queues, as they do in production; what it rests on is the calibration, so the logging policy is
simulated too, and compared with what it really did.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from balancer.server.decision_log.recorded import DecisionLog
from policies.base import BoolArray, FloatArray, Policy
from simulator.compare.metrics import WARM_UP_SHARE, LatencyMetric, measure
from simulator.compare.statistics import Estimate, mean, ratio
from simulator.log.fleet import Calibration, replayed
from simulator.off_policy.assess import TAIL, LoggedDecisions, decisions_of
from simulator.result import Result, Status
from simulator.run import run

LOGGING = "(as logged)"
"""Stands for the policy that decided, beside the targets."""
FIRST_TOKEN = ", first token"
P50_WITHIN, P99_WITHIN = 0.05, 0.10
"""How far a model's quantiles may be off in the simulation of the policy that decided, for it to be a twin; farther
where its runs differ more from each other, since the log is but one run."""
CHECKED_BY = 8
"""Seeds, unless somebody wants more."""
_CHANCE = 0.05
"""That any quantile of a perfect twin is farther off than by chance: each of them may be so much more seldom."""
_MUCH_CHANCE = 0.25
"""From which on a log tells little of whether it is a twin."""
_LEAST_FOR_P50, _LEAST_FOR_P99 = 100, 1000
"""Requests in the log: of fewer, the quantile is told and not judged, as the log itself has it by chance."""


@dataclass(frozen=True, slots=True)
class Simulated:
    policy: str
    mean_s: Estimate
    p99_s: Estimate
    in_time: Estimate
    """Share of the requests with a deadline; NaN where none has one."""
    mean_ratio: Estimate
    p99_ratio: Estimate


@dataclass(frozen=True, slots=True)
class ModelFit:
    """One model in the simulation of the policy that decided, beside the log."""

    model: str
    """And behind it, where it is about them, that it is about first tokens."""
    requests: int
    """Of the log, with a latency."""
    logged_p50_s: float
    logged_p99_s: float
    p50_error: Estimate
    """Simulated over logged, less 1."""
    p99_error: Estimate
    p50_chance: float
    """How far one run, as the log is one, is off by chance alone, by how the seeds differ: in 19 of 20 logs no quantile
    of any model is farther."""
    p99_chance: float

    def differs(self) -> Iterator[str]:
        """What is too far off, in words."""
        for name, error, chance, within, logged_s in self._judged():
            allowed = max(within, chance)
            if not 1 / (1 + allowed) <= 1 + error.value <= 1 + allowed:
                was = f"{logged_s * 1e3:.1f} ms in the log"
                yield f"{name} of {self.model} is {error.value:+.0%} off, {allowed:.0%} are allowed ({was})"

    def unsure(self) -> Iterator[str]:
        """What may be right by chance, in words."""
        for name, _, chance, _, _ in self._judged():
            if chance > _MUCH_CHANCE:
                yield f"one run's {name} of {self.model} is up to {chance:.0%} off by chance"

    def _judged(self) -> Iterator[tuple[str, Estimate, float, float, float]]:
        """Name, error, what of it may be chance, what is allowed, and the log's seconds."""
        if self.requests >= _LEAST_FOR_P50:
            yield "p50", self.p50_error, self.p50_chance, P50_WITHIN, self.logged_p50_s
        if self.requests >= _LEAST_FOR_P99:
            yield "p99", self.p99_error, self.p99_chance, P99_WITHIN, self.logged_p99_s


@dataclass(frozen=True, slots=True)
class Calibrated:
    logging: str
    logged_mean_s: float
    """After the warm-up, as in the simulation."""
    logged_p99_s: float
    mean_error: Estimate
    """Simulated over logged, less 1."""
    p99_error: Estimate
    runs: tuple[Simulated, ...]
    """The logging policy first."""
    models: tuple[ModelFit, ...]
    """Of the logging policy's run."""
    requests: int
    seeds: int
    notes: tuple[str, ...]

    def remarks(self) -> Iterator[str]:
        """The notes, and what of the models may be right by chance."""
        yield from self.notes
        for why in (why for model in self.models for why in model.unsure()):
            yield f"{why}; a longer log would tell more"


def simulate(
    log: DecisionLog,
    decisions: LoggedDecisions,
    targets: Mapping[str, Policy],
    calibration: Calibration,
    *,
    seeds: int,
    progress: Callable[[int], None] = lambda count: None,
) -> Calibrated:
    """Simulate the logging policy and the targets; `progress` is told of requests decided.

    Raises:
        ValueError: the log is no workload, see `replayed`.
        DecisionLogError: the logging policy is not installed.
    """
    fleet = calibration.fleet
    arrivals = [replayed(log, calibration, seed) for seed in range(seeds)]
    recorded, times = decisions.logging[0]
    share = times / sum(count for policy, count in decisions.logging if policy.in_force == recorded.in_force)
    notes = list(calibration.notes)
    if share < 1:
        notes.append(f"{share:.0%} of the decisions are of {recorded.name}, which stands for all others")
    if log.settings is None and any(refusal.reason == "shed" for refusal in log.refusals):
        notes.append("the log has requests shed by limits, which the simulation has not")
    as_logged = run(fleet, arrivals, recorded.build(), progress=progress)
    metrics = {LOGGING: measure(as_logged)}
    for name, policy in targets.items():
        metrics[name] = measure(run(fleet, arrivals, policy, progress=progress))
    after = _after(log, decisions, float(arrivals[0].time_s[int(len(arrivals[0]) * WARM_UP_SHARE)]))
    logged_s, base = decisions.latency_s[after], metrics[LOGGING].latency
    logged_mean_s, logged_p99_s = float(logged_s.mean()), float(np.quantile(logged_s, TAIL))
    return Calibrated(
        logging=f"{recorded.name} {recorded.options}",
        logged_mean_s=logged_mean_s,
        logged_p99_s=logged_p99_s,
        mean_error=mean(base.mean_s / logged_mean_s - 1),
        p99_error=mean(base.p99_s / logged_p99_s - 1),
        runs=tuple(_simulated(name, one.latency, base) for name, one in metrics.items()),
        models=tuple(_fits(log, decisions, after, as_logged)),
        requests=len(arrivals[0]),
        seeds=seeds,
        notes=tuple(notes),
    )


def twin_of(log: DecisionLog, calibration: Calibration, *, seeds: int = CHECKED_BY) -> Calibrated:
    """The log's own policy in the fleet that is calibrated on it: `models` says how far that is its twin.

    Raises:
        ValueError: the log is no workload, or has no decisions to compare; see `simulate` and `decisions_of`.
        DecisionLogError: the logging policy is not installed.
    """
    return simulate(log, decisions_of(log, placed=True), {}, calibration, seeds=seeds)


def _fits(log: DecisionLog, decisions: LoggedDecisions, after: BoolArray, simulated: Result) -> Iterator[ModelFit]:
    models = np.array([log.decisions[index].request.model for index in decisions.index])
    chosen = list[tuple[str, list[FloatArray], FloatArray]]()
    whole, first = ("", decisions.latency_s, simulated.latency_s), (FIRST_TOKEN, decisions.first_s, simulated.first_s)
    for m, name in enumerate(simulated.models):
        for what, logged_s, simulated_s in (whole, first):
            own = after & (models == name) & np.isfinite(logged_s)
            ran = (simulated.status == Status.OK) & (simulated.model == m) & np.isfinite(simulated_s)
            ran[:, : int(ran.shape[1] * WARM_UP_SHARE)] = False
            if own.any() and ran.any(axis=1).all():
                by_seed = [one[these] for one, these in zip(simulated_s, ran, strict=True)]
                chosen.append((name + what, by_seed, logged_s[own]))
    for each in chosen:
        yield _fit(*each, 1 - _CHANCE / (2 * len(chosen)))


def _fit(name: str, simulated_s: Sequence[FloatArray], logged_s: FloatArray, confidence: float) -> ModelFit:
    """`simulated_s`: by seed; `confidence`: that one more run is no farther off than by chance."""
    p50_s, p99_s = (float(np.quantile(logged_s, share)) for share in (0.5, TAIL))
    by_seed = np.array([np.quantile(one, (0.5, TAIL)) for one in simulated_s])
    p50_error, p99_error = (
        _less_1(ratio(own, np.array(was))) for own, was in zip(by_seed.T, (p50_s, p99_s), strict=True)
    )
    p50_chance, p99_chance = (float(np.expm1(_of_one_more(np.log(each), confidence))) for each in by_seed.T)
    return ModelFit(name, len(logged_s), p50_s, p99_s, p50_error, p99_error, p50_chance, p99_chance)


def _less_1(ratios: Estimate) -> Estimate:
    return Estimate(ratios.value - 1, ratios.low - 1, ratios.high - 1)


def _of_one_more(by_seed: FloatArray, confidence: float) -> float:
    """Half the interval in which one more such number is with this probability, Student's; `(e,)`."""
    count = len(by_seed)
    if count < 2:
        return 0.0
    return float(t.ppf((1 + confidence) / 2, count - 1) * by_seed.std(ddof=1) * np.sqrt(1 + 1 / count))


def _after(log: DecisionLog, decisions: LoggedDecisions, from_s: float) -> BoolArray:
    """Which decisions have a latency, and came so long after the log's first request."""
    came_s = [log.unix_s(decision.run, decision.at_s) for decision in log.decisions]
    came_s += [log.unix_s(refusal.run, refusal.at_s) for refusal in log.refusals]
    start_s = min(came_s)
    late: BoolArray = decisions.at_s - start_s >= from_s
    return np.isfinite(decisions.latency_s) & late


def _simulated(name: str, latency: LatencyMetric, base: LatencyMetric) -> Simulated:
    return Simulated(
        name,
        mean(latency.mean_s),
        mean(latency.p99_s),
        mean(latency.within_deadline),
        ratio(latency.mean_s, base.mean_s),
        ratio(latency.p99_s, base.p99_s),
    )
