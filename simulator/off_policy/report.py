"""An evaluation as tables for a terminal and as JSON."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from balancer.server.decision_log.recorded import DecisionLog
from policies.base import Policy
from simulator.compare import text
from simulator.compare.statistics import CONFIDENCE, Estimate
from simulator.compare.text import NONE, interval, milliseconds, share
from simulator.log.fleet import ASSUMPTIONS
from simulator.off_policy.assess import CERTAIN, LITTLE, Assessed, Assessor
from simulator.off_policy.calibrated import LOGGING, Calibrated, Simulated
from simulator.off_policy.estimators import FEW_BLOCKS, RESAMPLES, Value

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


@dataclass(frozen=True, slots=True)
class Evaluation:
    log: DecisionLog
    assessor: Assessor
    assessed: tuple[Assessed, ...]
    calibrated: Calibrated | None
    not_simulated: str
    """Why, in words; empty where it is."""
    verdicts: tuple[PolicyVerdict, ...]
    command: str


def one_decision_changed(log: DecisionLog, name: str, policy: Policy) -> dict[str, Any]:
    """What a log says of a policy without any simulation, for a record: in words, and where it says anything the mean
    as it was logged and by how much the policy changes it, doubly robust, with its interval.
    """
    try:
        assessor = Assessor(log)
    except ValueError as error:
        return {"says": [f"{name}: the log itself tells nothing of it: {error}"]}
    assessed = assessor.assess(name, policy)
    found = verdict(assessed, assessor, None)
    change = assessed.mean_s.change
    return {
        "says": list(verdict_lines(found)),
        "trust": found.one_step,
        "logged_mean_s": assessed.mean_s.logged.value,
        "change_s": [change.value, change.low, change.high],
    }


def as_json(e: Evaluation) -> dict[str, Any]:
    """Everything, with null for what is not known; times in seconds."""
    d = e.assessor.decisions
    content = {
        "command": e.command,
        "log": {
            "decisions": len(e.log),
            "evaluated": len(d),
            "without_outcome": d.without_outcome,
            "failed": d.failed,
            "certain_share": d.certain_share,
            "logging": [{"policy": p.name, "options": p.options, "decisions": count} for p, count in d.logging],
            "correlation_s": e.assessor.correlation_s,
            "block_s": e.assessor.block_s,
            "blocks": e.assessor.blocks,
            "cut": e.log.cut,
        },
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "one_step": e.assessed,
        "simulation": e.calibrated,
        "not_simulated": e.not_simulated,
        "assumptions": ASSUMPTIONS,
        "verdicts": e.verdicts,
        "meaning": MEANING,
    }
    made: dict[str, Any] = text.plain(content)
    return made


def heading(e: Evaluation) -> str:
    d, a = e.assessor.decisions, e.assessor
    by = ", ".join(f"{p.name} {p.options} ({count / len(d):.0%})" for p, count in d.logging)
    return (
        f"{len(d):,} of {len(e.log):,} decisions are evaluated: by the policy in force, with a known end "
        f"({d.without_outcome:,} without, {d.failed:,} failed). Decided by {by}.\n"
        f"{CONFIDENCE:.0%} intervals: {RESAMPLES:,} resamples of {a.blocks} blocks of {a.block_s:.3g} s; "
        f"latencies stay alike for {a.correlation_s:.3g} s."
    )


def support_table(e: Evaluation) -> Table:
    columns = "policy", "effective", "of all", "largest weight", "mean weight", "shed", f"picks below {LITTLE:.0%}"
    table = _table("What the log can tell", *columns)
    for each in e.assessed:
        w = each.weights
        numbers = f"{w.effective:,.0f}", share(w.share), f"{w.largest:,.1f}", interval(w.mean)
        table.add_row(escape(each.policy), *numbers, share(w.shed), share(w.unsupported))
    return table


def estimates_table(e: Evaluation) -> Table:
    columns = "policy", "", "logged", "IPS", "SNIPS", "doubly robust", "model alone"
    table = _table("One decision changed, all others as logged (ms, share)", *columns)
    for each in e.assessed:
        table.add_row(escape(each.policy), "mean", *_cells(each.mean_s, "ms"))
        quantiles = interval(each.p99_logged_s, "ms"), NONE, interval(each.p99_s, "ms"), NONE, NONE
        table.add_row("", "p99", *quantiles)
        if each.in_time is not None:
            table.add_row("", "in time", *_cells(each.in_time, "ratio"), end_section=True)
    return table


def _cells(value: Value, form: str) -> Iterator[str]:
    for estimate in (value.logged, value.ips, value.snips, value.dr, value.model):
        yield interval(estimate, form)


def simulation_table(calibrated: Calibrated) -> Table:
    title = f"The fleet run by it: simulated from the log, {calibrated.seeds} seeds of {calibrated.requests:,} requests"
    table = _table(title, "policy", "mean ms", "p99 ms", "in time", "mean vs logging", "p99 vs logging")
    for run in calibrated.runs:
        name = calibrated.logging if run.policy == LOGGING else run.policy
        times = interval(run.mean_s, "ms"), interval(run.p99_s, "ms"), interval(run.in_time)
        table.add_row(escape(name), *times, interval(run.mean_ratio), interval(run.p99_ratio))
    logged = milliseconds(calibrated.logged_mean_s), milliseconds(calibrated.logged_p99_s)
    table.add_row("in the log itself", *logged, "", "", "")
    errors = _percent(calibrated.mean_error), _percent(calibrated.p99_error)
    table.add_row("calibration error", *errors, "", "", "")
    return table


def twin_table(calibrated: Calibrated) -> Table:
    policy = calibrated.logging.partition(" ")[0]
    title = f"The log's own {policy} in the simulated fleet: {calibrated.seeds} seeds"
    table = _table(title, "model", "requests", "p50 ms, log", "simulated", "p99 ms, log", "simulated")
    for fit in calibrated.models:
        p50, p99 = milliseconds(fit.logged_p50_s), milliseconds(fit.logged_p99_s)
        name = escape(fit.model)
        table.add_row(name, f"{fit.requests:,}", p50, _percent(fit.p50_error), p99, _percent(fit.p99_error))
    return table


def _percent(estimate: Estimate) -> str:
    return f"{estimate.value:+.1%}" if math.isfinite(estimate.value) else NONE


def _table(title: str, *columns: str) -> Table:
    return text.table(title, columns, title_style="bold", pad_edge=False)


def verdict_lines(verdict: PolicyVerdict) -> Iterator[str]:
    yield f"{verdict.policy}: {verdict.says}"
    for why in verdict.one_step_why:
        yield f"  estimates: {why}"
    for why in verdict.simulation_why:
        yield f"  simulation: {why}"
