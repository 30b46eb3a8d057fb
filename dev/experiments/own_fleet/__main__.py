"""`python -m dev.experiments.own_fleet`: see the package, and dev/experiments/README.md."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

from dev.experiments.own_fleet import page
from dev.experiments.own_fleet.fleet import KNOWN, Fleet
from dev.experiments.sealed.__main__ import sealed_by
from dev.experiments.sealed.opening import seed_of
from simulator.train.distribution import NEVER_SEALED
from simulator.train.trainer import write_whole

PAGE = Path("docs/learned/own_fleet.md")
FLEETS, SEEDS, AT_ONCE = 32, 8, 2
_COMMAND = "python -m dev.experiments.own_fleet "
_WORK = Path("out/own_fleet")


@click.group()
def main() -> None:
    """Train for fleets that nobody has looked at, each from its log. Rehearse; then commit; then open, once."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@main.command()
@click.option("--seed", type=click.IntRange(min=0), default=777, show_default=True)
@click.option("--fleets", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first.")
@click.option("--seeds", type=click.IntRange(min=2), default=SEEDS, show_default=True, help="Of requests.")
@click.option("--out", type=click.Path(path_type=Path), default=_WORK, show_default=True)
def rehearse(seed: int, fleets: int, first: int, seeds: int, out: Path) -> None:
    """On fleets that are never sealed; some eight minutes of a core each."""
    numbers = range(NEVER_SEALED + first, NEVER_SEALED + first + fleets)
    command = f"{_COMMAND}rehearse --seed {seed} --fleets {fleets} --first {first} --seeds {seeds}"
    _write(
        seed, numbers, seeds, out / "rehearsal", out / PAGE.name, command, f"{seed}, and these fleets were no secret"
    )


@main.command("open")
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def open_sealed(path: Path) -> None:
    """Open them: the seed is a hash of the commit that this runs in. Interrupted, it goes on in the same commit."""
    commit, _ = sealed_by(path)
    seed = seed_of(f"own fleets {commit}")
    _write(seed, range(FLEETS), SEEDS, _WORK / commit, path, f"{_COMMAND}open", f"the hash of commit {commit}")


@main.command()
@click.argument("commit")
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def known(commit: str, path: Path) -> None:
    """Train on the true fleet each fleet of COMMIT's opening that misses the aim, and add what it gains to the page.

    Some four minutes each; interrupted, it goes on with the next fleet.
    """
    seed = seed_of(f"own fleets {commit}")
    fleets = _fleets(seed, range(FLEETS), SEEDS, _WORK / commit)
    if not all(fleet.opened for fleet in fleets):
        raise click.ClickException(f"not all that was opened in {commit} lies in {_WORK}: open it there first")
    results = [fleet.result() for fleet in fleets]
    missed = [number for number, result in enumerate(results) if page.misses(result)]
    with _pool() as pool:
        for number, ratios in zip(missed, pool.map(Fleet.known, [fleets[number] for number in missed]), strict=True):
            results[number]["ratios"][KNOWN] = ratios
            click.echo(f"{fleets[number].scenario.name}: {ratios[0]:.3f}")
    _page(results, path, f"{_COMMAND}open", f"the hash of commit {commit}")


def _pool() -> ProcessPoolExecutor:
    # New processes, not forks: those of training begin in each, beside its compiled engine's threads.
    return ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn"), max_tasks_per_child=1)


def _fleets(seed: int, numbers: range, seeds: int, work: Path) -> list[Fleet]:
    return [Fleet(seed, number, work / f"{seed}-{number}", seeds) for number in numbers]


def _write(seed: int, numbers: range, seeds: int, work: Path, path: Path, command: str, of_seed: str) -> None:
    results = []
    with _pool() as pool:
        for result in pool.map(Fleet.result, _fleets(seed, numbers, seeds, work)):
            results.append(result)
            means = ", ".join(f"{label} {ratios[0]:.3f}" for label, ratios in result["ratios"].items())
            click.echo(f"{len(results)} of {len(numbers)}: {means}; twin: {'no' if result['differs'] else 'yes'}")
    _page(results, path, command, of_seed)


def _page(results: Sequence[page.Result], path: Path, command: str, of_seed: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_suffix(".csv"), page.fleets_csv(results).encode())
    write_whole(path, page.page(results, command, of_seed).encode())
    click.echo(f"Written: {path}, and beside it .csv")


if __name__ == "__main__":
    main(prog_name=_COMMAND.strip())
