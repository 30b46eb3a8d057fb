"""Measure all or some parts, print each part's tables as they are ready, and write them as CSV."""

import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from balancer.errors import OperatorError
from dev.bench import decisions, engine, footprint, ingress, machine, prompts, ray_serve, relays, reports
from dev.bench.client import find_h2load
from dev.bench.frontends import measure, peers
from dev.bench.results import Options, Table, keep

PEERS = "peers"
"""Fetches packages."""
RAY_SERVE = "ray_serve"
"""Takes a quarter of an hour."""
_BY_NAME = (PEERS, RAY_SERVE)
PARTS: dict[str, Callable[[Options], list[Table]]] = {
    "decisions": decisions.measure,
    "native": decisions.inside,
    "reports": reports.measure,
    "relays": relays.measure,
    "prompts": prompts.measure,
    "engine": engine.measure,
    "frontends": measure.measure,
    "ingress": ingress.measure,
    RAY_SERVE: ray_serve.measure,
    "memory": footprint.memory,
    "idle": footprint.idle,
    PEERS: peers.measure,
}
_CLIENTS = ("frontends", "memory", PEERS)


@click.command(help=__doc__)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help=f"A part; repeatable. Default: all but {' and '.join(_BY_NAME)}.",
)
@click.option("--quick", is_flag=True, help="A third of the time and of the rounds: to see that it works.")
@click.option("--rounds", type=click.IntRange(min=1), help="Of frontends and peers.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/bench"), show_default=True)
def main(only: tuple[str, ...], quick: bool, rounds: int | None, out: Path) -> None:
    console, began_s = Console(), time.monotonic()
    chosen = only or [name for name in PARTS if name not in _BY_NAME]
    try:
        if any(name in chosen for name in _CLIENTS):
            find_h2load()  # before minutes of what needs none
        facts = machine.facts()
        console.print(", ".join(f"{name} {value}" for name, value in facts.items()), highlight=False, soft_wrap=True)
        for name, part in PARTS.items():
            if name in chosen:
                console.print(f"[{time.monotonic() - began_s:4.0f} s] {name} ...", highlight=False, markup=False)
                tables = part(Options(quick, rounds))
                for table in tables:
                    console.print(table.rich(), "")
                keep(tables, out, facts)
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"{time.monotonic() - began_s:.0f} s; {out / 'about.json'}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(prog_name="python -m dev.bench")
