"""`python -m experiments.holding`: what holding gains and what it costs; writes docs/learned/holding.md."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from experiments.by_hand import marked, words_of
from experiments.holding.measure import POLICY, Measured, measure
from experiments.holding.settings import PLACED, Group, groups
from policies.base import FloatArray
from simulator.training.checkpoint import write_whole

PAGE = Path("docs/learned/holding.md")
_NORMAL_95 = 1.96


def _interval(values: FloatArray, form: str) -> str:
    """Mean over seeds, and half of its 95% interval."""
    half = _NORMAL_95 * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():{form}} ± {half:{form}}"


def _table(group: Group, found: dict[str, Measured]) -> list[str]:
    before = found[PLACED]
    due = list(before.classes)
    heads = ["", "mean, ratio", "p99, ratio", "answered", *(["in time"] if np.isfinite(before.in_time).all() else [])]
    for due_s in due:
        heads += [f"in time, {1e3 * due_s:g} ms", f"p99 ms, {1e3 * due_s:g} ms"]
    tenants = list(group.scenario.fleet.tenants) if group.by_tenant else []
    heads += [f"answers to `{name}`" for name in tenants]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for way, one in found.items():
        cells = [way, _interval(one.mean_s / before.mean_s, ".2f"), _interval(one.p99_s / before.p99_s, ".2f")]
        cells += [f"{one.ok.mean():.3f}", _interval(one.in_time, ".3f")]
        for due_s in due:
            share, p99_s = one.classes[due_s]
            cells += [_interval(share, ".3f"), f"{1e3 * p99_s.mean():.0f}"]
        cells += [_interval(one.tenants[i], ".3f") for i in range(len(tenants))]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(found: dict[str, list[str]], words: str, seeds: int, requests: int) -> str:
    """The page's text."""
    told = (
        f"Policy `{POLICY}`, {seeds} seeds of {requests:,} requests (of tenants 20,000 at least), equal arrivals and "
        f"seeds in a table, the first tenth left out. Ratios are to `{PLACED}`, seed by seed; ± is half of a 95% "
        "interval over seeds. In time: of all requests, answered within their deadline; where none has one, answered. "
        "Made by "
        "`python -m experiments.holding`."
    )
    parts = ["# Requests that wait for room", marked(words), told]
    for title, lines in found.items():
        parts += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


@click.command()
@click.option("--seeds", type=click.IntRange(min=2), default=10, show_default=True, help="Runs.")
@click.option("--requests", type=click.IntRange(min=100), default=8000, show_default=True, help="Of each run.")
@click.option("--group", "wanted", default="", help="Only groups with this in their title; then nothing is written.")
@click.option("--page", "path", type=click.Path(path_type=Path, dir_okay=False), default=PAGE, show_default=True)
def main(seeds: int, requests: int, wanted: str, path: Path) -> None:
    """Run all groups, and write the page; words between its marks stay."""
    found = {}
    for group in groups():
        if wanted not in group.title:
            continue
        count = max(requests, group.least_requests)
        measured = {
            way: measure(group.scenario, change(group.scenario.fleet), range(seeds), count, group.options.get(way, {}))
            for way, change in group.ways.items()
        }
        found[group.title] = _table(group, measured)
        click.echo("\n".join(["", group.title, *found[group.title]]))
    if not wanted:
        write_whole(path, page(found, words_of(path), seeds, requests).encode())
        click.echo(f"Written: {path}")


if __name__ == "__main__":
    main()
