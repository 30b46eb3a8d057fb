"""`python -m soak`: see the package."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from balancer.errors import OperatorError
from balancer.stack.stack import REPOSITORY
from dev.bench.machine import CpuMeter
from dev.bench.results import Aim, Table, aims_table
from dev.stack import interruptible, new_tritons
from soak import plot, report
from soak.certificates import Certificates
from soak.client import Load
from soak.deployment import Deployment, Sampler
from soak.faults import FAULTS, Fault, certificates_rotated
from soak.report import Soak
from soak.schedule import Schedule

PAGE = Path("docs/operate/failures.md")
"""The page that holds the table, from the repository."""
_INTERRUPTED = 130
_TIMES = ("longest_s", "noticed_s", "recovered_s", "answers_s")
_SAY_EVERY_S = 10.0
_WARM_UP_REQUESTS = 2_000
_SPARE_DESCRIPTORS = 6.0
"""Connections that come and go by themselves; one that leaks would show by the thousand."""
_LONGEST_S = 3600.0
"""However slow: then it ends with what it has."""


@click.command(help="Many requests through a whole deployment on this machine while its parts die, hang and change.")
@click.option("--requests", type=click.IntRange(min=1000), default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the faults; equal seeds draw equal faults.")
@click.option("--workers", type=click.IntRange(min=2, max=9), default=4, show_default=True, help="Real Tritons.")
@click.option("--fault", "names", multiple=True, type=click.Choice([f.name for f in FAULTS]), help="Default: all.")
@click.option("--no-faults", is_flag=True, help="The load alone: how fast is it?")
@click.option("--plain", is_flag=True, help="Without TLS between Envoy, agents and the balancer.")
@click.option("--no-overlap", is_flag=True, help="One fault at a time.")
@click.option(
    "--gentle-from", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="No restarts after this share."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/soak"), show_default=True)
@click.option("--table", "only_table", is_flag=True, help=f"Put the table of the last run into {PAGE}; run nothing.")
def main(out: Path, only_table: bool, names: tuple[str, ...], no_faults: bool, **options: Any) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    faults = [fault for fault in FAULTS if not no_faults and (not names or fault.name in names)]
    try:
        if only_table:
            report.put(_read(out / "results.json"), REPOSITORY / PAGE)
            return
        # Not uvloop: it forks, and what gRPC does about forks ends the child now and then while calls are under way.
        soak = asyncio.run(interruptible(_run(out, faults, say, **options)))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        say("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)
    results = report.write(soak, out)
    plot.draw(soak, out / "soak.png")
    (out / "table.md").write_text(report.markdown(results) + "\n")
    for each in _tables(results):
        console.print(each.rich(), "")
    for what, count in results["unexplained"].items():
        console.print(f"unexplained, {count} x {what}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    if results["cpu_us"]:
        say("CPU a request, us: " + ", ".join(f"{name} {spent:,.0f}" for name, spent in results["cpu_us"].items()))
    say(f"{results['rate_per_s']:,.0f} requests/s; {out / 'results.json'}, {out / 'soak.png'}, {out / 'faults.jsonl'}")
    sys.exit(1 if results["unexplained"] or results["not_recovered"] else 0)


async def _run(
    out: Path,
    faults: list[Fault],
    say: Any,
    *,
    requests: int,
    seed: int,
    workers: int,
    no_overlap: bool,
    plain: bool,
    gentle_from: float,
) -> Soak:
    out.mkdir(parents=True, exist_ok=True)
    (log := out / "faults.jsonl").unlink(missing_ok=True)
    async with contextlib.AsyncExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        say(f"starting {workers} Tritons with agents, the balancer and Envoy ...")
        tritons = new_tritons(directory, workers)
        certificates = None if plain else Certificates(directory / "tls", [triton.name for triton in tritons])
        deployment = Deployment(directory / "gateway", tritons=tritons, certificates=certificates)
        running.push_async_callback(deployment.stop)
        await deployment.start()
        if certificates is None:
            faults = [fault for fault in faults if fault.happen is not certificates_rotated]
        warm, load = Load(deployment.url, _WARM_UP_REQUESTS), Load(deployment.url, requests)
        for each in (warm, load):
            running.push_async_callback(each.close)
        await warm.run()
        sampler = Sampler(deployment, load)
        schedule = Schedule(deployment, load, faults, seed, log, say, gentle_from)
        began_s = time.time()
        helpers = [asyncio.create_task(sampler.run()), asyncio.create_task(_progress(load, schedule, say))]
        breaking = asyncio.create_task(schedule.run(not no_overlap) if faults else asyncio.sleep(0))
        loading = asyncio.create_task(load.run())
        cpu = CpuMeter(
            {name: [part.process.pid] for name, part in deployment.parts().items()} | {"client": [os.getpid()]}
        )
        try:
            await asyncio.wait(
                [loading, *([breaking] if faults else [])], timeout=_LONGEST_S, return_when="FIRST_COMPLETED"
            )
            # Of parts that were not restarted: one that was has no pid to ask.
            spent = {} if faults else _cpu_by_kind(cpu, load)
            if breaking.done() and faults:
                breaking.result()
            # A fault that is under way is mended under load, or its clients would never see it mended.
            load.most += requests if faults else 0
            more = asyncio.create_task(load.run()) if faults and loading.done() else loading
            schedule.stop()
            await breaking
            load.stop()
            await more
            took_s = time.time() - began_s
        finally:
            for task in (*helpers, breaking, loading):
                task.cancel()
            await asyncio.gather(*helpers, breaking, loading, return_exceptions=True)
        await asyncio.sleep(1.0)  # for the last lines of Envoy's log, which it writes when it has some time
        kept = (out / "envoy_failures.jsonl").resolve()
        if deployment.failures_path.exists():
            kept.write_bytes(deployment.failures_path.read_bytes())
        (out / "balancer.log").write_bytes(deployment.log_path.read_bytes())
        return Soak(
            seed, requests, took_s, load, schedule.events, sampler.samples, deployment.upstreams(), kept, cpu_us=spent
        )


def _cpu_by_kind(cpu: CpuMeter, load: Load) -> dict[str, float]:
    """CPU of a request in microseconds, by what spent it."""
    kinds: dict[str, float] = {}
    own_children_s = 0.0
    for name, spent_s in cpu.spent_s().items():
        kind = "agents" if name.endswith("agent") else "Tritons" if name.startswith("worker") else name
        kinds[kind] = kinds.get(kind, 0.0) + spent_s / load.done * 1e6
        own_children_s += spent_s if name != "client" else 0.0
    # The client's process started all others.
    kinds["client"] -= own_children_s / load.done * 1e6
    return kinds


async def _progress(load: Load, schedule: Schedule, say: Any) -> None:
    before = 0
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        now = [f"{e.kind} {e.target}".strip() for e in schedule.events if e.recovered_s is None]
        say(
            f"  {load.done:,} requests, {(load.done - before) / _SAY_EVERY_S:,.0f}/s, {len(load.failures):,} failed, "
            f"{len(schedule.events)} faults; now: {' + '.join(now) or 'none'}"
        )
        before = load.done


def _tables(results: dict[str, Any]) -> list[Table]:
    faults = Table("Faults", ["kind", "times", "alone", "failed", "longest s", "noticed s", "recovered s", "used s"])
    for row in results["by_fault"]:
        times = [f"{row[key]:.2f}" if row[key] is not None else "" for key in _TIMES]
        faults.rows.append([row["kind"], str(row["times"]), str(row["alone"]), str(row["failed"]), *times])
    failures = Table("Failures by cause", ["cause: code: details", "requests"])
    failures.rows = [[what, f"{count:,}"] for what, count in results["codes"].items()]
    growth = Table("Growth", ["process", "over requests", "MB", "MB per million", "MB grown", "descriptors", "grown"])
    for part, trend in results["growth"].items():
        if trend:
            cells = [f"{trend[key]:,.2f}" for key in ("rss_mb", "mb_per_million", "mb_grown")]
            ends = [f"{trend['descriptors']:.0f}", f"{trend['descriptors_grown']:+.0f}"]
            growth.rows.append([part, f"{trend['requests']:,.0f}", *cells, *ends])
    aims = [Aim("Unexplained failures", float(sum(results["unexplained"].values())), "requests", 0)]
    for part in ("balancer", "envoy", "worker-0-agent"):
        if trend := results["growth"].get(part):
            aims.append(Aim(f"Growth of {part}", trend["mb_per_million"], "MB/million", 1.0))
            if (allocated := trend.get("allocated_mb_per_million")) is not None:
                aims.append(Aim(f"Growth of what {part} has allocated", allocated, "MB/million", 1.0))
            aims.append(Aim(f"Descriptors of {part}", trend["descriptors_grown"], "more", _SPARE_DESCRIPTORS))
    return [faults, failures, growth, aims_table(aims)]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise OperatorError(f"there is no {path}: run make soak first, or name its --out")
    results: dict[str, Any] = json.loads(path.read_text())
    return results


if __name__ == "__main__":
    main(prog_name="python -m soak")
