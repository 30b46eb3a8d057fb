"""How far the numbers can be trusted, in words, each with the numbers that it rests on."""

import math
from dataclasses import dataclass
from typing import Literal

from simulator.off_policy.assess import CERTAIN, LITTLE, Assessed, Assessor
from simulator.off_policy.calibrated import Calibrated, Simulated
from simulator.off_policy.estimators import FEW_BLOCKS

Trust = Literal["good", "with care", "not"]
_WORDS: dict[Trust, str] = {"good": "to be trusted", "with care": "with care", "not": "not to be trusted"}

FEW_EFFECTIVE = 200.0
"""Effective decisions below which an estimate is not to be trusted."""
LOW_SHARE = 0.1
"""Share of effective decisions below which it is to be taken with care."""
UNSUPPORTED = 0.05, 0.2
"""Share of the target's picks without support: with care above the one, not to be trusted above the other."""
HEAVY = 0.05
"""Share of all weight on one decision above which it is to be taken with care."""
MEAN_ERROR = 0.1, 0.25
"""Calibration error of the mean: with care above the one, not to be trusted above the other."""
P99_ERROR = 0.25, 0.5
"""Of the p99, the same."""

MEANING = (
    "Off-policy estimates were made for bandits, where a decision does not change what the next one meets. In a load "
    "balancer picks make the queues. So IPS, SNIPS and DR tell what the requests of this log would have got if each "
    "alone had gone where the target sends it, all others having gone as they did: a one-step deviation, not the "
    "latency of a fleet that the target runs. A target that herds looks good in it, and where the logging policy made "
    "long queues, so does whoever steps around them. The simulation has the feedback: there picks make the queues. It "
    "is as good as its calibration, which the logging policy's own simulation measures at the log's state alone; its "
    "intervals are over seeds and know nothing of days unlike the log. To decide, take the simulation for size and the "
    "estimates as a check of direction; where both agree, try it in production with a rollout in steps."
)


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    policy: str
    one_step: Trust
    one_step_why: tuple[str, ...]
    simulation: Trust | None
    """None: not simulated."""
    simulation_why: tuple[str, ...]
    says: str


def verdict(assessed: Assessed, assessor: Assessor, calibrated: Calibrated | None) -> PolicyVerdict:
    one_step, why = _one_step(assessed, assessor)
    simulation, simulation_why = (None, ()) if calibrated is None else _simulation(calibrated)
    run = None
    if calibrated is not None:
        run = next(each for each in calibrated.runs if each.policy == assessed.policy)
    return PolicyVerdict(
        assessed.policy, one_step, why, simulation, simulation_why, _says(assessed, one_step, run, simulation)
    )


def _worse(first: Trust, second: Trust) -> Trust:
    order: tuple[Trust, ...] = ("good", "with care", "not")
    return max(first, second, key=order.index)


def _graded(number: float, limits: tuple[float, float]) -> Trust:
    return "not" if not number <= limits[1] else "with care" if number > limits[0] else "good"


def _one_step(assessed: Assessed, assessor: Assessor) -> tuple[Trust, tuple[str, ...]]:
    w = assessed.weights
    trust: Trust = "not" if w.effective < FEW_EFFECTIVE else "with care" if w.share < LOW_SHARE else "good"
    why = [f"{w.effective:,.0f} effective of {len(assessor.decisions):,} decisions ({w.share:.1%})"]
    why.append(f"{w.unsupported:.1%} of its picks had a logged probability below {LITTLE:.0%}")
    trust = _worse(trust, _graded(w.unsupported, UNSUPPORTED))
    if w.largest_share > HEAVY:
        trust = _worse(trust, "with care")
        why.append(f"one decision has {w.largest_share:.0%} of all weight")
    if w.mean.excludes(1.0) and abs(w.mean.value - 1) > 0.05:
        trust = _worse(trust, "not" if abs(w.mean.value - 1) > 0.2 else "with care")
        why.append(f"weights have the mean {w.mean.value:.2f}, which should be 1: picks are missing from the log")
    if w.clipped_share > 0:
        trust = _worse(trust, "with care" if w.clipped_share < UNSUPPORTED[1] else "not")
        why.append(
            f"clipping took {w.clipped_share:.1%} of the weight: IPS is too low by what belongs there, "
            "SNIPS leans to the logged value, DR to its model"
        )
    if w.shed > 0:
        why.append(f"it would have shed {w.shed:.1%} of the requests, which count as they were")
    if assessor.blocks < FEW_BLOCKS or assessor.block_s < 3 * assessor.correlation_s:
        trust = _worse(trust, "with care")
        why.append(
            f"{assessor.blocks} blocks of {assessor.block_s:.3g} s, where latencies stay alike for "
            f"{assessor.correlation_s:.3g} s: intervals are too narrow, record for longer"
        )
    if trust != "good" and assessor.decisions.certain_share > 0.5:
        why.append(
            f"{assessor.decisions.certain_share:.0%} of the logged decisions were as good as determined (above "
            f"{CERTAIN:.0%}): log with a policy that explores, such as expected_latency with temperature 0.2 or "
            "power_of_two, in one arm of a rollout"
        )
    return trust, tuple(why)


def _simulation(calibrated: Calibrated) -> tuple[Trust, tuple[str, ...]]:
    mean, p99 = calibrated.mean_error.value, calibrated.p99_error.value
    trust = _worse(_graded(abs(mean), MEAN_ERROR), _graded(abs(p99), P99_ERROR))
    why = f"the logging policy simulated is off by {mean:+.0%} in the mean and {p99:+.0%} in p99"
    return trust, (why, *calibrated.notes)


def _says(assessed: Assessed, one_step: Trust, run: Simulated | None, simulation: Trust | None) -> str:
    change, logged = assessed.mean_s.change, assessed.mean_s.logged.value
    sure = change.excludes(0.0)
    where = "lower" if change.value < 0 else "higher"
    share = abs(change.value) / logged if logged > 0 else math.nan
    size = f"{share:.0%} {where} mean latency" if sure else "no difference that the log can tell"
    parts = [f"one decision changed: {size} ({_WORDS[one_step]})"]
    if run is not None and simulation is not None:
        ratio = run.mean_ratio
        ratios = f"mean {ratio.value:.2f} and p99 {run.p99_ratio.value:.2f} times the logging policy's"
        parts.append(f"the fleet run by it: {ratios} ({_WORDS[simulation]})")
        if sure and ratio.excludes(1.0) and (ratio.value < 1) != (change.value < 0):
            parts.append("the two disagree, as they do where picks make queues: believe the simulation, if either")
    return "; ".join(parts) + "."
