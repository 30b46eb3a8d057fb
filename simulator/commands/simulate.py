"""`balancer simulate`: policies under the same simulated traffic, and what became of it."""

import json
from pathlib import Path

import click
from rich.console import Console

from simulator.commands import inputs
from simulator.compare import table
from simulator.compare.compare import REFERENCE, ComparisonPlan, compare
from simulator.compare.document import ComparisonReport, as_json
from simulator.compare.summary import FIGURES
from simulator.pages.scoreboard import page
from simulator.pool import TaskPool

SWEEP = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of the capacity at which a page shows p99."""

_EPILOG = """\b
Examples:
  balancer simulate --scenario heterogeneous-bursty
  balancer simulate --scenario stale-reports --policy wlpr --policy power_of_two:choices=3 --seeds 20
  balancer simulate --scenario overload --scenario ./mine.yaml --load 0.9 --html board.html
`balancer scenarios` and `balancer policies` list what there is.
"""


def run_plan(plan: ComparisonPlan, pool: TaskPool, baseline: str | None, console: Console) -> ComparisonReport:
    """Run it there, with a progress bar; `baseline`: None for `REFERENCE`, or the first policy."""
    compared_to = inputs.pick_baseline(baseline, list(plan.policies), REFERENCE)
    with pool, inputs.progress_bar(console, plan.total()) as advance:
        boards = compare(plan, pool=pool, advance=advance)
    return ComparisonReport(boards, compared_to, inputs.typed_command())


@click.command(epilog=_EPILOG)
@click.option(
    "--scenario", "scenarios", multiple=True, required=True, metavar="NAME|FILE", help="What to simulate; repeat."
)
@inputs.policy_option("policies", "Policy to compare; repeat [default: all].", multiple=True)
@click.option("--requests", type=click.IntRange(min=10), help="Requests of each run [default: as the scenario says].")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Runs: the seeds 0, 1, ... of each."
)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    help="Share of the fleet's capacity [default: as the scenario says].",
)
@click.option("--baseline", metavar="POLICY", help=f"Compare to this one [default: {REFERENCE}, or the first].")
@click.option(
    "--ladder/--no-ladder", default=True, show_default=True, help="Run the references too, and tell the regret."
)
@inputs.places()
@inputs.file_option("--json", "Write all numbers there.")
@inputs.file_option("--html", "Write a page with plots there; runs a sweep of loads for it.")
def simulate(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    requests: int | None,
    seeds: int,
    load: float | None,
    baseline: str | None,
    ladder: bool,
    jobs: int | None,
    ray: str | None,
    json_path: Path | None,
    html_path: Path | None,
) -> None:
    """Run policies on simulated fleets of Triton servers, on the same requests, and compare what became of them.

    Each policy decides alone: no guard watches it here, as one does in production where it is configured.
    """
    plan = ComparisonPlan(
        scenarios=inputs.load_scenarios(scenarios, load),
        policies={text: inputs.parse_policy(text) for text in policies} or inputs.all_policies(),
        seeds=tuple(range(seeds)),
        requests=requests,
        load=load,
        ladder=ladder,
        sweep=SWEEP if html_path else (),
        timelines=html_path is not None,
    )
    inputs.check_folder("--json", json_path)
    inputs.check_folder("--html", html_path)
    console = inputs.console()
    report = run_plan(plan, inputs.pool(ray, jobs), baseline, console)
    for board in report.boards:
        console.print(table.scenario_table(board, report.baseline))
        if board.bound is not None:
            console.print(*(table.regret_table(board, figure) for figure in FIGURES))
    if len(report.boards) > 1:
        console.print(table.aggregate_table(report))
    if json_path:
        json_path.write_text(json.dumps(as_json(report), indent=1) + "\n", encoding="utf-8")
    if html_path:
        html_path.write_text(page(report), encoding="utf-8")
    for path in filter(None, (json_path, html_path)):
        console.print(f"Written: {path}", highlight=False)
