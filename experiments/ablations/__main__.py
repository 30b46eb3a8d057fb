"""`python -m experiments.ablations`: train every variant, judge them, write the page."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from experiments.ablations.gradients import Effort
from experiments.ablations.report import page, ratios
from experiments.ablations.runs import EstimatesJob, Job, run
from experiments.ablations.variants import EXPECTED, VARIANTS, WLPR, Budget, trained_on
from experiments.by_hand import words_of
from simulator.scenario import load_scenario, scenario_names
from simulator.training.checkpoint import write_whole
from simulator.training.pool import Processes
from simulator.training.validation import REPORT_SEED, Case, cases

DECISIONS_PER_MINUTE = 7_000_000
"""What pgpe gets through on one core, measured on the machine that the page comes from; of a budget that was given in
minutes, so that equal commands train alike on every machine."""
TRAIN, RANDOM_SCENARIOS, HELD_OUT = "Train scenarios, seeds of their own", "Random scenarios", "Held-out scenarios"
_FIRST_SEED = REPORT_SEED + (1 << 21)
"""Of what the variants are judged on: seeds that nothing was trained or chosen on."""


@click.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Of the page and its JSON."
)
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=2.5, show_default=True, help="A variant."
)
@click.option("--decisions", type=click.IntRange(min=1), help="A variant, in place of minutes.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of training.")
@click.option("--only", type=click.Choice(list(VARIANTS)), multiple=True, help="These variants; repeat [default: all].")
@click.option("--seeds", type=click.IntRange(min=2), default=12, show_default=True, help="Judged on, of each scenario.")
@click.option("--requests", type=click.IntRange(min=20), default=4000, show_default=True, help="Of each such episode.")
@click.option("--held-out", is_flag=True, help="Judge on the held-out scenarios as well: once, at the very end.")
@click.option("--estimates/--no-estimates", default=True, show_default=True, help="Measure estimates of the gradient.")
@click.option(
    "--kept",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/ablations"),
    show_default=True,
    help="Folder of what is done so far; the same command goes on from there.",
)
def main(
    out: Path,
    minutes: float,
    decisions: int | None,
    jobs: int,
    seed: int,
    only: Sequence[str],
    seeds: int,
    requests: int,
    held_out: bool,
    estimates: bool,
    kept: Path,
) -> None:
    """Train the learned policy with one thing taken away at a time, judge all on equal episodes, write ablations.md."""
    budget = Budget(decisions or round(minutes * DECISIONS_PER_MINUTE), seed)
    folder = kept / f"seed-{seed}-decisions-{budget.decisions}-judged-{seeds}x{requests}"
    folder.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    sets = _sets(seeds, held_out)
    names = [name for name in VARIANTS if not only or name in only or name in (EXPECTED, WLPR)]
    draw = trained_on()
    wanted: list[Job | EstimatesJob] = [Job(name, budget, draw, sets, requests, folder) for name in names]
    if estimates:
        wanted.append(EstimatesJob(draw, Effort.within(budget.decisions), folder))
    with Processes(jobs) as pool:
        done = pool.map(run, wanted)
    kept_files = {name: folder / f"{name}.json" for name in VARIANTS}  # of earlier calls as well
    outcomes = {name: json.loads(path.read_text()) for name, path in kept_files.items() if path.exists()}
    found = done[-1] if estimates else {}
    path = out / "ablations.md"
    write_whole(path, page(outcomes, sets, found, _command(), words_of(path)).encode())
    told = {"decisions": budget.decisions, "seed": seed, "ratios": _summary(outcomes, sets), "estimates": found}
    write_whole(out / "ablations.json", (json.dumps(told, indent=1) + "\n").encode())


def _command() -> str:
    return shlex.join(["python", "-m", "experiments.ablations", *sys.argv[1:]])


def _sets(seeds: int, held_out: bool) -> dict[str, tuple[Case, ...]]:
    """What is judged on, by title."""
    sets = {
        TRAIN: cases(trained_on().shipped, seeds, 0, _FIRST_SEED),
        RANDOM_SCENARIOS: cases((), 0, 5 * seeds, _FIRST_SEED + seeds),
    }
    if held_out:
        names = scenario_names("held-out")
        sets[HELD_OUT] = cases([load_scenario(name) for name in names], seeds, 0, _FIRST_SEED)
    return sets


def _summary(outcomes: dict[str, Any], sets: dict[str, tuple[Case, ...]]) -> dict[str, Any]:
    """Ratios with the ends of their intervals."""
    return {
        title: {
            name: {key: [e.value, e.low, e.high] for key, e in each.items()}
            for name, each in ratios(outcomes, title, chosen).items()
        }
        for title, chosen in sets.items()
    }


if __name__ == "__main__":
    main()
