"""`python -m experiments.live_frontends`: is a request served as soon where Envoy decides as where it asks?

Two of the demo's stacks run side by side, one for each front end, with the same policy. Blocks of equal requests go to
one, then to the other, every other time the other way round. Writes results.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import uvloop
from rich.table import Table

from balancer.errors import OperatorError
from experiments.live_switchback.figures import FIGURES, Requests, against, estimates, figures, resampled
from simulator.scoreboard.statistics import Estimate
from simulator.scoreboard.text import interval, milliseconds, share
from tools.demo import traffic
from tools.demo.stack import DemoStack, interruptible
from tools.load.arrivals import FloatArray, poisson
from tools.load.display import make_console
from tools.load.result import LoadResult, joined
from tools.load.runner import DriveOptions, drive
from tools.load.workload import ModelMix, RowSizes, Workload, mixed, streams

FRONTENDS = ("pick", "native")
_OPTIONS = DriveOptions(timeout_s=60.0)
_SMALL_PER_S = 500.0
_SMALL = ModelMix("emulated_tft")
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent in each block."""

    title: str
    block: Callable[[traffic.Plan, int], Workload]


def small(plan: traffic.Plan, number: int) -> Workload:
    """Poisson arrivals of one-row requests to the quickest model, at a rate at which the gateway's own time matters."""
    arrivals, models, rows = streams(plan.seed * 1_000_003 + number, 3)
    time_s = poisson(_SMALL_PER_S, plan.settle_s + plan.window_s, arrivals)
    return mixed(time_s, (_SMALL,), RowSizes(), models, rows)


LOADS = (
    Load(f"the demo's bursts, {traffic.RATE_PER_S:.0f} a second", traffic.window),
    Load(f"{_SMALL.name}, one row, {_SMALL_PER_S:.0f} a second", small),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What became of one load; by front end in the order of `FRONTENDS`, by figure in that of `FIGURES`."""

    title: str
    figures: FloatArray
    """Seconds, and a share; `(2, figures)`."""
    ratios: list[Estimate]
    """Native over pick, and the difference of the shares."""
    failed: list[int]

    def as_json(self) -> dict[str, Any]:
        """Numbers alone."""
        return {
            "load": self.title,
            **{
                name: dict(zip(FIGURES, row.tolist(), strict=True))
                for name, row in zip(FRONTENDS, self.figures, strict=True)
            },
            "native / pick": {name: asdict(each) for name, each in zip(FIGURES, self.ratios, strict=True)},
            "failed": dict(zip(FRONTENDS, self.failed, strict=True)),
        }


async def compare(plan: traffic.Plan, load: Load, stacks: dict[str, DemoStack]) -> Compared:
    """One load in all blocks."""
    counted: list[LoadResult] = []
    played: list[tuple[int, int]] = []
    failed = [0] * len(FRONTENDS)
    for number in range(plan.rounds):
        for frontend in FRONTENDS if number % 2 == 0 else FRONTENDS[::-1]:
            stacks[frontend].check()
            result = await drive(stacks[frontend].url, load.block(plan, number), _OPTIONS)
            place = FRONTENDS.index(frontend)
            failed[place] += int((~result.ok).sum())
            counted.append(result.between(plan.settle_s, plan.settle_s + plan.window_s))
            played.append((place, number))
    together = joined(counted)
    policy, block = np.repeat(np.array(played), [len(each) for each in counted], axis=0).T
    latency_s = np.where(together.ok, together.latency_s, np.nan)
    requests = Requests(FRONTENDS, together.models, policy, block, together.model, together.deadline_s, latency_s)
    measured, drawn = figures(requests), resampled(requests, plan.rounds)
    return Compared(load.title, measured, estimates(against(1, 0, measured), against(1, 0, drawn)), failed)


async def run(plan: traffic.Plan, out: Path) -> list[Compared]:
    """Both stacks, all loads."""
    async with contextlib.AsyncExitStack() as entered:
        stacks = {}
        for frontend in FRONTENDS:
            directory = out / frontend
            directory.mkdir(parents=True, exist_ok=True)
            settings = {"envoy": {"frontend": frontend}}
            stacks[frontend] = await entered.enter_async_context(DemoStack(directory, 4, plan.policies[0], settings))
        return [await compare(plan, load, stacks) for load in LOADS]


def table(compared: Compared) -> Table:
    """For people; latencies in milliseconds."""
    made = Table(title=compared.title, title_justify="left")
    for heading in ("", *FIGURES, "failed"):
        made.add_column(heading, justify="right")
    for frontend, row, failed in zip(FRONTENDS, compared.figures, compared.failed, strict=True):
        made.add_row(frontend, *map(milliseconds, row[:-1]), share(row[-1]), str(failed))
    made.add_row("native / pick", *map(interval, compared.ratios[:-1]), "", "")
    return made


@click.command(help="Two stacks, one with each front end, under the same arrivals in turn.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/frontends"), show_default=True)
@click.option("--policy", default="expected_latency", show_default=True)
@click.option("--blocks", type=click.IntRange(min=2), default=10, show_default=True)
@click.option("--window-s", type=float, default=6.0, show_default=True, help="What counts of each block.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
def main(out: Path, policy: str, blocks: int, window_s: float, seed: int) -> None:
    """See the option `help`."""
    plan = traffic.Plan(policies=(policy,), rounds=blocks, window_s=window_s, seed=seed)
    try:
        found = uvloop.run(interruptible(run(plan, out)))
    except (OperatorError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        sys.exit(_INTERRUPTED)
    console = make_console()
    for compared in found:
        console.print(table(compared))
    told = {"policy": policy, "blocks": blocks, "window_s": window_s, "seed": seed}
    told |= {"loads": [compared.as_json() for compared in found]}
    (out / "results.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    console.print(f"written: {out / 'results.json'}")
    sys.exit(1 if any(any(compared.failed) for compared in found) else 0)


if __name__ == "__main__":
    main(prog_name="python -m experiments.live_frontends")
