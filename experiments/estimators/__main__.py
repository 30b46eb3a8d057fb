"""`python -m experiments.estimators`: measure a tree, or compare what was measured of two."""

from __future__ import annotations

import json
from pathlib import Path

import click

from balancer.config.policy_options import build_policy
from experiments.by_hand import words_of
from experiments.estimators import handed
from experiments.estimators.fleets import (
    long_services,
    random_fleet,
    shared_by_balancers,
    three_models,
    three_models_shared_by_balancers,
)
from experiments.estimators.measure import Found, measure
from experiments.estimators.page import Groups, page
from experiments.estimators.whole import measure_held, measure_social
from experiments.holding.settings import holding, of_one_broker
from policies.base import Policy
from simulator.scenario import Scenario, load_scenario, scenario_names
from simulator.training.checkpoint import write_whole

POLICY, SOCIAL = "expected_latency", "social"
GROUPS = THREE, SEVERAL, LONG, LONG_SEVERAL, LONG_HELD, LONG_BROKER, RANDOM, RANDOM_SEVERAL, TRAIN, TRAIN_SEVERAL = (
    "three models",
    "three models, several balancers",
    "long services",
    "long services, several balancers",
    "long services, held",
    "long services, four balancers, held by one",
    "random fleets",
    "random fleets, several balancers",
    "train scenarios",
    "train scenarios, several balancers",
)
_SHARED = ("cache-affinity", "heterogeneous-steady", "mixed-sizes", "several-models", "slow-worker")
"""Train scenarios of one balancer that several share as well."""
_TIMES_REQUESTS = {THREE: 3, SEVERAL: 3, LONG: 2, LONG_SEVERAL: 2, LONG_HELD: 2, LONG_BROKER: 2}
"""Where queues take long to build up."""
_HELD = {LONG_HELD: holding("arrival", 0.0, 2.0), LONG_BROKER: of_one_broker(holding("arrival", 0.0, 1.5))}
"""Groups whose requests wait for room, by `expected_latency`. A tree that is handed them places them at once."""


@click.group()
def main() -> None:
    """What estimates, or options of a policy, are worth, against another tree's or other options."""


@main.command("measure")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--policy", "name", default=POLICY, show_default=True, help=f"Decides; {SOCIAL}: the reference that minds others."
)
@click.option("--options", "given", default="{}", show_default=True, help="Of the policy, as JSON.")
@click.option("--fleets", default=24, show_default=True, help="Random ones.")
@click.option("--seeds", default=3, show_default=True, help="Of each random fleet; of all else twice as many.")
@click.option(
    "--requests",
    default=4000,
    show_default=True,
    help="Of each run; with long services twice, with the three models three times.",
)
@click.option("--group", "chosen", type=click.Choice(GROUPS), multiple=True, help="Measure these alone [default: all].")
def measure_tree(
    out: Path, name: str, given: str, fleets: int, seeds: int, requests: int, chosen: tuple[str, ...]
) -> None:
    """Measure the tree that this runs in, and write what was found to OUT, where groups that are not measured stay.

    To measure an older tree, copy this folder into it, and run it there.
    """
    policy = None if name == SOCIAL else build_policy(name, json.loads(given))
    groups = _groups(fleets)
    found: dict[str, dict[str, Found]] = json.loads(out.read_bytes())["found"] if out.exists() else {}
    for group in chosen or GROUPS:
        runs, count = _runs(group, seeds), _requests(group, requests)
        found[group] = {}
        for scenario in groups[group]:
            found[group][scenario.name] = _measured(group, scenario, policy, runs, count)
            click.echo(f"{group}: {scenario.name}")
    groups_of_it = "".join(f" --group '{each}'" for each in chosen)
    options = (
        f"--policy {name} --options '{given}' --fleets {fleets} --seeds {seeds} --requests {requests}{groups_of_it}"
    )
    content = {"command": f"python -m experiments.estimators measure FILE.json {options}", "policy": name}
    write_whole(out, json.dumps({**content, "found": found}, indent=1).encode())


def _measured(group: str, scenario: Scenario, policy: Policy | None, seeds: range, requests: int) -> Found:
    if policy is None:
        return measure_social(scenario, seeds, requests)
    if group in _HELD:
        return measure_held(scenario, _HELD[group](scenario.fleet), seeds, requests)
    return measure(scenario, policy, seeds, requests)


def _groups(fleets: int) -> Groups:
    return {
        THREE: three_models(),
        SEVERAL: three_models_shared_by_balancers(),
        LONG: long_services(),
        LONG_SEVERAL: shared_by_balancers(long_services()),
        LONG_HELD: long_services(),
        LONG_BROKER: [each for each in shared_by_balancers(long_services()) if each.fleet.balancers == 4],
        RANDOM: [random_fleet(seed) for seed in range(fleets)],
        RANDOM_SEVERAL: shared_by_balancers(random_fleet(seed) for seed in range(fleets)),
        TRAIN: [load_scenario(each) for each in scenario_names("train")],
        TRAIN_SEVERAL: [
            *(load_scenario(each) for each in scenario_names("train") if each.endswith("-balancers")),
            *shared_by_balancers(load_scenario(each) for each in _SHARED),
        ],
    }


def _runs(group: str, seeds: int) -> range:
    return range(seeds if group in (RANDOM, RANDOM_SEVERAL) else 2 * seeds)


def _requests(group: str, requests: int) -> int:
    return requests * _TIMES_REQUESTS.get(group, 1)


@main.command("hand-over")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--fleets", default=24, show_default=True, help="Random ones.")
@click.option("--seeds", default=3, show_default=True, help="Of each random fleet; of all else twice as many.")
@click.option("--requests", default=4000, show_default=True, help="Of each run, as in `measure`.")
def hand_over(out: Path, fleets: int, seeds: int, requests: int) -> None:
    """Write scenarios and arrivals to OUT, for a tree that is too old to draw them: see handed.py."""
    handed.write(
        out,
        {
            group: [
                (one, [one.arrivals(seed, _requests(group, requests)) for seed in _runs(group, seeds)])
                for one in scenarios
            ]
            for group, scenarios in _groups(fleets).items()
        },
    )


@main.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--beside",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="What another policy does in the same scenarios, as measured; repeat.",
)
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), required=True, help="To be written.")
@click.option("--title", default="Estimates: before and after", show_default=True)
def compare(before: Path, after: Path, beside: tuple[Path, ...], path: Path, title: str) -> None:
    """Write the page that compares what was measured BEFORE with what was AFTER, run by run."""
    earlier, later, *others = (json.loads(each.read_bytes()) for each in (before, after, *beside))
    write_whole(path, page(earlier, later, others, words_of(path), title).encode())


if __name__ == "__main__":
    main()
