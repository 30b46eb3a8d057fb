"""`balancer evaluate`: what a decision log tells of policies that did not decide it."""

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.console import Console

from balancer.config.profile_file import Profile, load_profile
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLog, DecisionLogError
from policies.base import Policy
from simulator.commands import inputs
from simulator.log.fleet import calibrate
from simulator.off_policy import report
from simulator.off_policy.assess import Assessor
from simulator.off_policy.calibrated import Calibrated, simulate
from simulator.off_policy.report import MEANING, verdict

_EPILOG = """\b
Examples:
  balancer evaluate --log decisions/ --policy least_requests
  balancer evaluate --log decisions/ --policy wlpr --policy expected_latency:temperature=0.1 --json evaluation.json
  balancer evaluate --log decisions/ --policy wlpr --clip 20 --no-simulation
A log tells of policies that make picks which the logging policy made now and then, too: let it explore.
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--log",
    "path",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="The folder that decision_log.folder of the config names, or one file of it.",
)
@inputs.policy_option("policies", "Policy to judge; repeat.", multiple=True, required=True)
@click.option(
    "--clip",
    type=click.FloatRange(min=0, min_open=True),
    help="Cut importance weights off there: less noise, more bias, which is told [default: not].",
)
@click.option(
    "--block-s",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that stay together in resamples [default: ten times as long as latencies stay alike].",
)
@click.option("--simulation/--no-simulation", default=True, show_default=True, help="Simulate the fleet of the log.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each simulation.")
@inputs.profile_option()
@inputs.file_option("--json", "Write all numbers there.")
def evaluate(
    path: Path,
    policies: tuple[str, ...],
    clip: float | None,
    block_s: float | None,
    simulation: bool,
    seeds: int,
    profiles: tuple[Path, ...],
    json_path: Path | None,
) -> None:
    """Judge policies by a decision log: what one decision changed would have brought, and what a simulated fleet says.

    Neither is the truth of a fleet that the policy runs; what is said at the end tells how far to trust each.
    """
    targets = {text: inputs.parse_policy(text) for text in policies}
    inputs.check_folder("--json", json_path)
    measured = tuple(map(load_profile, profiles))
    log = read_log(path)
    for cut in log.cut:
        click.echo(f"{cut}; read up to there", err=True)
    try:
        assessor = Assessor(log, block_s, clip)
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
    assessed = tuple(assessor.assess(text, policy) for text, policy in targets.items())
    console = inputs.console()
    calibrated, why = None, "not asked for"
    if simulation:
        calibrated, why = _simulated(log, assessor, targets, seeds, measured, console)
    evaluation = report.Evaluation(
        log=log,
        assessor=assessor,
        assessed=assessed,
        calibrated=calibrated,
        not_simulated=why,
        verdicts=tuple(verdict(each, assessor, calibrated) for each in assessed),
        command=inputs.typed_command(),
    )
    _show(console, evaluation)
    if json_path:
        json_path.write_text(json.dumps(report.as_json(evaluation), indent=1) + "\n", encoding="utf-8")
        console.print(f"Written: {json_path}", highlight=False)


def _simulated(
    log: DecisionLog,
    assessor: Assessor,
    targets: Mapping[str, Policy],
    seeds: int,
    profiles: tuple[Profile, ...],
    console: Console,
) -> tuple[Calibrated | None, str]:
    """The simulation, or why there is none: the estimates are worth showing without it."""
    requests = (len(log) + len(log.refusals)) * seeds * (len(targets) + 1)
    try:
        with inputs.progress_bar(console, requests) as advance:
            calibration = calibrate(log, profiles=profiles)
            made = simulate(log, assessor.decisions, targets, calibration, seeds=seeds, progress=advance)
    except (ValueError, DecisionLogError) as error:
        return None, str(error)
    return made, ""


def _show(console: Console, e: report.Evaluation) -> None:
    console.print(report.heading(e), markup=False, highlight=False)
    console.print(report.support_table(e))
    console.print(report.estimates_table(e))
    if e.calibrated is not None:
        console.print(report.simulation_table(e.calibrated))
    else:
        console.print(f"Not simulated: {e.not_simulated}.", markup=False, highlight=False)
    for each in e.verdicts:
        for line in report.verdict_lines(each):
            console.print(line, markup=False, highlight=False)
    console.print(f"\n{MEANING}", style="dim", highlight=False)
