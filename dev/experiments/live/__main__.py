"""`python -m dev.experiments.live`: see the package."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import uvloop

from balancer.config.policy_options import build_policy
from balancer.errors import OperatorError
from balancer.load.command import LiveLine, make_console
from dev.experiments.live import fidelity, plot, switchback
from dev.experiments.live.record import Recording, record
from dev.experiments.live.report import Report, make_report
from dev.experiments.live.session import FIDELITY, LOGGED_ROUNDS, QUICK, SWITCHBACK, Session, capacity_weights
from dev.stack import interruptible
from policies import BUILTIN
from policies.learned import Learned

_RECORDING = "recording.json"
_INTERRUPTED = 130
_BLOCK_S = 0.5


def _options(design: Session, out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    options = (
        click.option("--out", type=click.Path(path_type=Path), default=Path(out), show_default=True),
        click.option("--page", "target", type=click.Path(path_type=Path), help="Where the page goes [default: --out]."),
        click.option("--again", is_flag=True, help="Simulate and compare the last run; nothing is started."),
        click.option("--policy", "policies", multiple=True, help=f"Repeat. [default: {', '.join(design.policies)}]"),
        click.option("--learned", default="", metavar="FILE", help="`learned` too, by the policy.npz of `train`."),
    )

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


@click.group()
def main() -> None:
    """Policies take turns on the real stack, and in the simulator under the same requests."""


@main.command("fidelity")
@_options(FIDELITY, "out/fidelity")
def fidelity_(out: Path, target: Path | None, again: bool, policies: tuple[str, ...], learned: str) -> None:
    """How close the simulator comes to the stack: writes live.md, live.json and live.png."""
    report = _report(out, again, lambda: _session(FIDELITY, policies, learned), weigh=False, block_s=_BLOCK_S)
    folder = target or out
    plot.fidelity(report, folder / "live.png")
    _write(folder, "live.md", fidelity.page(report), "live.json", fidelity.as_json(report))
    _end(fidelity.summary(report), [] if fidelity.met(report) else ["not every aim is met"])


@main.command("switchback")
@_options(SWITCHBACK, "out/switchback")
@click.option("--quick", is_flag=True, help=f"{QUICK.rounds} rounds of short windows, to see that all of it works.")
@click.option("--train", is_flag=True, help="`learned` too, trained before on a log that the stack records.")
def switchback_(
    out: Path, target: Path | None, again: bool, quick: bool, train: bool, policies: tuple[str, ...], learned: str
) -> None:
    """The last policy against each of the others, under bursts: writes README.md, switchback.png and results.json."""
    design = QUICK if quick else SWITCHBACK
    if train and learned:
        raise click.ClickException("--train and --learned are given: train it, or give its file")
    if train:
        design = replace(design, logged_rounds=LOGGED_ROUNDS)
    report = _report(out, again, lambda: _session(design, policies, learned), weigh=True)
    folder = target or out
    plot.switchback(report, folder / "switchback.png")
    _write(folder, "README.md", switchback.page(report), "results.json", report.as_json())
    _end(switchback.summary(report), report.problems())


def _session(design: Session, policies: tuple[str, ...], learned: str) -> Session:
    """The design with these policies, if any, and `learned` where its file is given; `ValueError`: it cannot be run."""
    policies = policies or design.policies
    if Learned.name in policies:
        raise ValueError("--policy is learned: give its file instead, by --learned FILE")
    if learned:
        build_policy(Learned.name, {"file": learned})  # raises where it cannot be used
    if learned or design.logged_rounds:
        policies = (*policies, Learned.name)
    session = replace(design, policies=policies, learned=learned)
    for policy in session.policies:
        if policy not in BUILTIN:
            raise ValueError(f"--policy is {policy!r}: give one of {', '.join(BUILTIN)}")
    if len(set(session.policies)) < max(len(session.policies), 2):
        raise ValueError(f"policies are {session.policies}: give at least two, each once")
    return session


def _report(
    out: Path, again: bool, make_session: Callable[[], Session], *, weigh: bool, block_s: float | None = None
) -> Report:
    """Run the session, or read what the last run recorded; and simulate it."""
    console, recorded, began_s = make_console(), out / _RECORDING, time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began_s:4.0f} s] {text}", markup=False, highlight=False)

    try:
        if not again:
            session = make_session()
            out.mkdir(parents=True, exist_ok=True)
            say("starting Envoy, the balancer and four Tritons with emulated GPUs ...")
            with LiveLine(console) as line:
                weights = capacity_weights if weigh else None
                uvloop.run(interruptible(record(session, out, say, line.show, weights))).save(recorded)
        elif not recorded.exists():
            raise ValueError(f"--again, and there is no {recorded}: run it without first, or name its --out")
        say("the same, simulated ...")
        return make_report(Recording.load(recorded), block_s)
    except (OperatorError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        click.echo("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)


def _write(folder: Path, page: str, text: str, numbers: str, content: dict[str, Any]) -> None:
    (folder / page).write_text(text, encoding="utf-8")
    (folder / numbers).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    click.echo(f"Written: {folder / page}, and beside it {numbers} and the picture.")


def _end(summary: str, problems: list[str]) -> None:
    click.echo(summary)
    for problem in problems:
        click.secho(problem, fg="red", bold=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main(prog_name="python -m dev.experiments.live")
