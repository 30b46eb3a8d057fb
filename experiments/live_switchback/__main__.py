"""`python -m experiments.live_switchback`: see the package."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import uvloop

from balancer.errors import OperatorError
from experiments.live_fidelity import twin
from experiments.live_fidelity.live import Recording, record
from experiments.live_fidelity.session import Session
from experiments.live_switchback import page, plot
from experiments.live_switchback.design import DESIGN, QUICK, capacity_weights
from experiments.live_switchback.report import make_report
from policies import BUILTIN
from simulator.result import Result
from simulator.spec import FleetSpec
from tools.demo.stack import interruptible
from tools.load.display import LiveLine, make_console

_RECORDING = "recording.json"
_INTERRUPTED = 130


@click.command(
    help="Policies take short turns on the demo's stack under bursty traffic, swapped in its config file; and in the "
    "simulator. Writes README.md, switchback.png and results.json."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/switchback"), show_default=True)
@click.option("--page", "page_dir", type=click.Path(path_type=Path), help="Where the page goes [default: --out].")
@click.option("--again", is_flag=True, help="Simulate and compare anew what the last run recorded; nothing is started.")
@click.option("--quick", is_flag=True, help=f"{QUICK.rounds} blocks of short windows, to see that all of it works.")
@click.option("--policy", "policies", multiple=True, help=f"Repeat; the last against the rest [{DESIGN.policies}].")
@click.option("--blocks", "rounds", type=click.IntRange(min=2), help=f"[default: {DESIGN.rounds}]")
@click.option("--window-s", type=float, help=f"What counts of each window. [default: {DESIGN.window_s:g}]")
@click.option("--settle-s", type=float, help=f"Left out at its start. [default: {DESIGN.settle_s:g}]")
@click.option("--rate", "rate_per_s", type=float, help=f"Mean, per second. [default: {DESIGN.rate_per_s:g}]")
@click.option(
    "--sessions", type=click.IntRange(min=0), help=f"Of each model, at any moment. [default: {DESIGN.sessions}]"
)
@click.option("--seed", type=click.IntRange(min=0), help=f"Of arrivals and order. [default: {DESIGN.seed}]")
@click.option("--equal-weights", is_flag=True, help="All workers weigh 1, instead of what their GPUs can do.")
def main(out: Path, page_dir: Path | None, again: bool, quick: bool, equal_weights: bool, **given: Any) -> None:
    """See the option `help`."""
    console = make_console()
    began_s = time.monotonic()
    target, recorded = page_dir or out, out / _RECORDING

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began_s:4.0f} s] {text}", markup=False, highlight=False)

    try:
        if not again:
            session = _session(QUICK if quick else DESIGN, given)
            out.mkdir(parents=True, exist_ok=True)
            say("starting Envoy, the balancer and four Tritons with emulated GPUs ...")
            weigh = None if equal_weights else capacity_weights
            with LiveLine(console) as line:
                uvloop.run(interruptible(record(session, out, say, line.show, weigh))).save(recorded)
        elif not recorded.exists():
            raise ValueError(f"--again, and there is no {recorded}: run it without first, or name its --out")
        recording = Recording.load(recorded)
        say("the same, simulated ...")
        report = make_report(recording, *_simulated(recording))
    except (OperatorError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        console.print("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)
    target.mkdir(parents=True, exist_ok=True)
    plot.draw(report, target / "switchback.png")
    (target / "README.md").write_text(page.page(report), encoding="utf-8")
    (target / "results.json").write_text(json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n")
    console.print(page.summary(report), markup=False, highlight=False)
    say(f"written: {target / 'README.md'}, {target / 'switchback.png'}, {target / 'results.json'}")
    for problem in report.problems():
        console.print(problem, style="bold red", markup=False, highlight=False)
    sys.exit(1 if report.problems() else 0)


def _session(design: Session, given: dict[str, Any]) -> Session:
    """The design with what was given; raises `ValueError` for what cannot be run."""
    session = replace(design, **{name: value for name, value in given.items() if value not in (None, ())})
    for policy in session.policies:
        if policy not in BUILTIN:
            raise ValueError(f"--policy is {policy!r}: give one of {', '.join(BUILTIN)}")
    if len(set(session.policies)) < max(len(session.policies), 2):
        raise ValueError(f"policies are {session.policies}: give at least two, each once")
    _ = session.plan  # raises ValueError where there is nothing to compare
    return session


def _simulated(recording: Recording) -> tuple[FleetSpec, Result]:
    fleet = twin.fleet(recording.profiles, recording.easy, recording.live.models, recording.weights, recording.session)
    return fleet, twin.simulate(fleet, recording.session, range(page.SEEDS))


if __name__ == "__main__":
    main(prog_name="python -m experiments.live_switchback")
