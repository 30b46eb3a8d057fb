"""`python -m fuzz PART`: attack one part with random inputs; status 1 where it did not hold."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import click

from fuzz import request, state
from fuzz.attack import Attack
from fuzz.kinds import KINDS_OF
from fuzz.target import target

_COUNTS = {"request": 1_000_000, "state": 100_000, "pick": 100_000, "native": 50_000, "proxy": 100_000}


@click.command()
@click.argument("part", type=click.Choice(list(_COUNTS)))
@click.option("--inputs", type=click.IntRange(min=100), help=f"Default: {_COUNTS}.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Equal seeds, equal inputs.")
@click.option("--replay", help="KIND:NUMBER of one input of a front end to send again, as a finding names it.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/fuzz"), show_default=True)
def main(part: str, inputs: int | None, seed: int, replay: str | None, out: Path) -> None:
    """Attack the module's reader of requests, its shared state, or the ports of a real stack by that front end."""
    began_s, count = time.monotonic(), inputs or _COUNTS[part]
    folder = out.absolute() / part
    folder.mkdir(parents=True, exist_ok=True)
    findings: list[str] = []
    if part == "request":
        request.fuzzed(folder, count, seed)
    elif part == "state":
        click.echo("\n".join(state.fuzzed(folder, count, seed)))
    else:
        findings = asyncio.run(_ports(part, count, seed, replay))
    if replay is not None:
        return
    for finding in findings:
        click.secho(finding, fg="red")
    held = "not held" if findings else "held"
    click.echo(f"{part}: {held}; {count:,} inputs, seed {seed}, {time.monotonic() - began_s:.0f} s")
    sys.exit(1 if findings else 0)


async def _ports(frontend: str, count: int, seed: int, replay: str | None) -> list[str]:
    kinds = KINDS_OF[frontend]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        async with target(Path(directory), frontend) as attacked:
            attack = Attack(attacked, seed, click.echo)
            if replay is None:
                grown = await attack.run(count, kinds)
                return [*attack.findings, *grown]
            name, _, number = replay.rpartition(":")
            (kind,) = (kind for kind in kinds if kind.name == name)
            answers = await attack.send(kind, seed, [int(number)])
            click.echo(f"answered {', '.join(answers)}\n{attacked.balancer.log_tail()}")
            return []


if __name__ == "__main__":
    main(prog_name="python -m fuzz")
