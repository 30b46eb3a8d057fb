"""`python -m experiments.optimizers`: train with every algorithm from several seeds, judge all, write the page."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from experiments.ablations.variants import trained_on
from experiments.by_hand import words_of
from experiments.optimizers.algorithms import ALGORITHMS
from experiments.optimizers.beside import beside
from experiments.optimizers.episodes import judges
from experiments.optimizers.findings import Found
from experiments.optimizers.page import Report, as_json, page
from experiments.optimizers.runs import Job, Judges, Outcome, Training, run, shares
from simulator.training.checkpoint import write_whole
from simulator.training.pool import Pool, Processes

PAGE = Path("docs/learned/optimizers.md")


@click.command()
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
@click.option("--decisions", type=click.IntRange(min=1), default=2_000_000, show_default=True, help="Of each training.")
@click.option("--seeds", type=click.IntRange(min=2), default=10, show_default=True, help="Of training, from 0 on.")
@click.option("--scenarios", type=click.IntRange(min=2), default=24, show_default=True, help="Judged on, of each kind.")
@click.option("--request-seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Of each scenario.")
@click.option("--requests", type=click.IntRange(min=20), default=3000, show_default=True, help="Of each such run.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--kept",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/optimizers"),
    show_default=True,
    help="Folder of what is done so far; the same command goes on from there.",
)
def main(
    path: Path, decisions: int, seeds: int, scenarios: int, request_seeds: int, requests: int, jobs: int, kept: Path
) -> None:
    """Train with every algorithm at equal decisions and at about equal time, judge all alike, write the page."""
    # Inherited by the processes that compute: each has a core, and threads of others would count as its time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = kept / f"decisions-{decisions}-judged-{scenarios}x{request_seeds}x{requests}"
    folder.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    judged_on = judges(scenarios, request_seeds, requests)
    with Processes(jobs) as pool:
        beside = _judged_beside(judged_on, folder, pool)
        equal = _trained(dict.fromkeys(ALGORITHMS, decisions), seeds, judged_on, folder, pool)
        budgets = {name: round(decisions * share) for name, share in shares(equal, folder).items()}
        again = _trained(budgets, seeds, judged_on, folder, pool)
    report = Report(
        decisions=Found({**equal, **beside}, judged_on.sets),
        time=Found({**equal, **again, **beside}, judged_on.sets),
        training_seeds=seeds,
        request_seeds=request_seeds,
        requests=requests,
        command=shlex.join(["python", "-m", "experiments.optimizers", *sys.argv[1:]]),
    )
    write_whole(path.with_suffix(".json"), (json.dumps(as_json(report), indent=1) + "\n").encode())
    write_whole(path, page(report, words_of(path)).encode())
    click.echo(f"Written: {path}, and beside it .json")


def _judged_beside(judged_on: Judges, folder: Path, pool: Pool) -> dict[str, list[Outcome]]:
    given = beside()
    jobs = [Job(name.replace(", ", "-").replace(" ", "-"), policy, judged_on, folder) for name, policy in given.items()]
    return {name: [outcome] for name, outcome in zip(given, pool.map(run, jobs), strict=True)}


def _trained(
    budgets: Mapping[str, int], seeds: int, judged_on: Judges, folder: Path, pool: Pool
) -> dict[str, list[Outcome]]:
    """By algorithm; `budgets`: of each, in decisions."""
    draw = trained_on()
    trainings = [Training(name, budget, seed, draw) for seed in range(seeds) for name, budget in budgets.items()]
    found: dict[str, list[Outcome]] = {name: [] for name in budgets}
    outcomes = pool.map(run, [Job(each.name, each, judged_on, folder) for each in trainings])
    for each, outcome in zip(trainings, outcomes, strict=True):
        found[each.algorithm].append(outcome)
    return found


if __name__ == "__main__":
    main()
