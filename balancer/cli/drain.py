"""The commands `balancer drain` and `balancer undrain`, by which an operator drains a worker at the balancers."""

import asyncio
from typing import Any

import click

from balancer.cli.admin_client import Balancers, admin_options, balancers_of, printable

STILL_BUSY = 3
"""Exit status: every balancer knows, and something is left at the worker."""
_MAX_TIMEOUT_S = 86_400.0
_POLL_S = 0.1
_FIRST_LOOK_S = 1.0
"""The first look tells the balancers of the drain, and so gets this long even where `--timeout` is shorter."""

_EPILOG = f"""\b
Examples:
  balancer drain triton-0
  balancer drain triton-0 --wait --timeout 120 && systemctl stop triton
  balancer drain triton-0 --balancer 10.0.0.5:8090 --balancer 10.0.0.6:8090 --token-file token
  balancer drain "$POD_NAME" --balancer balancer-headless:8090 --wait

\b
Exit status:
  0  every balancer knows; with --wait: and nothing is left at the worker
  1  a balancer refused or could not be reached, as standard error says
  {STILL_BUSY}  with --wait: something was left after --timeout, or nobody said within it that nothing is

A drain ends with `balancer undrain`; when the worker leaves the list, or stands at another address; and with the
balancer's process. What is to outlast these, the list of workers says: `draining: true`.
"""


_UNDRAIN_EPILOG = """\b
Example:
  balancer undrain triton-0 --balancer 10.0.0.5:8090 --balancer 10.0.0.6:8090
"""


_admin_options = admin_options(
    says="A balancer's listen.admin; repeat for several. A name stands for all of its addresses. Each process of a "
    "balancer has a port of its own.",
    several=True,
)


@click.command(epilog=_EPILOG)
@click.argument("worker")
@_admin_options
@click.option("--wait", is_flag=True, help="Return once nothing is in flight there, by own count and its agent's.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0.0, _MAX_TIMEOUT_S),
    default=60.0,
    show_default=True,
    help="With --wait: give up after that.",
)
def drain(worker: str, wait: bool, timeout_s: float, **where: Any) -> None:
    """Give a worker nothing new; what runs there ends as it would."""
    left, unreached = asyncio.run(_drain(balancers_of(**where), worker, timeout_s if wait else None))
    if left:
        click.echo(f"Error: not drained after {timeout_s:g} s: {left}", err=True)
    _print_errors(unreached)
    if left:
        raise SystemExit(STILL_BUSY)
    _end(unreached, f"{worker} is drained: nothing is left there" if wait else f"{worker} gets nothing new")


@click.command(epilog=_UNDRAIN_EPILOG)
@click.argument("worker")
@_admin_options
def undrain(worker: str, **where: Any) -> None:
    """Give requests again to a worker that was drained by hand."""
    answers, unreached = asyncio.run(balancers_of(**where).post("/undrain", worker))
    _print_errors(unreached)
    still = any(answer.get("draining") for answer in answers.values())
    further = "; discovery or its agent still says that it drains" if still else ""
    _end(unreached, f"{worker} is no longer drained by hand{further}")


async def _drain(balancers: Balancers, worker: str, wait_s: float | None) -> tuple[str, list[str]]:
    """Drain it; returns what is left there after `wait_s` (None: nobody waits for it), and whom nobody could reach.

    Each look tells all of them again, so one that starts anew meanwhile knows it too.
    """
    if wait_s is None:
        return "", (await balancers.post("/drain", worker))[1]
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    until_s, left = start_s + max(wait_s, _FIRST_LOOK_S), "no balancer answered in that time"
    unreached: list[str] = []
    try:
        while True:
            async with asyncio.timeout_at(until_s):
                answers, unreached = await balancers.post("/drain", worker)
            until_s = start_s + wait_s
            left = "; ".join(
                f"{place}: {printable(str(answer['why']))}" for place, answer in answers.items() if answer.get("why")
            )
            if not left or loop.time() >= until_s:
                return left, unreached
            await asyncio.sleep(min(_POLL_S, until_s - loop.time()))
    except TimeoutError:
        return left, unreached


def _print_errors(unreached: list[str]) -> None:
    for each in unreached:
        click.echo(f"Error: {each}", err=True)


def _end(unreached: list[str], done: str) -> None:
    if unreached:
        raise SystemExit(1)
    click.echo(done)
