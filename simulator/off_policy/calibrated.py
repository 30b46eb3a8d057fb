"""Policies in a simulated fleet that is calibrated on the log, under the log's own requests.

Here picks change queues, as they do in production; what it rests on is the calibration, so the logging policy is
simulated too, and compared with what it really did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from balancer.config.profile_file import Profile
from balancer.server.decision_log.recorded import DecisionLog
from policies.base import FloatArray, Policy
from simulator.compare.metrics import WARM_UP_SHARE, LatencyMetric, measure
from simulator.compare.statistics import Estimate, mean, ratio
from simulator.log.fleet import calibrate, capped
from simulator.log.workload import arrivals_from_log, unix_s
from simulator.off_policy.assess import TAIL, LoggedDecisions
from simulator.run import run

LOGGING = "(as logged)"
"""Stands for the policy that decided, beside the targets."""


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
    requests: int
    seeds: int
    notes: tuple[str, ...]


def simulate(
    log: DecisionLog,
    decisions: LoggedDecisions,
    targets: Mapping[str, Policy],
    *,
    seeds: int,
    profiles: Sequence[Profile] = (),
    progress: Callable[[int], None] = lambda count: None,
) -> Calibrated:
    """Simulate the logging policy and the targets; `progress` is told of requests decided.

    Raises:
        ValueError: the log is no workload, or tells of no fleet; see `arrivals_from_log` and `calibrate`.
        DecisionLogError: the logging policy is not installed.
    """
    calibration = calibrate(log, profiles=profiles)
    fleet = calibration.fleet
    arrivals = capped(arrivals_from_log(log, [model.name for model in fleet.models]), fleet)
    recorded, share = decisions.logging[0][0], decisions.logging[0][1] / len(decisions)
    notes = list(calibration.notes)
    if share < 1:
        notes.append(f"{share:.0%} of the decisions are of {recorded.name}, which stands for all in the simulation")
    if any(refusal.reason == "shed" for refusal in log.refusals):
        notes.append("the log has requests shed by limits, which the simulation has not")
    latencies: dict[str, LatencyMetric] = {}
    for name, policy in {LOGGING: recorded.build(), **targets}.items():
        result = run(fleet, [arrivals] * seeds, policy, progress=progress)
        latencies[name] = measure(result).latency
    logged_s = _logged_s(log, decisions, float(arrivals.time_s[int(len(arrivals) * WARM_UP_SHARE)]))
    base = latencies[LOGGING]
    logged_mean_s, logged_p99_s = float(logged_s.mean()), float(np.quantile(logged_s, TAIL))
    return Calibrated(
        logging=f"{recorded.name} {recorded.options}",
        logged_mean_s=logged_mean_s,
        logged_p99_s=logged_p99_s,
        mean_error=mean(base.mean_s / logged_mean_s - 1),
        p99_error=mean(base.p99_s / logged_p99_s - 1),
        runs=tuple(_simulated(name, latency, base) for name, latency in latencies.items()),
        requests=len(arrivals),
        seeds=seeds,
        notes=tuple(notes),
    )


def _logged_s(log: DecisionLog, decisions: LoggedDecisions, from_s: float) -> FloatArray:
    came_s = [unix_s(log, decision.run, decision.at_s) for decision in log.decisions]
    came_s += [unix_s(log, refusal.run, refusal.at_s) for refusal in log.refusals]
    start_s = min(came_s)
    after = decisions.at_s - start_s >= from_s
    return decisions.latency_s[np.isfinite(decisions.latency_s) & after]


def _simulated(name: str, latency: LatencyMetric, base: LatencyMetric) -> Simulated:
    return Simulated(
        name,
        mean(latency.mean_s),
        mean(latency.p99_s),
        mean(latency.within_deadline),
        ratio(latency.mean_s, base.mean_s),
        ratio(latency.p99_s, base.p99_s),
    )
