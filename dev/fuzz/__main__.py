"""`python -m dev.fuzz`: see the package."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from balancer.errors import OperatorError
from dev.bench.results import Table
from dev.demo.stack import interruptible
from dev.fuzz import attack, checks
from dev.fuzz.rig import target
from dev.fuzz.run import Report, Run, Say

_INTERRUPTED = 130


@click.command(help="Random attackers against every port of a real balancer and a real Envoy, on this machine alone.")
@click.option("--inputs", type=click.IntRange(min=100), default=100_000, show_default=True, help="In all.")
@click.option("--seed", type=int, default=1, show_default=True, help="Equal seeds send equal inputs.")
@click.option("--kind", "names", multiple=True, type=click.Choice([k.name for k in attack.KINDS]), help="Default: all.")
@click.option("--proxied", is_flag=True, help="With the front end proxy, and what it forwards as the only kinds.")
@click.option("--replay", help="KIND:NUMBER of one input to send again, as a finding names it.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/fuzz"), show_default=True)
def main(inputs: int, seed: int, names: tuple[str, ...], proxied: bool, replay: str | None, out: Path) -> None:
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    kinds = tuple(kind for kind in attack.KINDS if not names or kind.name in names)
    if proxied:
        kinds = attack.FORWARDED
    try:
        if replay is not None:
            asyncio.run(interruptible(_replay(seed, replay, kinds, say)))
            return
        report = asyncio.run(interruptible(_run(inputs, seed, kinds, say)))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        say("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(report.as_json(), indent=1) + "\n")
    tables = _tables(report)
    (out / "table.md").write_text("\n".join(table.markdown() for table in tables))
    for table in tables:
        console.print(table.rich(), "")
    problems = [*report.findings, *report.grown]
    for finding in problems:
        console.print(finding, style="bold red", markup=False, highlight=False, soft_wrap=True)
    held = "" if problems else "; the gateway held"
    say(f"{sum(report.inputs.values()):,} inputs, {report.took_s:.0f} s, seed {seed}{held}; {out / 'results.json'}")
    sys.exit(1 if problems else 0)


async def _run(inputs: int, seed: int, kinds: tuple[attack.Kind, ...], say: Say) -> Report:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        async with target(Path(directory), proxied=kinds == attack.FORWARDED) as attacked:
            run = Run(attacked, seed, inputs, kinds, say)
            report = await run.run()
            await run.count_handler_errors()
            return report


async def _replay(seed: int, which: str, kinds: tuple[attack.Kind, ...], say: Say) -> None:
    name, _, number = which.rpartition(":")
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None or not number.isdecimal():
        raise OperatorError(f"--replay {which}: give KIND:NUMBER, such as 'ext_proc:17'")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        async with target(Path(directory), proxied=kinds == attack.FORWARDED) as attacked:
            log = checks.Log(attacked)
            answer = await Run(attacked, seed, 0, [kind], say).replay(kind, int(number))
            say(f"answered {answer}; exceptions: {dict(log.exceptions())}\n{attacked.balancer.log_tail()}")


def _tables(report: Report) -> list[Table]:
    answers = Table("Inputs and how they were answered", ["kind", "inputs", "answers"])
    for kind, count in report.inputs.items():
        codes = report.answers.get(kind, {})
        answers.rows.append([kind, f"{count:,}", ", ".join(f"{n:,} {code}" for code, n in list(codes.items())[:8])])
    refused = Table(
        "Refused, by the balancer's own count (warm-up included)", ["message and field, or reason", "times"]
    )
    refused.rows = [[what, f"{count:,.0f}"] for what, count in report.refused.items()]
    sizes = Table("Processes", ["", "before", "after", ""])
    if report.before is not None and report.after is not None:
        for name, was in report.before.rss_bytes.items():
            now = report.after.rss_bytes[name]
            row = [f"{name}, resident", checks.megabytes(was), checks.megabytes(now), f"{now / was - 1:+.1%}"]
            had, has = report.before.descriptors[name], report.after.descriptors[name]
            sizes.rows += [row, [f"{name}, descriptors", str(had), str(has), f"{has - had:+d}"]]
    return [answers, refused, sizes]


if __name__ == "__main__":
    main(prog_name="python -m dev.fuzz")
