"""`python -m experiments.caches`: latency where keys are warm, against not minding caches and against
`consistent_hash`; writes docs/learned/caches.md.

Every line has equal arrivals under each policy, seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from balancer.config.policy_options import build_policy
from experiments.by_hand import marked, words_of
from experiments.caches.fleets import Case, groups
from policies.base import FloatArray, Policy
from simulator.batch import Batch
from simulator.result import Status
from simulator.scoreboard.metrics import WARM_UP_SHARE

PAGE = Path("docs/learned/caches.md")
BEFORE, HASH = build_policy("expected_latency", {"saving_factor": 0.0}), build_policy("consistent_hash", {})


class Told(NamedTuple):
    """Of one policy, a number for each seed."""

    mean_ms: FloatArray
    p99_ms: FloatArray
    saved: FloatArray
    """The share of the service time that a hit saves, as learned by the end by the first balancer."""


def told(case: Case, policy: Policy, seeds: int, requests: int) -> Told:
    """Run it."""
    scenario = case.scenario
    arrivals = [scenario.arrivals(seed, requests) for seed in range(seeds)]
    batch = Batch([scenario.fleet] * seeds, arrivals, range(seeds))
    if not batch.run_inside(policy):
        raise click.ClickException(f"{policy.name} is not compiled")
    result, first = batch.result(), int(WARM_UP_SHARE * requests)
    if not (result.status == Status.OK).all():
        raise click.ClickException(f"{case.name}: not all requests were answered, so latencies do not compare")
    latency_ms = 1e3 * result.latency_s[:, first:]
    saved = batch.sim.caches.saved.reshape(seeds, -1)[:, 0].copy()
    return Told(latency_ms.mean(axis=1), np.quantile(latency_ms, 0.99, axis=1), saved)


def line(case: Case, policy: Policy, seeds: int, requests: int) -> str:
    """A line of a table."""
    before, after, by_hash = (told(case, each, seeds, requests) for each in (BEFORE, policy, HASH))
    cells = [
        case.name,
        str(case.balancers),
        f"{before.mean_ms.mean():.1f}",
        _ratio(after.mean_ms, before.mean_ms),
        _ratio(by_hash.mean_ms, before.mean_ms),
        f"{before.p99_ms.mean():.0f}",
        _ratio(after.p99_ms, before.p99_ms),
        _ratio(by_hash.p99_ms, before.p99_ms),
        f"{after.saved.mean():.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(latency: FloatArray, before: FloatArray) -> str:
    ratio = latency / before
    return f"{ratio.mean():.3f} ± {1.96 * ratio.std(ddof=1) / np.sqrt(len(ratio)):.3f}"


_COLUMNS = (
    "",
    "balancers",
    *("mean before, ms", "after", "`consistent_hash`"),
    *("p99 before, ms", "after", "`consistent_hash`"),
    "saved, as learned",
)
_HEAD = (f"| {' | '.join(_COLUMNS)} |", f"|---{'|---:' * (len(_COLUMNS) - 1)}|")


def page(tables: Mapping[str, Sequence[str]], words: str, seeds: int, requests: int) -> str:
    """The page's text."""
    command = f"python -m experiments.caches --seeds {seeds} --requests {requests}"
    about = (
        f"{seeds} runs of {requests} requests, the first tenth left out, made by `{command}`. Before: "
        "`expected_latency` with `saving_factor: 0`, which minds no cache. After: as it is by default. Ratios are to "
        "before, on equal arrivals, with 95% intervals over runs. Saved: the share of the mean service time that a hit "
        "saves, as learned."
    )
    begin = ["# Caches that keys warm", "", marked(words), "", about]
    rest = [part for title, lines in tables.items() for part in ("", f"## {title}", "", *_HEAD, *lines)]
    return "\n".join([*begin, *rest, ""])


@click.command()
@click.option("--seeds", type=click.IntRange(min=2), default=10, show_default=True, help="Runs.")
@click.option("--requests", type=click.IntRange(min=100), default=12_000, show_default=True, help="Of each run.")
@click.option("--page", "path", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, show_default=True)
def main(seeds: int, requests: int, path: Path) -> None:
    """Run all cases, and write the page; words between its marks stay."""
    policy = build_policy("expected_latency", {})
    tables = {title: [line(case, policy, seeds, requests) for case in cases] for title, cases in groups().items()}
    path.write_text(page(tables, words_of(path), seeds, requests), encoding="utf-8")
    click.echo(f"Written: {path}")


if __name__ == "__main__":
    main()
