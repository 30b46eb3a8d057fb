"""`python -m benchmarks.fuzz.state`: see the package."""

from __future__ import annotations

import time
from pathlib import Path

import click

from benchmarks.fuzz.state import POLICIES, fuzzed


@click.command(help="Spoiled state for the module, compiled with sanitizers.")
@click.option("--inputs", type=click.IntRange(min=len(POLICIES)), default=100_000, show_default=True)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Equal seeds spoil equal places."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/fuzz/state"), show_default=True
)
def main(inputs: int, seed: int, out: Path) -> None:
    """Run the command."""
    out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    for says in fuzzed(out.absolute(), inputs, seed):
        click.echo(says)
    click.echo(f"{time.monotonic() - start_s:.0f} s, seed {seed}; none broke the module")


if __name__ == "__main__":
    main()
