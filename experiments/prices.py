"""`python -m experiments.prices`: what a price for a worker's time adds to `expected_latency`.

A request's cost at a worker is what `expected_latency` says, and `price * toll * added_s` beside: `added_s` the device
seconds that it adds there, the toll what a second of that device costs those who will come, r / (1 - r)^2 where its
utilisation is r (`simulator.scoreboard.social`). Either the toll is that of the best split of the true rates, which
nobody knows, or r is what own picks added in the last seconds, which everybody does. Arrivals and seeds are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments.by_hand import marked, words_of
from experiments.estimators.fleets import random_fleet, three_models
from experiments.held_out.tables import markdown
from policies.base import WORST, FloatArray, least
from policies.expected_latency import ExpectedLatency
from simulator.batch import Batch
from simulator.scenario import Scenario
from simulator.scoreboard.metrics import WARM_UP_SHARE
from simulator.scoreboard.social import tolls
from simulator.training.arena import counted_latency_s

PAGE = Path("docs/learned/prices.md")
_MEMORY_S = 5.0
"""Of the utilisation that is measured."""
_FULL = 0.95
_FIRST_SEED = 7_000_000


class Way(NamedTuple):
    """How time is priced."""

    price: float
    told: bool
    """Whether the toll is that of the best split, else of the utilisation as measured."""

    @property
    def words(self) -> str:
        """For the table."""
        return f"{'best split' if self.told else 'measured'}, price {self.price:g}" if self.price else "no price"


NONE = Way(0.0, told=True)
WAYS = (NONE, *(Way(price, told) for told in (True, False) for price in (0.05, 0.15, 0.5)))


class _Used:
    """Device seconds that own picks added a second, by worker, `(e, n)`, of late."""

    def __init__(self, environments: int, workers: int) -> None:
        self._sum_s = np.zeros((environments, workers))
        self._at_s = np.zeros((environments, 1))

    def share(self, now_s: FloatArray) -> FloatArray:
        """As known at that time, `(e, 1)`."""
        seen_s = _MEMORY_S * (1 - np.exp(-np.maximum(now_s, 1e-3) / _MEMORY_S))
        found: FloatArray = self._sum_s * np.exp(-(now_s - self._at_s) / _MEMORY_S) / seen_s
        return np.minimum(found, _FULL)

    def add(self, rows: np.ndarray, picks: np.ndarray, added_s: FloatArray, now_s: FloatArray) -> None:
        """Count picks in, in these environments."""
        self._sum_s[rows] *= np.exp(-(now_s[rows] - self._at_s[rows]) / _MEMORY_S)
        self._at_s[rows] = now_s[rows]
        self._sum_s[rows, picks[rows]] += added_s[rows, picks[rows]]


def latencies(scenario: Scenario, seeds: Sequence[int], requests: int) -> FloatArray:
    """Mean and p99 in seconds by each of `WAYS`, `(ways, seeds, 2)`."""
    ways, arrivals = len(WAYS), [scenario.arrivals(seed, requests) for seed in seeds]
    batch = Batch([scenario.fleet] * (ways * len(seeds)), arrivals * ways, list(seeds) * ways)
    price = np.repeat([way.price for way in WAYS], len(seeds))[:, None]
    told = np.repeat([way.told for way in WAYS], len(seeds))[:, None]
    best = tolls(scenario)[None]
    used, policy = _Used(len(price), best.shape[1]), ExpectedLatency()
    waiting = batch.start()
    while waiting:
        view, now_s = batch.view(), batch.now_s[:, None]
        added_s = np.maximum(np.fmin(view.completion_s, WORST) - np.fmin(view.backlog_s, WORST), 0.0)
        share = used.share(now_s)
        toll = np.where(told, best, share / np.square(1 - share))
        cost = policy.cost(
            *(view.completion_s, view.backlog_s, view.pending),
            *(view.pending_other_models, view.behind_s, view.error_rate),
            *(view.cached, view.saving_s, policy.error_penalty_s),
            *(policy.delayed_share, policy.delayed_share_other_models, policy.behind_share, policy.saving_factor),
        )
        picks = batch.draw(least(cost + price * toll * added_s, view.eligible))
        used.add(np.flatnonzero(batch.waiting & (picks >= 0)), picks, added_s, now_s)
        waiting = batch.step(picks)
    latency_s = counted_latency_s(batch.result())[:, int(requests * WARM_UP_SHARE) :]
    found = np.stack([latency_s.mean(axis=1), np.quantile(latency_s, 0.99, axis=1)], axis=-1)
    return found.reshape(ways, len(seeds), 2)


def table(scenarios: Sequence[Scenario], seeds: Sequence[int], requests: int) -> str:
    """Of one group of fleets."""
    ratios = []
    for scenario in scenarios:
        found = latencies(scenario, seeds, requests)
        ratios.append((found / found[0]).mean(axis=1))
    each = np.array(ratios)
    lines = []
    for i, way in enumerate(WAYS):
        cells = [way.words]
        for figure in range(2):
            ratio = each[:, i, figure]
            low, high = _interval(ratio)
            cells += [f"{np.median(ratio):.3f} ({low:.3f} to {high:.3f})", f"{ratio.min():.2f}", f"{ratio.max():.2f}"]
        lines.append(cells)
    return markdown(["", "mean", "best", "worst", "p99", "best", "worst"], lines)


def _interval(ratio: FloatArray) -> tuple[float, float]:
    """Of the median: 95%, bootstrap over fleets."""
    dice = np.random.default_rng(0)
    medians = np.median(dice.choice(ratio, (2000, len(ratio))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975]).tolist()
    return low, high


def page(tables: Mapping[str, str], words: str, command: str) -> str:
    """The page's text."""
    about = (
        f"Made by `{command}`; the first tenth of each run is left out. Ratios are to `expected_latency` without a "
        "price, on equal arrivals; medians over fleets, in brackets 95% intervals (bootstrap over fleets). Best and "
        "worst are of one fleet. Best split: tolls of the best split of the true rates. Measured: tolls of the device "
        f"seconds that picks added over the last {_MEMORY_S:g} s or so."
    )
    parts = ["# Prices for a worker's time", marked(words), about]
    return "\n\n".join([*parts, *(f"## {title}\n\n{each}" for title, each in tables.items())]) + "\n"


@click.command()
@click.option("--fleets", type=click.IntRange(min=1), default=24, show_default=True, help="Random ones.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each.")
@click.option("--requests", type=click.IntRange(min=100), default=4000, show_default=True, help="Of each run.")
@click.option("--page", "path", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, show_default=True)
def main(fleets: int, seeds: int, requests: int, path: Path) -> None:
    """Run all of it, and write the page; words between its marks stay. Some two minutes."""
    numbers = range(_FIRST_SEED, _FIRST_SEED + seeds)
    groups = {"Three models": three_models(), "Random fleets": [random_fleet(seed) for seed in range(fleets)]}
    tables = {title: table(each, numbers, requests) for title, each in groups.items()}
    command = f"python -m experiments.prices --fleets {fleets} --seeds {seeds} --requests {requests}"
    path.write_text(page(tables, words_of(path), command), encoding="utf-8")
    click.echo(f"Written: {path}")


if __name__ == "__main__":
    main()
