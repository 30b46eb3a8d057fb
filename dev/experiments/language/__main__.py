"""`python -m dev.experiments.language`: see the package, and dev/experiments/README.md."""

from pathlib import Path
from typing import Any

import click

from dev.experiments.language import page, rivals
from dev.experiments.language.distribution import scenario
from dev.experiments.language.page import Opened
from dev.experiments.sealed.__main__ import sealed_by
from dev.experiments.sealed.page import Provenance
from dev.experiments.sealed.rivals import written
from simulator.commands import inputs
from simulator.train.trainer import write_whole

PAGE = Path("docs/learned/language_models.md")
SCENARIOS, SEEDS = 24, 6
_SEEDS_FROM = 1 << 21
"""Request seeds of sealed runs: no other runs have them."""
_COMMAND = "python -m dev.experiments.language "
_JOBS = 2
"""Processes, where nobody says how many."""


@click.group()
def main() -> None:
    """Judge policies on fleets that nobody has looked at. Tune and rehearse first; then commit; then open, once."""


@main.command()
@click.option(
    "--policy", "names", multiple=True, type=click.Choice(list(rivals.GRIDS)), help="Only these. [default: all]"
)
@inputs.places(_JOBS)
def tune(names: tuple[str, ...], **where: Any) -> None:
    """Tune policies on fleets that are never sealed, and keep what was found; some 20 minutes for all."""
    chosen = names or tuple(rivals.GRIDS)
    with inputs.shown_pool(**where, otherwise=_JOBS, runs=rivals.runs_of(chosen)) as pool:
        found = rivals.tune(chosen, pool)
    write_whole(rivals.TUNED, written({**(rivals.read_tuned() if names else {}), **found}).encode())


@main.command()
@click.option(
    "--seed", type=click.IntRange(min=0), required=True, help="Of the scenarios; that of a page makes them again."
)
@click.option("--scenarios", type=click.IntRange(min=1), default=SCENARIOS, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=SEEDS, show_default=True, help="Of requests.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/language"), show_default=True)
@inputs.places(_JOBS)
def rehearse(seed: int, scenarios: int, seeds: int, out: Path, **where: Any) -> None:
    """All of it on a seed of your own, which seals nothing."""
    command = f"{_COMMAND}rehearse --seed {seed} --scenarios {scenarios} --seeds {seeds}"
    origin = f"seed {seed}, for trying it, so these were no secret"
    _judge(seed, scenarios, seeds, out / PAGE.name, Provenance(command, origin), **where)


@main.command("open")
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
@inputs.places(_JOBS)
def open_sealed(path: Path, **where: Any) -> None:
    """Open them: the seed is a hash of the commit that this runs in, which must have all of it and no page yet."""
    commit, seed = sealed_by(path)
    provenance = Provenance(f"{_COMMAND}open", f"seed {seed}, the hash of commit {commit}")
    _judge(seed, SCENARIOS, SEEDS, path, provenance, **where)


def _judge(seed: int, scenarios: int, seeds: int, path: Path, provenance: Provenance, **where: Any) -> None:
    places = [(seed, number) for number in range(scenarios)]
    settings = {name: (rivals.OURS, options) for name, options in rivals.subjects().items()} | rivals.rivals()
    request_seeds = range(_SEEDS_FROM, _SEEDS_FROM + seeds)
    with inputs.shown_pool(**where, otherwise=_JOBS, runs=len(places) * len(settings)) as pool:
        played = rivals.play_all(places, list(settings.values()), request_seeds, pool)
    metrics = dict(zip(settings, played, strict=True))
    opened = Opened(tuple(scenario(*place) for place in places), metrics, provenance)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_suffix(".csv"), page.as_csv(opened).encode())
    write_whole(path, page.page(opened).encode())
    click.echo(f"Written: {path}, and .csv beside it")


if __name__ == "__main__":
    main(prog_name="python -m dev.experiments.language")
