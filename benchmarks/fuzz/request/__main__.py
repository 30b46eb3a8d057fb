"""`python -m benchmarks.fuzz.request`: see the package."""

from __future__ import annotations

import time
from pathlib import Path

import click

from benchmarks.fuzz.request import fuzzed


@click.command(help="Mutations of honest requests for the module's reader, compiled with sanitizers.")
@click.option("--inputs", type=click.IntRange(min=1), default=10_000_000, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Equal seeds try equal inputs.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/fuzz/request"), show_default=True
)
def main(inputs: int, seed: int, out: Path) -> None:
    """Run the command."""
    out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    says = fuzzed(out.absolute(), inputs, seed)
    click.echo(f"{says}, {time.monotonic() - start_s:.0f} s, seed {seed}; none broke the reader")


if __name__ == "__main__":
    main()
