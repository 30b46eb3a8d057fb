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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import uvloop
from rich.table import Table

from balancer.errors import OperatorError
from tools.demo import traffic
from tools.demo.stack import DemoStack, interruptible
from tools.load.arrivals import FloatArray, poisson
from tools.load.display import make_console
from tools.load.result import LoadResult
from tools.load.runner import DriveOptions, drive
from tools.load.workload import ModelMix, RowSizes, Workload, mixed, streams

FRONTENDS = ("pick", "native")
_OPTIONS = DriveOptions(timeout_s=60.0)
_SMALL_PER_S = 500.0
_SMALL = ModelMix("emulated_tft")
_RESAMPLES = 2000
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
    """One load; of each front end the latencies of each block, in seconds, and the requests that failed."""

    title: str
    latency_s: dict[str, list[FloatArray]]
    failed: dict[str, int]

    def quantile_s(self, frontend: str, level: float) -> float:
        """Of all blocks together."""
        return float(np.quantile(np.concatenate(self.latency_s[frontend]), level))

    def ratio(self, level: float) -> tuple[float, float, float]:
        """That of native over that of pick, and its 95% interval by a bootstrap of pairs of blocks."""
        pick, native = (self.latency_s[frontend] for frontend in FRONTENDS)
        generator, ratios = np.random.default_rng(0), []
        for _ in range(_RESAMPLES):
            drawn = generator.integers(len(pick), size=len(pick))
            pooled = [np.quantile(np.concatenate([blocks[i] for i in drawn]), level) for blocks in (pick, native)]
            ratios.append(pooled[1] / pooled[0])
        low, high = np.quantile(ratios, [0.025, 0.975])
        return self.quantile_s("native", level) / self.quantile_s("pick", level), float(low), float(high)

    def as_json(self) -> dict[str, Any]:
        """Numbers alone."""
        quantiles = {f: [self.quantile_s(f, level) for level in (0.5, 0.99)] for f in FRONTENDS}
        return {
            "load": self.title,
            "p50_p99_s": quantiles,
            "ratio_p50": self.ratio(0.5),
            "ratio_p99": self.ratio(0.99),
            "failed": self.failed,
        }


async def compare(plan: traffic.Plan, load: Load, stacks: dict[str, DemoStack]) -> Compared:
    """One load in all blocks."""
    latency_s: dict[str, list[FloatArray]] = {frontend: [] for frontend in FRONTENDS}
    failed = dict.fromkeys(FRONTENDS, 0)
    for number in range(plan.rounds):
        for frontend in FRONTENDS if number % 2 == 0 else FRONTENDS[::-1]:
            stacks[frontend].check()
            result: LoadResult = await drive(stacks[frontend].url, load.block(plan, number), _OPTIONS)
            counted = result.between(plan.settle_s, plan.settle_s + plan.window_s)
            latency_s[frontend].append(counted.latency_s[counted.ok])
            failed[frontend] += int((~result.ok).sum())
    return Compared(load.title, latency_s, failed)


async def run(plan: traffic.Plan, out: Path) -> list[Compared]:
    """Both stacks, all loads."""
    async with contextlib.AsyncExitStack() as entered:
        stacks = {}
        for frontend in FRONTENDS:
            directory = out / frontend
            directory.mkdir(parents=True, exist_ok=True)
            stacks[frontend] = await entered.enter_async_context(DemoStack(directory, 4, plan.policies[0], frontend))
        return [await compare(plan, load, stacks) for load in LOADS]


def table(compared: Compared) -> Table:
    """For people."""
    made = Table(title=compared.title, title_justify="left")
    for heading in ("", "p50 ms", "p99 ms", "failed"):
        made.add_column(heading, justify="right")
    for frontend in FRONTENDS:
        times = [f"{compared.quantile_s(frontend, level) * 1e3:.2f}" for level in (0.5, 0.99)]
        made.add_row(frontend, *times, str(compared.failed[frontend]))
    ratios = [compared.ratio(level) for level in (0.5, 0.99)]
    made.add_row("native / pick", *(f"{ratio:.2f} ({low:.2f} to {high:.2f})" for ratio, low, high in ratios), "")
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
    sys.exit(1 if any(any(compared.failed.values()) for compared in found) else 0)


if __name__ == "__main__":
    main(prog_name="python -m experiments.live_frontends")
