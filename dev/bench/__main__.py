"""Measure all or some parts, print tables as they are ready, and write out/bench/results.json and table.md."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from balancer.errors import OperatorError
from dev.bench import decisions, engine, footprint, machine, reports, scrape
from dev.bench.client import find_h2load
from dev.bench.frontends import away, hedged, peers, proxied, swap
from dev.bench.frontends import measure as frontends
from dev.bench.results import Options, Section, aims_table, keep
from dev.stack import POLICY
from policies import BUILTIN

PEERS = "peers"
"""Only if asked for by name: it fetches packages."""
PARTS: dict[str, Callable[[Options], Section]] = {
    "decisions": decisions.measure,
    "native": decisions.inside,
    "reports": reports.measure,
    "scrape": scrape.measure,
    "engine": engine.measure,
    "frontends": frontends.measure,
    "swap": swap.measure,
    "away": away.measure,
    "proxy": proxied.measure,
    "hedging": hedged.measure,
    "memory": footprint.memory,
    "idle": footprint.idle,
    PEERS: peers.measure,
}
_CLIENTS = ("frontends", "swap", "away", "proxy", "hedging", "memory", PEERS)
"""Parts that need the client, h2load."""


class _Run:
    def __init__(self, quick: bool, out: Path) -> None:
        self._out = out
        self._console = Console()
        self._began_s = time.monotonic()
        self.sections: dict[str, Section] = {}
        self._head: dict[str, Any] = {"machine": machine.facts(), "quick": quick}
        facts = self._head["machine"]
        self._say(
            f"{facts['cores']} cores, {facts['cpu']}, load {facts['load_average_1m']:.1f}; Envoy {facts['envoy']}"
        )

    def measure(self, name: str, options: Options) -> None:
        """Measure a part, show its tables, and keep it."""
        self._say(f"[{time.monotonic() - self._began_s:4.0f} s] {name} ...")
        self.sections[name] = PARTS[name](options)
        for table in self.sections[name].tables:
            self._console.print(table.rich(), "")

    def finish(self) -> None:
        """Show the aims and write the files."""
        aims = [aim for section in self.sections.values() for aim in section.aims]
        tables = [*([aims_table(aims)] if aims else []), *(t for s in self.sections.values() for t in s.tables)]
        if aims:
            self._console.print(tables[0].rich())
        self._out.mkdir(parents=True, exist_ok=True)
        results = self._head | {
            "took_s": time.monotonic() - self._began_s,
            "aims": [aim.as_json() for aim in aims],
            "parts": {name: section.raw for name, section in self.sections.items()},
        }
        (self._out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        facts = self._head["machine"]
        about = f"{facts['cores']} cores, {facts['cpu']}; Envoy {facts['envoy']}; commit {facts['commit'][:12]}"
        (self._out / "table.md").write_text("\n".join([about, "", *(table.markdown() for table in tables)]))
        self._say(f"{time.monotonic() - self._began_s:.0f} s; {self._out / 'results.json'}, {self._out / 'table.md'}")

    def keep(self, folder: Path) -> None:
        """All tables but the aims, for readers of the docs."""
        keep([table for section in self.sections.values() for table in section.tables], folder, self._head["machine"])

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@click.command(help=__doc__)
@click.option(
    "--only", multiple=True, type=click.Choice(list(PARTS)), help=f"A part; repeatable. Default: all but {PEERS}."
)
@click.option("--quick", is_flag=True, help="A third of the time and of the rounds: to see that it works.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/bench"), show_default=True)
@click.option(
    "--policy", type=click.Choice(sorted(BUILTIN)), default=POLICY, show_default=True, help="Of frontends and peers."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Of frontends and peers.")
@click.option(
    "--docs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also put the tables into this folder as CSV: docs/benchmarks, which docs/benchmarks.md links to.",
)
def main(only: tuple[str, ...], docs: Path | None, **given: Any) -> None:
    options = Options(**given)
    if docs is not None and options.quick:
        raise click.UsageError("--docs takes measurements in full; leave out --quick")
    chosen = only or [name for name in PARTS if name != PEERS]
    try:
        if any(name in chosen for name in _CLIENTS):
            find_h2load()  # before minutes of what needs none
        run = _Run(options.quick, options.out)
        # What was measured is kept, also where a later part fails.
        with contextlib.ExitStack() as leaving:
            leaving.callback(run.finish)
            for name in PARTS:
                if name in chosen:
                    run.measure(name, options)
        if docs is not None:
            run.keep(docs)
    except OperatorError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m dev.bench")
