"""The committed page: what was compared, how close it came, and what differs and why."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from experiments.live_fidelity.compare import LEVELS, Comparison, Figure, median_error, pairs
from experiments.live_fidelity.live import Recording
from simulator.spec import FleetSpec
from tools.load.display import milliseconds

AIMS = {"p50": 0.10, "p99": 0.20}
"""Largest median error."""
SEEDS = 32


def page(recording: Recording, fleet: FleetSpec, comparisons: Sequence[Comparison], executions: Sequence[float]) -> str:
    """The page, as Markdown; `executions` are the simulated ones of each worker, mean over seeds."""
    session = recording.session
    return f"""<!-- Written by python -m experiments.live_fidelity -->
# The simulator against the live stack

The same {len(recording.live):,} requests, at the same times, went through `make demo`'s Envoy, balancer and four
Tritons with emulated GPUs, and through the simulator: {len(session.policies)} policies, {session.rounds} turns each of
{session.window_s:g} s, {session.rate_per_s:g} requests a second in the demo's bursts. Measured {_when(recording)} on
{os.cpu_count()} cores. Again: `make fidelity`, on a machine that has nothing else to do.

{summary(comparisons)}

{_table(comparisons)}

![Tails and quantiles, live and simulated](live.png)

Live: 95% interval in brackets, from a bootstrap of half-second blocks. Simulated: median over {SEEDS} seeds; in
brackets the range of 90% of them, which is what the draws alone (service noise, jitter, the policies' own) change under
these arrivals. Share of the requests by worker, live / simulated:

{_shares(recording, comparisons)}

Errors among the requests to each model, p50 / p99. They rest on fewer requests: the tail of a model is what a few
bursts left waiting at the T4.

{_within(comparisons)}

## How the simulator was told

Nothing was fitted to the latencies above. The parts were measured one by one, on the same stack, before the session
and, for the overhead, also after it:

{_calibration(recording, fleet)}

The session is simulated as one run from its first request to its last: policies are swapped at the same requests, and
each begins with what the estimators learned under the others, as live.

## What differs, and why

- **Batches.** Executions in the session, live / simulated: {_executions(recording, executions)}.
  Triton gathers up to two batches ahead of a free instance, which grow and are merged until it takes them; the
  simulator forms a batch when the instance is free. The counts say how little that matters here.
- **CPU.** Client, Envoy, balancer, agents and Tritons share {os.cpu_count()} cores. Where they wait for each other,
  many requests are late together; the simulator's jitter is independent from request to request. Late in being sent
  alone: 1% of the requests by more than {milliseconds(_lateness_s(recording, 0.99))} ms, one by
  {milliseconds(_lateness_s(recording, 1.0))} ms. What the overhead was before and after the session need not be what
  it is in between: the simulated p50 less the live one is {_shift_s(comparisons) * 1e3:+.1f} ms, mean over policies.
- **The lock that is the GPU** goes to whichever of a worker's models the kernel wakes first; in the simulator they
  wait in order.
- **Statistics by batch size** are read from Triton up to 50 times a second, for a twentieth of the time at most; the
  simulator's reports carry them each time.
- **wlpr** is left out: with one weight for all workers, as in the demo, it is least_requests over again.
"""


def _when(recording: Recording) -> str:
    return next(iter(recording.profiles.values())).measured_at.partition("T")[0]


def summary(comparisons: Sequence[Comparison]) -> str:
    """The aims, and whether they are met, in Markdown."""
    lines = ["| aim | found | met |", "|---|---:|---|"]
    for name, aim in AIMS.items():
        error = median_error(comparisons, name)
        lines.append(f"| median error of {name} at most {aim:.0%} | {error:.1%} | {_yes(error <= aim)} |")
    told_apart = [pair for name in AIMS for pair in pairs(comparisons, name)]
    agree = sum(pair.agrees for pair in told_apart)
    lines.append(
        f"| same order wherever live intervals do not overlap | {agree} of {len(told_apart)} pairs "
        f"| {_yes(agree == len(told_apart))} |"
    )
    wrong = [f"{p.figure}: live {p.faster} before {p.slower}" for p in told_apart if not p.agrees]
    return "\n".join([*lines, *(["", "In another order: " + "; ".join(wrong) + "."] if wrong else [])])


def met(comparisons: Sequence[Comparison]) -> bool:
    """Whether all aims are."""
    errors = all(median_error(comparisons, name) <= aim for name, aim in AIMS.items())
    return errors and all(pair.agrees for name in AIMS for pair in pairs(comparisons, name))


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _table(comparisons: Sequence[Comparison]) -> str:
    head = ["policy", "mean ms live", "simulated", *(f"{name} ms {of}" for name in LEVELS for of in _COLUMNS)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for one in comparisons:
        figures = [cell for figure in one.figures.values() for cell in _cells(figure)]
        lines.append([one.policy, milliseconds(one.live_mean_s), milliseconds(one.simulated_mean_s), *figures])
    return _markdown(lines)


_COLUMNS = ("live", "simulated", "error")


def _cells(figure: Figure) -> list[str]:
    ranges = ((figure.low_s, figure.high_s), (figure.simulated_low_s, figure.simulated_high_s))
    live, simulated = (f"[{milliseconds(low)}, {milliseconds(high)}]" for low, high in ranges)
    return [
        f"{milliseconds(figure.live_s)} {live}",
        f"{milliseconds(figure.simulated_s)} {simulated}",
        f"{figure.error:+.1%}",
    ]


def _shares(recording: Recording, comparisons: Sequence[Comparison]) -> str:
    head = ["policy", *(f"{name} {profile.device}" for name, profile in recording.profiles.items())]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for one in comparisons:
        both = zip(one.live_share, one.simulated_share, strict=True)
        lines.append([one.policy, *(f"{live:.0%} / {simulated:.0%}" for live, simulated in both)])
    return _markdown(lines)


def _within(comparisons: Sequence[Comparison]) -> str:
    models = list(comparisons[0].within)
    lines = [["policy", *models], ["---", *["---:"] * len(models)]]
    for one in comparisons:
        errors = (one.within[model] for model in models)
        lines.append([one.policy, *(" / ".join(f"{error[name]:+.0%}" for name in AIMS) for error in errors)])
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _calibration(recording: Recording, fleet: FleetSpec) -> str:
    network, reports = fleet.network, fleet.reports
    noise = ", ".join(f"{model.name} {model.noise.cv:.1%}" for model in fleet.models)
    fixed_s = network.to_worker_s + network.to_client_s
    return f"""- service times by model, GPU and batch size: `balancer profile` of each Triton (a real sleep lasts a
  little longer than the table says), with their coefficient of variation ({noise});
- batching and instances: `config.pbtxt`; one execution at a time on a GPU, as the emulation has it;
- what a request takes beside that: {len(recording.easy):,} requests at the session's rate, but of one row and to a
  model so fast that none waits for another: {milliseconds(fixed_s)} ms, and an exponential of mean
  {milliseconds(network.jitter_s)} ms on top;
- reports every {milliseconds(reports.period_s)} ms, {milliseconds(reports.delay_s)} ms old on arrival; outcomes after
  {milliseconds(network.outcome_s)} ms, half an interval of Envoy's log and the way."""


def _executions(recording: Recording, simulated: Sequence[float]) -> str:
    live = [sum(sum(sizes.values()) for sizes in models.values()) for models in recording.batches.values()]
    both = zip(recording.profiles.values(), live, simulated, strict=True)
    return ", ".join(f"{profile.device} {count:,} / {mean:,.0f}" for profile, count, mean in both)


def _lateness_s(recording: Recording, level: float) -> float:
    return float(np.quantile(recording.live.lateness_s, level))


def _shift_s(comparisons: Sequence[Comparison]) -> float:
    return float(np.mean([one.figures["p50"].simulated_s - one.figures["p50"].live_s for one in comparisons]))
