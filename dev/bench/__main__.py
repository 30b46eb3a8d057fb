"""Measure all or some parts, print tables as they are ready, and write out/bench/results.json and table.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from balancer.errors import OperatorError
from benchmarks import (
    decisions,
    engine,
    fallback,
    gateway_cost,
    machine,
    memory,
    report_cost,
    scaling,
    scrape,
    swap,
)
from benchmarks.client import find_h2load
from benchmarks.frontends import analyzed, away, hedged, inside, peers, proxied
from benchmarks.frontends import measure as frontends
from benchmarks.options import Options
from benchmarks.results import Section, aims_table
from benchmarks.stack import POLICY, Bench, bench
from policies import BUILTIN
from tools.pages import marks

WITHOUT_STACK: dict[str, Callable[[Options], Section]] = {
    "decisions": lambda options: decisions.measure(300 if options.quick else 2000),
    "native": lambda options: inside.measure(500 if options.quick else 4000),
    "reports": lambda options: report_cost.measure(options.quick),
    "scrape": lambda options: scrape.measure(options.quick),
    "engine": lambda options: engine.measure(options.quick),
    "frontends": frontends.measure,
    "away": away.measure,
    "proxy": proxied.measure,
    "hedging": hedged.measure,
}
WITH_STACK: dict[str, Callable[[Bench], Awaitable[Section]]] = {
    "gateway": gateway_cost.measure,
    "swap": swap.measure,
    "processes": scaling.measure,
    "fallback": fallback.measure,
    "memory": memory.measure,
}
BY_NAME: dict[str, Callable[[Options], Section]] = {"peers": peers.measure, "perf_analyzer": analyzed.measure}
"""Only if asked for by name: they fetch packages."""
PARTS = (*WITHOUT_STACK, *WITH_STACK)
_CLIENT_S = ("frontends", "away", "proxy", "hedging", *WITH_STACK, "peers")
"""Parts that need the client, h2load."""


class _Run:
    """Collects what the parts find."""

    def __init__(self, quick: bool, out: Path) -> None:
        self._out = out
        self._console = Console()
        self._began_s = time.monotonic()
        self.sections: dict[str, Section] = {}
        self.text = ""
        """Of all tables, in Markdown, once it has finished."""
        self._head: dict[str, Any] = {"machine": machine.facts(), "quick": quick}
        facts = self._head["machine"]
        self._say(
            f"{facts['cores']} cores, {facts['cpu']}, load {facts['load_average_1m']:.1f}; Envoy {facts['envoy']}"
        )

    def begin(self, name: str) -> None:
        """Say what is measured now."""
        self._say(f"[{time.monotonic() - self._began_s:4.0f} s] {name} ...")

    def add(self, name: str, section: Section) -> None:
        """Show a part's tables, and keep it."""
        self.sections[name] = section
        for table in section.tables:
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
        self.text = "\n".join([about, "", *(table.markdown() for table in tables)])
        (self._out / "table.md").write_text(self.text)
        self._say(f"{time.monotonic() - self._began_s:.0f} s; {self._out / 'results.json'}, {self._out / 'table.md'}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@click.command(help=__doc__)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice((*PARTS, *BY_NAME)),
    help="A part to measure; repeatable. Default: all but those that fetch packages: peers, perf_analyzer.",
)
@click.option("--quick", is_flag=True, help="A third of the time and of the rounds: to see that it works.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/bench"), show_default=True)
@click.option(
    "--policy", type=click.Choice(sorted(BUILTIN)), default=POLICY, show_default=True, help="Of frontends and peers."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Of frontends and peers.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Put the tables of a whole run between the marks of this page, docs/benchmarks.md.",
)
def main(only: tuple[str, ...], quick: bool, out: Path, policy: str, rounds: int | None, page: Path | None) -> None:
    """Run the command."""
    if page is not None and (only or quick):
        raise click.UsageError("--page takes a whole run; leave out --only and --quick")
    options, chosen = Options(quick, out, policy, rounds), only or PARTS
    try:
        on_the_stack = any(name in chosen for name in WITH_STACK)
        if any(name in chosen for name in _CLIENT_S):
            find_h2load()  # before minutes of what needs none
        run = _Run(quick, out)
        # What was measured is kept, also where a later part fails.
        with contextlib.ExitStack() as leaving:
            leaving.callback(run.finish)
            for name, measure in (WITHOUT_STACK | BY_NAME).items():
                if name in chosen:
                    run.begin(name)
                    run.add(name, measure(options))
            if on_the_stack:
                asyncio.run(_with_stack(run, chosen, quick))
        if page is not None:
            marks.put(run.text, page, "bench")
    except OperatorError as error:
        raise click.ClickException(str(error)) from error


async def _with_stack(run: _Run, chosen: tuple[str, ...], quick: bool) -> None:
    run.begin("starting the stack")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        async with bench(Path(directory), quick) as started:
            for name, measure in WITH_STACK.items():
                if name in chosen:
                    run.begin(name)
                    run.add(name, await measure(started))
                    started.check()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
