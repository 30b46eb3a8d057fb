"""`balancer scenarios`: what there is to simulate."""

import json
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from simulator.commands import inputs
from simulator.scenario import Scenario, load_scenario, long_scenario_names, scenario_names

_EPILOG = """\b
Examples:
  balancer scenarios
  balancer scenarios --split held-out
  balancer scenarios --json | jq '.[].name'
"""


@click.command(epilog=_EPILOG)
@click.option("--split", type=click.Choice(["train", "held-out"]), help="Only these [default: all].")
@click.option("--minutes", is_flag=True, help="Those of several minutes each, in place of the short ones.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def scenarios(split: Any, minutes: bool, as_json: bool) -> None:
    """List the scenarios: train are for tuning and training policies, held-out for judging them."""
    names = long_scenario_names() if minutes else scenario_names()
    every = [load_scenario(name) for name in names]
    found = sorted((each for each in every if split in (None, each.split)), key=lambda each: each.split, reverse=True)
    described = [_described(scenario) for scenario in found]
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("scenario", "split", "workers", "models", "balancers", "load"):
        table.add_column(column, justify="left" if column in ("scenario", "split") else "right", no_wrap=True)
    table.add_column("summary", ratio=1)
    for each in described:
        load = "closed" if each["load"] is None else f"{each['load']:.0%}"
        numbers = (str(each[name]) for name in ("workers", "models", "balancers"))
        table.add_row(each["name"], each["split"], *numbers, load, escape(each["summary"]))
    console = inputs.console()
    console.print(table)
    console.print("Load: share of the fleet's capacity on average.", style="dim")


def _described(scenario: Scenario) -> dict[str, Any]:
    workload = scenario.workload
    return {
        "name": scenario.name,
        "split": scenario.split,
        "summary": scenario.summary,
        "workers": len(scenario.fleet.workers),
        "models": len(scenario.fleet.models),
        "balancers": scenario.fleet.balancers,
        "load": None if workload.clients else round(workload.rate_per_s / scenario.capacity_per_s, 3),
        "requests": scenario.requests,
    }
