"""How long each policy takes to decide, without the router: `python benchmarks/decision_time.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from policies import BUILTIN
from policies.base import Policy, Request
from policies.columns import Columns

WORKER_COUNTS = (8, 64, 256, 1000)
_VIEWS = 32
"""Different fleets taken in turn, so that no branch or cache learns one by heart."""


def synthetic_fleet(workers: int, rng: np.random.Generator) -> Columns:
    """A busy fleet: nine workers in ten eligible, whole in-flight counts (so ties), fractional estimates."""
    weight = rng.choice([1.0, 2.0, 4.0], workers)
    pending = rng.gamma(2.0, 2.0, workers)
    service_s = 0.02 / weight
    return Columns(
        eligible=rng.random(workers) < 0.9,
        weight=weight,
        name_hash=rng.integers(0, 2**64, workers, dtype=np.uint64),
        in_flight=rng.poisson(3.0, workers).astype(np.float64),
        reported_pending=np.floor(pending),
        pending=pending,
        backlog_s=pending * service_s,
        completion_s=(pending + 1.0) * service_s,
        service_s=service_s,
        latency_s=(pending + 1.0) * service_s * rng.uniform(0.5, 2.0, workers),
        error_rate=rng.uniform(0.0, 0.02, workers),
        tokens=rng.uniform(0.0, 8.0, workers),
        report_age_s=rng.uniform(0.0, 0.05, workers),
    )


def measure(policy: Policy, workers: int, decisions: int = 2000) -> dict[str, str | int | float]:
    """Time `policy.probabilities` on synthetic fleets: policy, workers, p50_us and p99_us (CPU time)."""
    rng = np.random.default_rng(workers)
    fleets = [synthetic_fleet(workers, rng) for _ in range(_VIEWS)]
    requests = [Request(model="model", number=i, key=int(rng.integers(0, 2**63))) for i in range(_VIEWS)]
    taken_ns = np.empty(decisions)
    for i in range(-_VIEWS, decisions):  # the first round warms up and is not kept
        request, fleet = requests[i % _VIEWS], fleets[i % _VIEWS]
        begun_ns = time.thread_time_ns()
        policy.probabilities(request, fleet)
        ended_ns = time.thread_time_ns()
        if i >= 0:
            taken_ns[i] = ended_ns - begun_ns
    p50_us, p99_us = np.percentile(taken_ns, [50, 99]) / 1000.0
    return {"policy": policy.name, "workers": workers, "p50_us": float(p50_us), "p99_us": float(p99_us)}


def measure_policies(
    worker_counts: Sequence[int] = WORKER_COUNTS, decisions: int = 2000
) -> list[dict[str, str | int | float]]:
    """One row for each built-in policy, with default options, and each fleet size; see `measure`."""
    return [measure(policy(), workers, decisions) for policy in BUILTIN.values() for workers in worker_counts]


@click.command()
@click.option("--decisions", default=2000, show_default=True, help="Decisions timed for each policy and fleet size.")
def main(decisions: int) -> None:
    """Print p50 and p99 of every policy's decision, in microseconds."""
    rows = measure_policies(decisions=decisions)
    table = Table(title="Decision time of the policy alone, µs: p50 (p99)")
    table.add_column("policy")
    for workers in WORKER_COUNTS:
        table.add_column(f"{workers:,} workers", justify="right")
    for name in BUILTIN:
        cells = [f"{row['p50_us']:.1f} ({row['p99_us']:.1f})" for row in rows if row["policy"] == name]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
