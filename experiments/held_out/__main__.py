"""`python -m experiments.held_out`: see the package."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from balancer.config.policy_options import read_policy_file
from balancer.errors import OperatorError
from experiments.by_hand import words_of
from experiments.held_out import page, plot
from experiments.held_out.plan import BEFORE, TOLD, Plan, judge, other_fleets, run_all, seconds
from experiments.held_out.report import Report, as_json
from experiments.held_out.results_csv import as_csv
from experiments.held_out.runs import Task
from experiments.held_out.store import Store
from policies import BUILTIN
from policies.base import Policy
from policies.learned.policy import SHIPPED, Learned
from simulator.commands.inputs import load_scenarios
from simulator.scenario import scenario_names
from tools.load.display import make_console

PAGE, NUMBERS, TABLE = "held_out.md", "held_out.json", "held_out.csv"
_SUBJECT = "learned"
_INTERRUPTED = 130


@click.command(
    help="Judge trained policies on the held-out scenarios and on fleets of other sizes, against every heuristic. "
    "Writes held_out.md, held_out.csv, held_out.json and two pictures."
)
@click.option(
    "--file", "files", multiple=True, help="A file that `balancer train` wrote; repeat: the first is the subject."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/held_out"), show_default=True)
@click.option(
    "--kept", type=click.Path(path_type=Path), default=Path("out/held_out/runs"), show_default=True, help="Where runs "
    "are kept: one that was done before, with all that it rests on unchanged, is not done again.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--scenario", "--scenarios", "scenarios", multiple=True, help="Repeat. [default: all held out]")
@click.option("--fleets/--no-fleets", default=True, show_default=True, help="Whether to run other fleets too.")
@click.option("--requests", type=click.IntRange(min=10), help="Of each run. [default: as scenarios say]")
@click.option("--again", is_flag=True, help="Run nothing: make the page of what is kept.")
@click.option("--heuristics-only", is_flag=True, help="Run and keep what does not depend on the files; no page.")
def main(
    files: tuple[str, ...],
    out: Path,
    kept: Path,
    seeds: int,
    jobs: int,
    scenarios: tuple[str, ...],
    fleets: bool,
    requests: int | None,
    again: bool,
    heuristics_only: bool,
) -> None:
    """See the option `help`."""
    # Inherited by the processes that compute: each has a core, and many threads would fight for it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    console = make_console()
    try:
        plan = Plan(
            scenarios=load_scenarios(scenarios or scenario_names("held-out")),
            fleets=other_fleets() if fleets else (),
            heuristics={name: policy() for name, policy in BUILTIN.items() if not policy.trained},
            trained={} if heuristics_only else trained(files or (SHIPPED,)),
            seeds=tuple(range(seeds)),
            requests=requests,
        )
    except (OperatorError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    store = Store(kept)
    tasks = [] if again else plan.tasks()
    todo = [task for task in tasks if store.find(task) is None]
    try:
        console.print(f"{len(todo)} runs to be done, {len(tasks) - len(todo)} are kept in {kept}", highlight=False)
        with _progress(todo) as done:
            run_all(todo, store, jobs, done)
    except KeyboardInterrupt:
        console.print(f"Stopped. What was finished is kept in {kept}: the same command goes on from there.")
        sys.exit(_INTERRUPTED)
    if not heuristics_only:
        written = write(plan, store, out)
        console.print(page.summary(written), markup=False, highlight=False)
        console.print(f"Written: {out / PAGE}, {out / TABLE}, {out / NUMBERS}, and pictures", highlight=False)


def trained(files: Sequence[str]) -> dict[str, Policy]:
    """The policies of the files, by the name to show; raises `ValueError` where one cannot be used."""
    found: dict[str, Policy] = {}
    for file in files:
        name = _SUBJECT if file == SHIPPED or len(files) == 1 else f"{_SUBJECT} {Path(file).stem}"
        if name in found:
            raise ValueError(f"--file {file}: two files are called {name}; rename one")
        found[name] = Learned(file=file).with_files(read_policy_file)
    return found


def write(plan: Plan, store: Store, out: Path) -> Report:
    """Page, numbers and pictures of all that is finished."""
    of_scenarios, of_fleets = ([judge(plan, each, store) for each in group] for group in (plan.scenarios, plan.fleets))
    both = zip([*plan.scenarios, *plan.fleets], [*of_scenarios, *of_fleets], strict=True)
    report = Report(
        scenarios=[each for each in of_scenarios if each is not None],
        fleets=[each for each in of_fleets if each is not None],
        heuristics=[*plan.heuristics, TOLD, BEFORE],
        trained=plan.trained,
        missing=[scenario.name for scenario, judged in both if judged is None],
        command=shlex.join(["python", "-m", "experiments.held_out", *sys.argv[1:]]),
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / PAGE
    path.write_text(page.page(report, words_of(path)), encoding="utf-8")
    numbers = as_json(report)
    (out / NUMBERS).write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / TABLE).write_text(as_csv(numbers), encoding="utf-8")
    if report.scenarios:
        plot.draw(report, out / page.PICTURE)
    if report.fleets:
        plot.draw_fleets(report, out / page.FLEETS_PICTURE)
    return report


@contextmanager
def _progress(tasks: Sequence[Task]) -> Iterator[Callable[[Task], None]]:
    """A bar with the time left; without a terminal, a line for each run."""
    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
               TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("runs", total=sum(map(seconds, tasks)))

        def done(task: Task) -> None:
            bar.update(row, advance=seconds(task), description=task.name)
            if not console.is_terminal:
                progress = bar.tasks[0]
                left = "" if progress.time_remaining is None else f", some {progress.time_remaining:.0f} s left"
                console.print(f"{progress.percentage:3.0f}%{left}: {task.name}", markup=False, highlight=False)

        yield done


if __name__ == "__main__":
    main(prog_name="python -m experiments.held_out")
