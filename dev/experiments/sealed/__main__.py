"""`python -m dev.experiments.sealed`: see the package, and dev/experiments/README.md."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import click

from balancer.config.policy_options import read_policy_file
from dev.experiments.sealed import opening, page, rivals
from dev.experiments.sealed.page import Provenance
from policies.base import Policy
from policies.learned import Learned
from simulator.commands import inputs
from simulator.train.trainer import write_whole

PAGE = Path("docs/learned/sealed.md")
DISTRIBUTION = Path("docs/learned/sealed_distribution.csv")
SCENARIOS, SEEDS = 24, 8
_COMMAND = "python -m dev.experiments.sealed "
_JOBS = 2
"""Processes, where nobody says how many."""
_FILE = click.option("--file", required=True, help="The policy.npz of `balancer train`.")


@click.group()
def main() -> None:
    """Judge `learned` on scenarios that nobody has looked at. Tune and rehearse first; then commit; then open, once."""
    # Inherited by the processes that compute: each has a core, and many threads would fight for it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@main.command()
@click.option("--out", "path", type=click.Path(dir_okay=False, path_type=Path), default=DISTRIBUTION, show_default=True)
def distribution(path: Path) -> None:
    """Write down the distribution, as CSV."""
    write_whole(path, page.distribution().encode())


@main.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=rivals.TUNED, show_default=True)
def tune(out: Path) -> None:
    """Tune the rivals on what `learned` is trained on, and keep what was found; some minutes."""
    write_whole(out, rivals.written(rivals.tune(log=click.echo)).encode())


@main.command()
@click.option(
    "--seed", type=click.IntRange(min=0), required=True, help="Of the scenarios; that of a page makes them again."
)
@click.option("--scenarios", type=click.IntRange(min=1), default=SCENARIOS, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=SEEDS, show_default=True, help="Of requests.")
@click.option("--requests", type=click.IntRange(min=10), help="Of each run. [default: as the distribution says]")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/sealed"), show_default=True)
@_FILE
@inputs.places(_JOBS)
def rehearse(seed: int, scenarios: int, seeds: int, requests: int | None, out: Path, file: str, **where: Any) -> None:
    """All of it on a seed of your own, which seals nothing."""
    more = "" if requests is None else f" --requests {requests}"
    command = f"rehearse --file {file} --seed {seed} --scenarios {scenarios} --seeds {seeds}{more}"
    drawn = opening.draw(seed, scenarios, seeds, rivals.read_tuned(), trained(file), requests)
    _judge(
        drawn,
        out / PAGE.name,
        Provenance(_COMMAND + command, "a seed for trying it, so these were no secret"),
        **where,
    )


@main.command("open")
@click.option("--page", "path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
@_FILE
@inputs.places(_JOBS)
def open_sealed(path: Path, file: str, **where: Any) -> None:
    """Open them: the seed is a hash of the commit that this runs in, which must have all of it and no page yet."""
    commit, seed = sealed_by(path)
    drawn = opening.draw(seed, SCENARIOS, SEEDS, rivals.read_tuned(), trained(file), None)
    provenance = Provenance(f"{_COMMAND}open --file {file}", f"the hash of commit {commit}")
    _judge(drawn, path, provenance, **where)


def sealed_by(path: Path) -> tuple[str, int]:
    """The commit that seals scenarios, and its seed.

    Raises:
        ClickException: they were opened, as the page is there; or something is not committed.
    """
    if path.exists():
        raise click.ClickException(f"{path} is there: they were opened. Scenarios of other seeds: rehearse --seed N")
    if changed := _git("status", "--porcelain"):
        raise click.ClickException(f"not all is committed, so no commit seals it: commit or remove\n{changed}")
    commit = _git("rev-parse", "HEAD")
    return commit, opening.seed_of(commit)


def trained(file: str) -> Policy:
    """The policy of the file; raises `ValueError` where it cannot be used."""
    return Learned(file=file).with_files(read_policy_file)


def _judge(drawn: opening.Opening, path: Path, provenance: Provenance, **where: Any) -> None:
    runs = sum(1 for _ in drawn.tasks())
    with inputs.shown_pool(**where, otherwise=_JOBS, runs=runs) as pool:
        found = opening.run(drawn, pool)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(page.as_json(drawn, found, provenance), allow_nan=False) + "\n"
    write_whole(path.with_suffix(".json"), whole.encode())
    write_whole(path.with_suffix(".csv"), page.as_csv(drawn, found).encode())
    write_whole(path, page.page(drawn, found, provenance).encode())
    click.echo(page.summary(drawn, found))
    click.echo(f"Written: {path}, and beside it .json and .csv")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(prog_name="python -m dev.experiments.sealed")
