"""`python -m dev.experiments.served`: see the package, and dev/experiments/README.md."""

import asyncio
import sys
from pathlib import Path

import click
import uvloop

from balancer.errors import OperatorError
from dev.experiments.served import page, plot
from dev.experiments.served.record import read, record, save, simulate
from dev.stack import interruptible

_SCENARIOS = ("mooncake:500", "chat:2000", "shared-prompts:1000")
_INTERRUPTED = 130


@click.command()
@click.option("--scenario", "scenarios", multiple=True, default=_SCENARIOS, show_default=True, metavar="NAME:REQUESTS")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/served"), show_default=True)
@click.option("--page", "target", type=click.Path(path_type=Path), help="Where the page goes [default: --out].")
@click.option("--again", is_flag=True, help="Simulate and compare the last run; nothing is started.")
def main(scenarios: tuple[str, ...], out: Path, target: Path | None, again: bool) -> None:
    """Routers before the same emulated language models: writes served.md, served.csv and served.png."""
    played = []
    out.mkdir(parents=True, exist_ok=True)
    try:
        for each in scenarios:
            name, _, requests = each.partition(":")
            if not requests.isdecimal():
                raise ValueError(f"--scenario is {each!r}: give NAME:REQUESTS, such as {_SCENARIOS[0]}")
            recorded = out / f"{Path(name).stem}.json"
            if not again:
                live = uvloop.run(interruptible(record(name, int(requests), click.echo)))
                save(recorded, int(requests), live)
            played.append(simulate(name, *read(recorded)))
    except (OperatorError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        click.echo("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)
    folder = target or out
    (folder / "served.md").write_text(page.page(played), encoding="utf-8")
    (folder / "served.csv").write_text(page.fidelity_csv(played), encoding="utf-8")
    plot.draw(played, folder / "served.png")
    click.echo(f"Written: {folder / 'served.md'}, and beside it served.csv and served.png.")
    for problem in page.problems(played):
        click.secho(problem, fg="red", bold=True)


if __name__ == "__main__":
    main(prog_name="python -m dev.experiments.served")
