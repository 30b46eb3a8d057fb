"""`balancer scoreboard`: all policies on all scenarios, as JSON, page and Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulator.commands import inputs
from simulator.commands.simulate import SWEEP
from simulator.scenario import long_scenario_names, scenario_names
from simulator.scoreboard import table
from simulator.scoreboard.compare import REFERENCE, Plan, compare
from simulator.scoreboard.document import Report, as_json
from tools.pages.scoreboard import page

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
@inputs.JOBS
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/scoreboard"),
    show_default=True,
    help="Folder for index.html, scoreboard.json and README.md.",
)
def scoreboard(quick: bool, minutes: bool, sweep: bool, seeds: int, jobs: int, out: Path) -> None:
    """Run all installed policies on all scenarios and write the report."""
    plan = Plan(
        scenarios=inputs.load_scenarios(long_scenario_names() if minutes else scenario_names()),
        policies=inputs.all_policies(),
        seeds=tuple(range(_QUICK_SEEDS if quick else seeds)),
        requests=_QUICK_REQUESTS if quick else None,
        sweep=SWEEP if sweep else (),
        timelines=True,
    )
    baseline = inputs.pick_baseline(None, list(plan.policies), REFERENCE)
    out.mkdir(parents=True, exist_ok=True)
    console = inputs.console()
    with inputs.progress_bar(console, plan.total()) as advance:
        boards = compare(plan, processes=jobs, advance=advance)
    report = Report(boards, baseline, inputs.typed_command())
    console.print(table.aggregate_table(report))
    for name, content in (
        ("scoreboard.json", json.dumps(as_json(report), indent=1) + "\n"),
        ("index.html", page(report)),
        ("README.md", table.markdown(report)),
    ):
        (out / name).write_text(content, encoding="utf-8")
    console.print(f"Written: {out / 'index.html'} (open it), scoreboard.json, README.md", highlight=False)
