"""`python -m experiments.zones`: latency, and who leaves its zone, by `zones.bound_s`; writes docs/operate/zones.md.

The simulator runs `fleet.yaml`: bursts hit an edge with few workers, and a region and a core stand behind it. Every
line has equal arrivals, and tells of the requests that come in at the edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from experiments.by_hand import marked, words_of
from policies import BUILTIN
from simulator.result import Status
from simulator.run import run
from simulator.scenario import Scenario, load_scenario
from simulator.scoreboard.metrics import WARM_UP_SHARE

SCENARIO = Path(__file__).with_name("fleet.yaml")
PAGE = Path("docs/operate/zones.md")
POLICY = "expected_latency"
BOUNDS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 3600.0)
IGNORED_S = -1.0
"""What the kernel has for a bound where zones do not matter."""
ORDERED_S = 0.02
"""The bound with which `zones.order` is left out as well."""
EDGE = 0
"""The balancer of the edge."""


@dataclass(frozen=True)
class Line:
    """One setting, and what became of the edge's requests."""

    setting: str
    p50_ms: float
    p99_ms: float
    shares: dict[str, float]
    """Of the requests, by the zone that served them."""


def lines(scenario: Scenario, seeds: int, requests: int) -> list[Line]:
    """Zones ignored, each bound, and one without an order."""
    order = scenario.fleet.settings.zones.order
    asked = [("zones ignored", IGNORED_S, order)]
    asked += [(f"`bound_s: {bound_s:g}`", bound_s, order) for bound_s in BOUNDS_S]
    asked += [(f"`bound_s: {ORDERED_S:g}`, no `order`", ORDERED_S, ())]
    return [_line(setting, scenario, bound_s, named, seeds, requests) for setting, bound_s, named in asked]


def _line(setting: str, scenario: Scenario, bound_s: float, order: tuple[str, ...], seeds: int, requests: int) -> Line:
    settings = scenario.fleet.settings
    zones = replace(settings.zones, bound_s=bound_s, order=order)
    fleet = replace(scenario.fleet, settings=replace(settings, zones=zones))
    arrivals = [scenario.arrivals(seed, requests) for seed in range(seeds)]
    result = run(fleet, arrivals, BUILTIN[POLICY]())
    counted = np.stack([one.balancer for one in arrivals]) == EDGE
    counted[:, : int(WARM_UP_SHARE * requests)] = False
    if not (result.status[counted] == Status.OK).all():
        raise click.ClickException(f"{setting}: not all requests were answered, so latencies do not compare")
    latency_ms = 1e3 * result.latency_s[counted]
    stands = np.array([worker.zone for worker in fleet.workers])[result.worker[counted]]
    p50_ms, p99_ms = np.percentile(latency_ms, [50, 99])
    shares = {zone: float(np.mean(stands == zone)) for zone in scenario.fleet.settings.zones.order}
    return Line(setting, float(p50_ms), float(p99_ms), shares)


def page(found: list[Line], words: str, seeds: int, requests: int) -> str:
    """The page's text."""
    zones = list(found[0].shares)
    rows = [
        f"| {line.setting} | {line.p50_ms:.1f} | {line.p99_ms:.0f} | "
        + " | ".join(f"{100 * line.shares[zone]:.1f}%" for zone in zones)
        + " |"
        for line in found
    ]
    head = [
        f"| | p50, ms | p99, ms | {' | '.join(f'in the {zone}' for zone in zones)} |",
        "|---" * (3 + len(zones)) + "|",
    ]
    told = (
        f"Requests that come in at the edge, {seeds} runs of {requests} requests, policy `{POLICY}`: made by "
        "`python -m experiments.zones`."
    )
    return "\n".join(["# Zones", "", marked(words), "", "## What the bound does", "", told, "", *head, *rows, ""])


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Runs.")
@click.option("--requests", type=click.IntRange(min=100), default=20_000, show_default=True, help="Of each run.")
@click.option("--page", "path", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, show_default=True)
def main(seeds: int, requests: int, path: Path) -> None:
    """Run the fleet under each setting, and write the page; words between its marks stay."""
    found = lines(load_scenario(SCENARIO), seeds, requests)
    path.write_text(page(found, words_of(path), seeds, requests), encoding="utf-8")
    click.echo(f"Written: {path}")


if __name__ == "__main__":
    main()
