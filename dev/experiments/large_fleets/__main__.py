"""`python -m dev.experiments.large_fleets`: see the package."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from policies import BUILTIN
from simulator.compare.text import put_between_marks
from simulator.pool import Processes
from simulator.result import Status
from simulator.run import run
from simulator.scenario import Scenario, load_scenario

_HERE = Path(__file__).parent
_SAMPLED = (8, 32, 128, 0)
_SEEDS = (0, 1, 2)
_TOLD_S = 0.002
_LARGE = 10
"""Times the fleet, once."""
_WARM_UP = 0.2
"""Share of the time at the start that does not count: the fleet is empty."""


class Setup(NamedTuple):
    fleet: str
    workers: int
    balancers: int
    told: bool
    """Whether balancers tell each other of their picks, which takes 2 ms."""
    report_every_s: float
    policy: str
    sampled: int
    """Workers that a decision looks at; 0: all."""


class Figures(NamedTuple):
    mean_ms: float
    mean_least_ms: float
    """Of the seeds."""
    mean_most_ms: float
    p99_ms: float
    late: float
    """Share that misses its deadline, or fails."""


def setups() -> Iterator[Setup]:
    alone = [(1, False, 0.05)]
    together = [(4, True, 0.05), (16, True, 0.05), (16, True, 1.0), (16, False, 0.05)]
    for fleet in ("gpus", "speeds"):
        for balancers, told, every_s in alone + together:
            for policy in ("expected_latency", "least_requests"):
                for sampled in _SAMPLED:
                    yield Setup(fleet, 1024, balancers, told, every_s, policy, sampled)
    for sampled in (32, 0):
        yield Setup("gpus", 10_240, 16, True, 0.25, "expected_latency", sampled)


def scenario_of(setup: Setup) -> Scenario:
    found = load_scenario(_HERE / f"{setup.fleet}.yaml")
    times = setup.workers // len(found.fleet.workers)
    workers = tuple(
        replace(worker, name=f"{worker.name}-{number}") for number in range(times) for worker in found.fleet.workers
    )
    fleet = replace(
        found.fleet,
        workers=workers,
        balancers=setup.balancers,
        peers_s=_TOLD_S if setup.told else None,
        reports=replace(found.fleet.reports, period_s=setup.report_every_s),
        settings=replace(found.fleet.settings, sampled_workers=setup.sampled),
    )
    workload = found.workload if times == 1 else found.workload.at_rate(times * found.workload.rate_per_s)
    return replace(found, fleet=fleet, workload=workload, requests=times * found.requests)


def figures(setup: Setup) -> Figures:
    scenario = scenario_of(setup)
    seeds = _SEEDS if setup.workers == 1024 else _SEEDS[:1]
    result = run(scenario.fleet, [scenario.arrivals(seed) for seed in seeds], BUILTIN[setup.policy](), seeds=seeds)
    counts = result.arrival_s > _WARM_UP * result.arrival_s[:, -1:]
    ok = result.status == Status.OK
    means_ms = [1e3 * latency_s[of].mean() for latency_s, of in zip(result.latency_s, counts & ok, strict=True)]
    late = ~ok | (result.latency_s > result.deadline_s)
    p99_ms = 1e3 * np.percentile(result.latency_s[counts & ok], 99)
    return Figures(np.mean(means_ms).item(), min(means_ms), max(means_ms), float(p99_ms), float(late[counts].mean()))


def table(found: dict[Setup, Figures]) -> str:
    """Of the policy that foresees latencies: 32 workers beside all."""
    lines = [
        "| fleet | balancers | reports every | mean, ms: all | 32 | p99, ms: all | 32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for setup, all_of_them in found.items():
        if setup.sampled == 0 and setup.policy == "expected_latency":
            some = found[setup._replace(sampled=32)]
            told = ", not told" if setup.balancers > 1 and not setup.told else ""
            lines.append(
                f"| {setup.workers:,} {setup.fleet} | {setup.balancers}{told} | {setup.report_every_s:g} s "
                f"| {all_of_them.mean_ms:.0f} | {some.mean_ms:.0f} | {all_of_them.p99_ms:.0f} | {some.p99_ms:.0f} |"
            )
    return "\n".join(lines)


def as_csv(found: dict[Setup, Figures]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*Setup._fields, *Figures._fields])
    for setup, of in found.items():
        writer.writerow([*setup, *(f"{value:.1f}" for value in of[:-1]), f"{of.late:.4f}"])
    return text.getvalue()


@click.command(help="How many workers a decision should look at: renews docs/operate/large_fleets.md and its CSV.")
@click.option(
    "--page", "path", type=click.Path(path_type=Path), default=Path("docs/operate/large_fleets.md"), show_default=True
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes, side by side.")
def main(path: Path, jobs: int) -> None:
    asked = list(setups())
    found: dict[Setup, Figures] = {}
    with Processes(jobs) as pool:
        for place, of in pool.each(figures, asked):
            found[asked[place]] = of
            click.echo(f"{asked[place]}: {of}")
    found = {setup: found[setup] for setup in asked}
    path.with_suffix(".csv").write_text(as_csv(found))
    put_between_marks(table(found), path, "results")


if __name__ == "__main__":
    main()
