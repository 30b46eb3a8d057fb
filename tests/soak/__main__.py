"""`python -m soak`: see the package."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

import click

from balancer.errors import OperatorError
from balancer.stack.stack import REPOSITORY
from soak import growth, report
from soak.deployment import Deployment
from soak.faults import FAULTS, Fault
from soak.load import Load
from soak.schedule import Schedule

PAGE = Path("docs/operate/failures.md")
"""The page that holds the table, from the repository."""
_WORKERS = 4
_SAY_EVERY_S = 10.0
_WARM_UP_REQUESTS = 2_000
_LONGEST_S = 3600.0
"""However slow: then it ends with what it has."""


@click.command()
@click.option("--requests", type=click.IntRange(min=1000), default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the faults; equal seeds draw equal faults.")
@click.option("--fault", "names", multiple=True, type=click.Choice([f.name for f in FAULTS]), help="Default: all.")
@click.option(
    "--gentle-from", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="No restarts after this share."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/soak"), show_default=True)
@click.option("--table", is_flag=True, help=f"Put the table of the last run into {PAGE}; run nothing.")
def main(requests: int, seed: int, names: tuple[str, ...], gentle_from: float, out: Path, table: bool) -> None:
    """Many requests through a whole deployment on this machine while its parts die, hang and change."""
    try:
        if table:
            report.put(json.loads((out / "results.json").read_text()), REPOSITORY / PAGE)
            return
        out.mkdir(parents=True, exist_ok=True)
        faults = [fault for fault in FAULTS if not names or fault.name in names]
        # Not uvloop: it forks, and what gRPC does about forks ends the child now and then while calls are under way.
        results = asyncio.run(_run(out, faults, requests, seed, gentle_from)).write(out)
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    click.echo(report.markdown(results))
    for part, values in results["growth"].items():
        click.echo(f"{part}: " + ", ".join(f"{name} {value:,.2f}" for name, value in values.items()))
    problems = [f"unexplained, {count} x {what}" for what, count in results["unexplained"].items()]
    problems += results["not_recovered"]
    # Of few requests every start grows; a million tells.
    for problem in [*problems, *growth.beyond(results["growth"])]:
        click.secho(problem, fg="red")
    click.echo(f"Written: {out}/results.json, failures.jsonl, envoy_failures.jsonl, balancer.log")
    sys.exit(1 if problems else 0)


async def _run(out: Path, faults: list[Fault], requests: int, seed: int, gentle_from: float) -> report.Soak:
    async with contextlib.AsyncExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        click.echo(f"starting {_WORKERS} Tritons with agents, the balancer and Envoy ...")
        deployment = await running.enter_async_context(Deployment(directory, _WORKERS))
        warm, load = Load(deployment.url, _WARM_UP_REQUESTS), Load(deployment.url, requests)
        for each in (warm, load):
            running.push_async_callback(each.close)
        await warm.run()
        sampler = growth.Sampler(deployment, load)
        schedule = Schedule(deployment, load, faults, seed, click.echo, gentle_from)
        began_s = time.time()
        helpers = [asyncio.create_task(sampler.run()), asyncio.create_task(_progress(load, schedule))]
        breaking, loading = asyncio.create_task(schedule.run()), asyncio.create_task(load.run())
        try:
            await asyncio.wait([loading, breaking], timeout=_LONGEST_S, return_when="FIRST_COMPLETED")
            # A fault that is under way is mended under load, or its clients would never see it mended.
            load.most += requests
            more = asyncio.create_task(load.run()) if loading.done() else loading
            schedule.stop()
            await breaking
            load.stop()
            await more
        finally:
            for task in (*helpers, breaking, loading):
                task.cancel()
            await asyncio.gather(*helpers, breaking, loading, return_exceptions=True)
        took_s = time.time() - began_s
        await asyncio.sleep(1.0)  # for the last lines of Envoy's log, which it writes when it has some time
        kept = (out / "envoy_failures.jsonl").resolve()
        kept.write_bytes(deployment.failures_path.read_bytes() if deployment.failures_path.exists() else b"")
        (out / "balancer.log").write_bytes(deployment.log_path.read_bytes())
        return report.Soak(seed, took_s, load, schedule.events, sampler.samples, deployment.upstreams(), kept)


async def _progress(load: Load, schedule: Schedule) -> None:
    before = 0
    while True:
        await asyncio.sleep(_SAY_EVERY_S)
        now = [f"{event.kind} {event.target}".strip() for event in schedule.events if event.recovered_s is None]
        click.echo(
            f"  {load.done:,} requests, {(load.done - before) / _SAY_EVERY_S:,.0f}/s, {len(load.failures):,} failed, "
            f"{len(schedule.events)} faults; now: {' + '.join(now) or 'none'}"
        )
        before = load.done


if __name__ == "__main__":
    main(prog_name="python -m soak")
