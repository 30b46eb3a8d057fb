"""`python -m dev.demo`: see the package."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any

import click
import uvloop
from rich.console import Console

from balancer.errors import OperatorError
from balancer.load.command import LiveLine, make_console
from balancer.load.result import milliseconds, share
from balancer.load.runner import Progress
from dev.demo import language_models as llm
from dev.demo import page, plot, report, steps
from dev.demo.steps import PolicyOutcome, compare_policies, digits_accuracy
from dev.stack import emulated, interruptible

_DEFAULTS = steps.Plan()
_INTERRUPTED = 130
_ABOVE_0 = click.FloatRange(min=0, min_open=True)


@click.command(
    help="Start the whole stack, classify real digits through it, and compare policies under one traffic, "
    "and under sessions with real language models."
)
@click.option("--out", type=click.Path(path_type=pathlib.Path), default=pathlib.Path("out/demo"), show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help=f"Compare this one; repeat [default: {len(_DEFAULTS.policies)} policies].",
)
@click.option("--rounds", type=click.IntRange(min=1), default=_DEFAULTS.rounds, show_default=True)
@click.option(
    "--window-s", type=_ABOVE_0, default=_DEFAULTS.window_s, show_default=True, help="Of each policy and round."
)
@click.option(
    "--rate", "rate_per_s", type=_ABOVE_0, default=_DEFAULTS.rate_per_s, show_default=True, help="Mean, per s."
)
@click.option("--sessions", type=click.IntRange(min=0), default=8, show_default=True, help="With language models.")
@click.option("--seed", type=click.IntRange(min=0), default=_DEFAULTS.seed, show_default=True)
def main(out: pathlib.Path, workers: int, sessions: int, **given: Any) -> None:
    console = make_console()
    given["policies"] = given["policies"] or _DEFAULTS.policies
    try:
        plan = dataclasses.replace(_DEFAULTS, **given)
        out.mkdir(parents=True, exist_ok=True)
        succeeded = uvloop.run(interruptible(demo(console, plan, out, workers, sessions)))
    except OperatorError as error:
        console.print(f"The demo failed: {error}", style="bold red", markup=False, highlight=False)
        sys.exit(1)
    except asyncio.CancelledError:
        console.print("Interrupted; everything that was started has been stopped.")
        sys.exit(_INTERRUPTED)
    sys.exit(0 if succeeded else 1)


async def demo(console: Console, plan: steps.Plan, out: pathlib.Path, workers: int, sessions: int) -> bool:
    """Do all steps and write all files; returns whether all is as it must be.

    Raises:
        OperatorError: where a part cannot be started, or fails.
    """
    began_s = time.monotonic()
    console.print(f"[bold]1[/] Starting Envoy, the balancer and {workers} Triton servers with emulated GPUs ...")
    async with emulated(out / "run", workers, plan.policies[0]) as stack:
        console.print(f"  ready after {time.monotonic() - began_s:.0f} s; requests go to {stack.url}")
        console.print("[bold]2[/] Real inference: held-out handwritten digits to the model digits ...")
        digits = await digits_accuracy(stack.url)
        console.print(
            f"  {digits.right} of {digits.images} right through the whole stack: [bold]{share(digits.accuracy)}[/]"
        )
        if digits.why_not:
            raise OperatorError(f"{digits.why_not}; {stack.balancer.log_tail()}")
        windows = plan.rounds * len(plan.policies)
        console.print(
            f"[bold]3[/] Bursty traffic to emulated models, about {plan.rate_per_s:.0f} requests/s; the policy is "
            f"swapped through {stack.config_path} while it flows: {len(plan.policies)} policies, {plan.rounds} windows "
            f"each, about {plan.sending_s / 60:.1f} minutes ..."
        )
        with LiveLine(console) as line:

            def show(turn: int, policy: str, progress: Progress) -> None:
                line.show(progress, f"window {turn + 1} of {windows}: {policy}")

            outcomes = await compare_policies(stack, plan, show)
        found = report.make_report(digits, outcomes, plan, await stack.get("/workers"))
    if sessions:
        console.print(f"[bold]4[/] {sessions} sessions with {llm.SERVERS} real language models, under each policy ...")
        times = await llm.compare_on_language_models(
            out / "run" / "llm", sessions, plan.seed, lambda policy: console.print(f"  {policy} ...")
        )
        found = dataclasses.replace(found, language_models=tuple(times))
    return finish(console, found, outcomes, out, time.monotonic() - began_s)


def finish(
    console: Console, found: report.Report, outcomes: list[PolicyOutcome], out: pathlib.Path, took_s: float
) -> bool:
    """Show the table, write `results.json`, `policies.png` and `index.html` to `out`; True where nothing failed."""
    console.print(report.table(found))
    swaps_s = [seconds for outcome in outcomes for seconds in outcome.swaps_s]
    console.print(
        f"{len(swaps_s)} swaps, each in force at most {milliseconds(max(swaps_s))} ms after the file was written."
    )
    pictures = [out / "policies.png"]
    if found.language_models:
        console.print(llm.table(found.language_models))
        pictures.append(out / "language_models.png")
        llm.draw(found.language_models, pictures[-1])
    (out / "results.json").write_text(json.dumps(report.as_json(found), indent=2, allow_nan=False) + "\n")
    plot.draw(found, outcomes, out / "policies.png")
    (out / "index.html").write_text(page.page(found, *pictures), encoding="utf-8")
    written = ", ".join(map(str, (*pictures, out / "results.json")))
    console.print(f"Written: {out / 'index.html'} (open it), {written}")
    failures = found.failures()
    for failure in failures:
        console.print(failure, style="bold red", markup=False)
    if not failures:
        console.print(f"[bold green]No request failed.[/] {took_s:.0f} s in all.")
    return not failures


if __name__ == "__main__":
    main()
