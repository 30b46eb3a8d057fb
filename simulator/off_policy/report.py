"""An evaluation as tables for a terminal and as JSON."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from balancer.server.decision_log.recorded import DecisionLog
from simulator.compare import text
from simulator.compare.statistics import CONFIDENCE, Estimate
from simulator.compare.text import NONE, interval, milliseconds, share
from simulator.log.fleet import ASSUMPTIONS
from simulator.off_policy.assess import LITTLE, Assessed, Assessor
from simulator.off_policy.calibrated import LOGGING, Calibrated
from simulator.off_policy.estimators import RESAMPLES, Value
from simulator.off_policy.verdict import MEANING, PolicyVerdict


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
