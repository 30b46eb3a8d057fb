"""`balancer twin`: is the fleet that is made of a decision log like the one that was recorded?"""

import json
from pathlib import Path

import click

from balancer.config.profile_file import load_profile
from balancer.server.decision_log.reading import read_log
from balancer.server.decision_log.recorded import DecisionLogError
from simulator.commands import inputs
from simulator.compare import text
from simulator.log.caches import settings_for
from simulator.log.fleet import calibrate
from simulator.off_policy import report
from simulator.off_policy.calibrated import CHECKED_BY, P50_WITHIN, P99_WITHIN, twin_of

_EPILOG = """\b
Examples:
  balancer twin decisions/
  balancer twin decisions/ --profile profiles/a100.yaml

LOG is the folder that decision_log.folder of the config names, or one file of it.
`balancer train --from-log` makes the same check before it trains.
"""


@click.command(epilog=_EPILOG)
@click.argument("log", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--seeds", type=click.IntRange(min=2), default=CHECKED_BY, show_default=True, help="Runs of the simulation."
)
@inputs.profile_option()
@inputs.file_option("--json", "Write all numbers there.")
@click.pass_context
def twin(ctx: click.Context, log: Path, seeds: int, profiles: tuple[Path, ...], json_path: Path | None) -> None:
    """Make a simulated fleet of the decision LOG, and check it: the log's own policy must give the log's latencies.

    Exits with 1 where a model's p50 or p99 is too far off.
    """
    inputs.check_folder("--json", json_path)
    measured = tuple(map(load_profile, profiles))
    try:
        read = read_log(log)
        calibration = calibrate(read, profiles=measured)
        made = twin_of(read, calibration, seeds=seeds)
    except (ValueError, DecisionLogError) as error:
        raise click.ClickException(f"{log}: {error}") from error
    console = inputs.console()
    console.print(report.twin_table(made))
    for note in made.remarks():
        console.print(f"Note: {note}.", markup=False, highlight=False)
    if caches := settings_for(calibration.fleet):
        console.print(f"Note: {caches}.", markup=False, highlight=False)
    differs = [why for model in made.models for why in model.differs()]
    for why in differs:
        console.print(f"Differs: {why}.", markup=False, highlight=False)
    if not differs:
        near = f"each p50 within {P50_WITHIN:.0%}, each p99 within {P99_WITHIN:.0%}"
        console.print(f"A twin: {near}, or as near as its own runs are to each other.", highlight=False)
    if json_path:
        json_path.write_text(json.dumps(text.plain(made), indent=1) + "\n", encoding="utf-8")
    ctx.exit(1 if differs else 0)
