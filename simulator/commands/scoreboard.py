"""`balancer scoreboard`: all policies on all scenarios, as JSON, CSV, page and Markdown."""

import json
from pathlib import Path

import click

from simulator.commands import inputs
from simulator.commands.simulate import SWEEP, run_plan
from simulator.compare import table
from simulator.compare.compare import ComparisonPlan
from simulator.compare.document import as_json
from simulator.pages.scoreboard import page
from simulator.scenario import long_scenario_names, scenario_names

_QUICK_REQUESTS = 2000
_QUICK_SEEDS = 3

_EPILOG = """\b
Examples:
  balancer scoreboard --quick
  balancer scoreboard --jobs 2 --out out/scoreboard
"""


@click.command(epilog=_EPILOG)
@click.option("--quick", is_flag=True, help=f"{_QUICK_SEEDS} seeds of {_QUICK_REQUESTS:,} requests.")
@click.option("--minutes", is_flag=True, help="The scenarios of several minutes each, in place of the short ones.")
@click.option("--sweep", is_flag=True, help="Also every policy at other loads; takes six times as long.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Runs of each, unless --quick."
)
@inputs.places()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/scoreboard"),
    show_default=True,
    help="Folder for index.html, README.md, scoreboard.json and scoreboard.csv.",
)
def scoreboard(
    quick: bool, minutes: bool, sweep: bool, seeds: int, jobs: int | None, ray: str | None, out: Path
) -> None:
    """Run all installed policies on all scenarios and write the report."""
    plan = ComparisonPlan(
        scenarios=inputs.load_scenarios(long_scenario_names() if minutes else scenario_names()),
        policies=inputs.all_policies(),
        seeds=tuple(range(_QUICK_SEEDS if quick else seeds)),
        requests=_QUICK_REQUESTS if quick else None,
        sweep=SWEEP if sweep else (),
        timelines=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    console = inputs.console()
    report = run_plan(plan, inputs.pool(ray, jobs), None, console)
    console.print(table.aggregate_table(report))
    for name, content in (
        ("scoreboard.json", json.dumps(as_json(report), indent=1) + "\n"),
        ("index.html", page(report)),
        ("README.md", table.markdown(report)),
        ("scoreboard.csv", table.as_csv(report)),
    ):
        (out / name).write_text(content, encoding="utf-8")
    console.print(
        f"Written: {out / 'index.html'} (open it), scoreboard.json, scoreboard.csv, README.md", highlight=False
    )
