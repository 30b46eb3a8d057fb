"""`balancer learn`: beside a running balancer, week after week."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from balancer.cli.admin_client import admin_options, balancers_of, printable
from balancer.errors import OperatorError
from balancer.learn.learner import LEAST_GAIN, Learner, NothingLearnedError, Rhythm, Round, World

_EPILOG = """\b
Examples:
  balancer learn --config balancer.yaml
  balancer learn --config balancer.yaml --every-hours 168 --least-requests 50000

The config must name decision_log.folder and learning.folder. learning.enabled: false stops it, and takes back what it
put in force. docs/learn.md says when to expect something of it.
"""
_MOST_WORDS = 400
_PATIENCE_S = 10.0
_BELOW = 10
"""How much nicer than the balancer training is."""


@click.command(epilog=_EPILOG)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    help="The balancer's config file.",
)
@admin_options(several=True)
@click.option(
    "--every-hours", type=click.FloatRange(min=0), default=24.0, show_default=True, help="Between two rounds."
)
@click.option(
    "--least-requests",
    type=click.IntRange(min=100),
    default=20_000,
    show_default=True,
    help="That must have been recorded, about, since the last round.",
)
@click.option(
    "--shadow-s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="For so long a new policy only looks on.",
)
@click.option(
    "--least-gain",
    type=click.FloatRange(min=0, max=1),
    default=LEAST_GAIN,
    show_default=True,
    help="Share of the mean latency that a policy must gain in the simulator to be tried, or twice that of p99.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that train.")
@click.option(
    "--profile",
    "profiles",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    help="Service times, as of `balancer train`; repeat.",
)
@click.option("--unchecked", is_flag=True, help="Train though the fleet made of the log is not like it.")
@click.option("--set", "settings", multiple=True, metavar="SETTING=VALUE", help="As of `balancer train`.")
def learn(
    config_path: Path,
    every_hours: float,
    least_requests: int,
    shadow_s: float,
    least_gain: float,
    jobs: int,
    profiles: tuple[Path, ...],
    unchecked: bool,
    settings: tuple[str, ...],
    **where: Any,
) -> None:
    """Train policies on a running balancer's decision log, try each with care, and keep it or take it back.

    Ctrl-C or SIGTERM ends it; what is in force stays.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    balancers = balancers_of(**where)
    options = ["--jobs", str(jobs)]
    options += [part for each in profiles for part in ("--profile", str(each.resolve()))]
    options += [part for each in settings for part in ("--set", each)] + ["--unchecked"] * unchecked
    world = World(
        pages=lambda: balancers.get_all("/page.json"),
        train=lambda given, to: _train(given, to, options),
        sleep=asyncio.sleep,
        unix_s=time.time,
    )
    learner = Learner(config_path, Rhythm(3600 * every_hours, least_requests, shadow_s, least_gain), world)
    with _alone(learner.folder):
        asyncio.run(_until_stopped(learner))


async def _until_stopped(learner: Learner) -> None:
    rounds = asyncio.ensure_future(learner.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, rounds.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await rounds


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OperatorError(
                f"{folder}: another balancer learn works there; end it, or name another folder"
            ) from error
        yield


async def _train(given: Round, to: Path, options: list[str]) -> None:
    """In a process of its own, whose memory is gone afterwards."""
    out = to.with_name("training")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "balancer", "train", "--out", str(out), "--from-log", str(given.log), *options]
    command += ["--last-hours", f"{given.hours:.6f}", "--seed", str(given.number)]
    command += [] if given.init is None else ["--init", str(given.init)]
    said = to.with_name("training.log")
    with open(said, "wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, start_new_session=True)
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _BELOW)
        try:
            status = await process.wait()
        finally:
            await _end(process)
    if status:
        last = said.read_text(encoding="utf-8", errors="replace").strip().rpartition("Error: ")[2]
        raise NothingLearnedError(f"nothing was learned: {printable(last)[-_MOST_WORDS:]}")
    shutil.copyfile(out / "policy.npz", to)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _PATIENCE_S)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
