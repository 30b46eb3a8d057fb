"""`python -m experiments.live_fidelity`: see the package."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import uvloop

from balancer.errors import OperatorError
from experiments.live_fidelity import compare, page, plot, twin
from experiments.live_fidelity.live import Recording, record
from experiments.live_fidelity.session import Session
from tools.load.display import LiveLine, make_console

_DEFAULTS = Session()
_RECORDING = "recording.json"


@click.command(
    help="Send the same requests through the demo's stack and the simulator, and hold the latencies together."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/fidelity"), show_default=True)
@click.option(
    "--page", "page_dir", type=click.Path(path_type=Path), help="Where live.md and live.png go [default: --out]."
)
@click.option("--again", is_flag=True, help="Simulate and compare anew what the last run recorded; nothing is started.")
@click.option("--rounds", type=click.IntRange(min=1), default=_DEFAULTS.rounds, show_default=True)
@click.option("--window-s", type=float, default=_DEFAULTS.window_s, show_default=True, help="Of each policy and round.")
@click.option("--rate", "rate_per_s", type=float, default=_DEFAULTS.rate_per_s, show_default=True, help="Mean, per s.")
@click.option("--seed", type=click.IntRange(min=0), default=_DEFAULTS.seed, show_default=True)
def main(
    out: Path, page_dir: Path | None, again: bool, rounds: int, window_s: float, rate_per_s: float, seed: int
) -> None:
    """See the option `help`."""
    console = make_console()
    began_s = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    target = page_dir or out
    target.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began_s:4.0f} s] {text}", markup=False, highlight=False)

    try:
        if not again:
            session = Session(rounds=rounds, window_s=window_s, rate_per_s=rate_per_s, seed=seed)
            say("starting Envoy, the balancer and four Tritons ...")
            with LiveLine(console) as line:
                uvloop.run(record(session, out, say, line.show)).save(out / _RECORDING)
        recording = Recording.load(out / _RECORDING)
        fleet = twin.fleet(recording.profiles, recording.easy, recording.live.models)
        say("the session, simulated ...")
        simulated = twin.simulate(fleet, recording.session, range(page.SEEDS))
        comparisons = compare.compare(recording.session, recording.live, simulated)
    except (OperatorError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    plot.draw(comparisons, target / "live.png")
    text = page.page(recording, fleet, comparisons, simulated.executions.mean(axis=0).tolist())
    (target / "live.md").write_text(text, encoding="utf-8")
    console.print(page.summary(comparisons), markup=False, highlight=False)
    say(f"written: {target / 'live.md'}, {target / 'live.png'}")
    sys.exit(0 if page.met(comparisons) else 1)


if __name__ == "__main__":
    main(prog_name="python -m experiments.live_fidelity")
