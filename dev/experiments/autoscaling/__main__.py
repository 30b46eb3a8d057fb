"""`python -m dev.experiments.autoscaling`: see the package."""

import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import click

from dev.experiments.autoscaling import report
from dev.experiments.autoscaling.closed_loop import Run, closed_loop
from dev.experiments.autoscaling.hpa import Autoscaler
from dev.experiments.autoscaling.plan import LEAST, LOADS, MOST, Chart, one_worker_per_s, read_chart, setup_of
from dev.experiments.autoscaling.report import Figures, figures

FACTORS = (0.5, 1.0, 2.0)
UNPACED = "fewer at once"
_PICTURE = "autoscaling.png"


def variants(chart: Chart) -> dict[str, Chart]:
    """What is compared, by name: the chart as it is, two other targets, and two targets without the chart's pace."""
    window = {"stabilizationWindowSeconds": chart.behavior["scaleDown"]["stabilizationWindowSeconds"]}
    found = {}
    for factor in FACTORS:
        target_s = factor * chart.targets.backlog_s
        name = f"{target_s:g} s{' (the chart)' if factor == 1 else ''}"
        found[name] = chart._replace(targets=replace(chart.targets, backlog_s=target_s))
        if factor >= 1:
            found[f"{target_s:g} s, {UNPACED}"] = found[name]._replace(behavior={"scaleDown": window})
    return found


def _made(load: str, name: str) -> Run:
    chart = read_chart()
    variant = variants(chart)[name]
    return closed_loop(setup_of(LOADS[load], chart), Autoscaler(variant.rules(LEAST, MOST)), variant.targets)


@click.command(
    help="The chart's HPA over simulated fleets: renews table, picture and CSV of docs/operate/autoscaling.md."
)
@click.option(
    "--page", "path", type=click.Path(path_type=Path), default=Path("docs/operate/autoscaling.md"), show_default=True
)
@click.option(
    "--load", "loads", type=click.Choice(list(LOADS)), multiple=True, help="Only these; then nothing is written."
)
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Side by side.")
def main(path: Path, loads: tuple[str, ...], processes: int) -> None:
    chart, one_per_s = read_chart(), one_worker_per_s()
    found: dict[tuple[str, str], Figures] = {}
    drawn: dict[tuple[str, str], Run] = {}
    names = list(variants(chart))
    with ProcessPoolExecutor(processes) as pool:
        keys = list(itertools.product(loads or LOADS, names))
        for key, run in zip(keys, pool.map(_made, *zip(*keys, strict=True)), strict=True):
            found[key] = figures(run, one_per_s, LEAST)
            if key[1] in (names[1], names[-1]):
                drawn[key] = run
            click.echo(f"{', '.join(key)}: {found[key]}")
    if not loads:
        report.renew(path, found, (names[0], names[1]))
        report.draw(drawn, one_per_s, LEAST, path.with_name(_PICTURE))


if __name__ == "__main__":
    main()
