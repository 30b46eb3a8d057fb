"""`balancer train`: a policy for `policy: learned`, by policy gradient in the simulator."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape

from policies.learned.artifact import Artifact, write_artifact
from simulator.commands import inputs
from simulator.pool import TaskPool
from simulator.train.plan import ResolvedPlan, TrainingPlan, course, differences, make_plan
from simulator.train.trainer import (
    OUT_OF_TIME,
    Checkpoint,
    Trained,
    TrainingStep,
    artifacts,
    config,
    cpus,
    git,
    now,
    read_checkpoint,
    write_whole,
)
from simulator.train.trainer import train as run_training
from simulator.train.validation import nothing_to_gain

_CONFIG = "config.json"
_STOPPED = "stopped by hand"
_TELL_EVERY_S = 20.0
_LITTLE_TOLL = 0.1
_SHOWN = 6
_POLICY, _LAST = "policy.npz", "last.npz"

_EPILOG = """\b
Examples:
  balancer train --out out/mine
  balancer train --out out/mine --resume                          go on after a kill
  balancer train --out out/ours --from-log decisions/             train for your fleet, on production's requests
  balancer train --out out/quick --iterations 30 --set pairs=32 --scenarios stale-reports --scenarios mine.yaml
Then, in the balancer's config: policy: {name: learned, options: {file: out/mine/policy.npz}}
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help=f"Folder for {_POLICY} (the best), {_LAST}, {_CONFIG}, checkpoint and TensorBoard.",
)
@click.option(
    "--scenarios",
    multiple=True,
    metavar="NAME|FILE",
    help="What to train on, beside random fleets; repeat [default: the train split but for a few; see the chapter].",
)
@click.option("--fleet", metavar="NAME|FILE", help="Train for the one fleet of this scenario, in place of many.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True)
@click.option("--iterations", type=click.IntRange(min=1), help="[default: 60]")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    help="End after so long, all parts of the run counted, without the scoreboard; with --resume and 0: now, with the "
    "best so far. So does Ctrl-C.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Processes; the result does not depend on it [default: one a CPU]."
)
@inputs.RAY
@click.option("--set", "changes", multiple=True, metavar="SETTING=VALUE", help="config.json lists all.")
@click.option(
    "--from-log",
    type=click.Path(path_type=str, exists=True),
    metavar="FOLDER",
    help="Train for the one fleet of a decision log, on its requests; with --init, go on from a trained policy.",
)
@click.option(
    "--last-hours",
    type=click.FloatRange(min=0, min_open=True),
    help="Of the log, the last ones alone [default: all of it].",
)
@click.option(
    "--profile",
    "profile",
    type=click.Path(path_type=str, exists=True, dir_okay=False),
    multiple=True,
    help="Service times (balancer profile), which go before the log's; repeat.",
)
@click.option(
    "--unchecked", is_flag=True, help="Train though the fleet made of the log is not like it (balancer twin)."
)
@click.option("--init", metavar="FILE", help="Start from the policy in this file.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out; its options need not be repeated.")
def train(out: Path, minutes: float | None, jobs: int | None, ray: str | None, resume: bool, **options: Any) -> None:
    """Train the learned policy in the simulator, and write it as a file that a balancer serves.

    Equal options give equal weights, on however many processes or machines.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of our processes: matrices are small, and there are many of them
    console, pool = inputs.console(), inputs.pool(ray, jobs, cpus())
    try:
        plan, written, found, prepared = _prepared(out, resume, _given(options), console)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    for remark in prepared.remarks:
        console.print(f"Note: {remark}.", markup=False, highlight=False)
    try:
        where = f"ray {ray}" if ray else f"{jobs or cpus()} processes"
        console.print(f"Training in {out}, {where}; compiled first: one to two minutes, once.", highlight=False)
        with pool:
            limit_s = 60 * minutes if minutes is not None else float("inf")
            try:
                with _progress(console, prepared, pool) as on_step:
                    trained = run_training(prepared, out, pool, found=found, limit_s=limit_s, on_step=on_step)
            except KeyboardInterrupt:
                trained = _stopped(console, out)
            short = trained.why in (OUT_OF_TIME, _STOPPED)
            follows = "Ranges of inputs follow" if short else "Scoreboard and ranges of inputs follow"
            console.print(f"Ended: {trained.why}. {follows}.", highlight=False)
            try:
                best, last = artifacts(plan, prepared, written, trained, where, pool, short=short)
            except KeyboardInterrupt:
                if short:
                    raise
                trained = _stopped(console, out)
                best, last = artifacts(plan, prepared, written, trained, where, pool, short=True)
    except KeyboardInterrupt:
        raise _left(console, out) from None
    write_whole(out / _LAST, write_artifact(last))
    write_whole(out / _POLICY, write_artifact(best))
    _show(console, best, out)
    if trained.why == _STOPPED:
        raise _left(console, out)


def _stopped(console: Console, out: Path) -> Trained:
    """What there is so far; KeyboardInterrupt where that is nothing."""
    found = read_checkpoint(out)
    if found is None:
        raise KeyboardInterrupt
    console.print(
        "Stopping: the best so far is written once what is being played has ended; Ctrl-C again leaves at once.",
        highlight=False,
    )
    return Trained(found, _STOPPED)


def _left(console: Console, out: Path) -> click.exceptions.Exit:
    console.print(f"Stopped; go on with: balancer train --out {out} --resume", highlight=False)
    return click.exceptions.Exit(130)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    context = click.get_current_context()
    typed = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    settings = inputs.assigned(typed.pop("changes", ()), "--set", "setting=value, such as pairs=64")
    if "iterations" in typed:
        settings["iterations"] = typed.pop("iterations")
    for name in ("profile", "unchecked", "last_hours"):
        if typed.get(name) and not typed.get("from_log"):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is given, which goes with --from-log: give the log as well"
            )
    return typed | ({"settings": settings} if settings else {})


def _prepared(
    out: Path, resume: bool, given: dict[str, Any], console: Console
) -> tuple[TrainingPlan, dict[str, Any], Checkpoint | None, ResolvedPlan]:
    """The plan, `config.json`, the checkpoint to go on from, and what the plan names; the folder is ready."""
    if not resume:
        if out.is_dir() and any(out.iterdir()):
            raise click.UsageError(
                f"--out {out} is not empty: name another folder, or go on with the run in it by --resume"
            )
        plan = make_plan(given)
        prepared = course(plan)
        written = config(plan, prepared, inputs.typed_command())
    else:
        try:
            written = json.loads((out / _CONFIG).read_bytes())
            plan = TrainingPlan.from_json(written["plan"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise click.UsageError(
                f"--resume: {out / _CONFIG} is not there, or not of a run ({error}); leave --resume out to begin one"
            ) from error
        if wrong := differences(plan, {**given, "schema": TrainingPlan().schema}):
            raise click.UsageError(
                f"--resume with other options than those of the run in {out}: {'; '.join(wrong)}; "
                "leave them out, or begin anew in another folder"
            )
        prepared = course(plan)
        if prepared.inputs != written["inputs"]:
            raise click.UsageError(
                f"--resume: the scenarios of the run in {out} have changed since it began (a log that grew, a file "
                "edited, other code); begin anew in another folder"
            )
        if git() != written["git"]:
            console.print("The code is not at the commit that began this run, so the result may differ.", style="dim")
        written["resumed"].append({"at": now(), "git": git()})
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / _CONFIG, (json.dumps(written, indent=1) + "\n").encode())
    return plan, written, read_checkpoint(out), prepared


@contextmanager
def _progress(console: Console, prepared: ResolvedPlan, pool: TaskPool) -> Iterator[Any]:
    """A bar; evaluations as lines, on a terminal and elsewhere, and now and then what is done and how long the rest
    will take."""
    done, total = 0, prepared.algorithm.settings.iterations
    begun_s = shown_s = time.monotonic()
    first_s: float | None = None
    first = 0

    def left() -> str:
        """Of all iterations; fewer are made where they do not help any more."""
        if first_s is None or done <= first:
            return ""
        minutes = (time.monotonic() - first_s) / (done - first) * (total - done) / 60
        return f", {minutes:.0f} min left at most" if minutes >= 1 else ", less than a minute left"

    def part_done(part: int, parts: int) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s < _TELL_EVERY_S:
            return
        shown_s = now_s
        doing = "the start is judged" if first_s is None else f"iteration {done} of {total} is done"
        passed = f"{now_s - begun_s:.0f} s: {doing}, part {part} of {parts} of what is next{left()}"
        console.print(passed, highlight=False, style="dim")

    pool.progress = part_done
    with inputs.progress_bar(console, total, "iterations") as advance:

        def on_step(step: TrainingStep) -> None:
            nonlocal done, first, first_s
            advance(step.iteration - done)
            done = step.iteration
            if first_s is None:
                first, first_s = done, time.monotonic()
            if step.judged is None:
                return
            best = "best, " if step.best else ""
            line = f"{step.iteration:>4}/{total}: {best}{step.judged.words()}; {step.wall_s:.0f} s{left()}"
            console.print(line, highlight=False)

        yield on_step


def _show(console: Console, best: Artifact, out: Path) -> None:
    board = best.record["scoreboard"]
    for scenario, against in board.items():
        found = against["expected_latency"]
        mean, p99 = (f"x{value:.3f} ({low:.3f} to {high:.3f})" for value, low, high in (found["mean"], found["p99"]))
        console.print(f"  {scenario:<24} mean {mean}, p99 {p99} of expected_latency's", highlight=False)
    if (best.record["fleet"] or best.record["from_log"]) and nothing_to_gain(board):
        console.print("Nothing to gain here: no lower mean is certain. Use expected_latency.", highlight=False)
    elif board and best.record["weighs_keys"]:
        console.print("It weighs keys itself: set requests.sticky_keys: false where it serves.", highlight=False)
    for line in best.record["off_policy"].get("says", ()):
        console.print(f"  {escape(line)}", highlight=False)
    for model, tolls in best.record["tolls"].items():
        console.print(f"  {escape(_of_tolls(model, tolls))}", highlight=False)
    console.print(f"Written: {out / _POLICY} (iteration {best.record['iteration']}), {_LAST}", highlight=False)


def _of_tolls(model: str, tolls: Mapping[str, float]) -> str:
    """In words, where a model goes first and what the others have to be better by."""
    ordered = sorted(tolls, key=lambda worker: tolls[worker])
    first = [worker for worker in ordered if tolls[worker] < _LITTLE_TOLL]
    others = [f"{worker} ({tolls[worker]:.1f})" for worker in ordered if tolls[worker] >= _LITTLE_TOLL]
    if not others:
        return f"{model}: no tolls"
    named = f"{', '.join(first[:_SHOWN])}{', ...' if len(first) > _SHOWN else ''}"
    then = others[0] if len(others) == 1 else f"{others[0]} to {others[-1]}"
    return f"{model}: first at {named}; at {then} where so many services are saved"
