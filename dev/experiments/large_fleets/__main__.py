"""`python -m dev.experiments.large_fleets`: see the package."""

import csv
import io
from pathlib import Path

import click

from dev.experiments.large_fleets.plan import SAMPLED, Figures, Setup, figures, setups
from simulator.compare.text import put_between_marks
from simulator.pool import Processes


def table(found: dict[Setup, Figures]) -> str:
    """Of the policy that foresees latencies, on GPUs: a sample beside all."""
    lines = [
        f"| workers | balancers | reports every | mean: all | {SAMPLED} | p99: all | {SAMPLED} |",
        "|---|---|---|---|---|---|---|",
    ]
    for setup, all_of_them in found.items():
        if (setup.fleet, setup.policy, setup.sampled) == ("gpus", "expected_latency", 0):
            some = found[setup._replace(sampled=SAMPLED)]
            told = ", not told" if setup.balancers > 1 and not setup.told else ""
            lines.append(
                f"| {setup.workers:,} | {setup.balancers}{told} | {setup.report_every_s:g} s "
                f"| {all_of_them.mean_ms:.0f} | {some.mean_ms:.0f} | {all_of_them.p99_ms:.0f} | {some.p99_ms:.0f} |"
            )
    return "\n".join(lines)


def as_csv(found: dict[Setup, Figures]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*Setup._fields, *Figures._fields])
    for setup, of in found.items():
        writer.writerow([*setup, *(f"{value:.1f}" for value in of[:-1]), f"{of.late:.4f}"])
    return text.getvalue()


@click.command(help="How many workers a decision should look at: renews docs/operate/large_fleets.md and its CSV.")
@click.option(
    "--page", "path", type=click.Path(path_type=Path), default=Path("docs/operate/large_fleets.md"), show_default=True
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes, side by side.")
def main(path: Path, jobs: int) -> None:
    asked = list(setups())
    found: dict[Setup, Figures] = {}
    with Processes(jobs) as pool:
        for place, of in pool.each(figures, asked):
            found[asked[place]] = of
            click.echo(f"{asked[place]}: {of}")
    found = {setup: found[setup] for setup in asked}
    path.with_suffix(".csv").write_text(as_csv(found))
    put_between_marks(table(found), path, "results")


if __name__ == "__main__":
    main()
