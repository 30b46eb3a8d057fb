"""The committed page: what was compared, how close it came, and what differs and why."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from balancer.load.result import milliseconds
from dev.experiments.live.figures import Pair
from dev.experiments.live.report import SEEDS, Report
from dev.experiments.live.switchback import figure
from simulator.compare.text import markdown

AIMS = {"p50": 0.10, "p99": 0.20}
"""Largest median error."""


class Order(NamedTuple):
    """Two policies whose live intervals of one figure do not overlap."""

    figure: str
    faster: str
    """Live."""
    slower: str
    agrees: bool


def _of(report: Report, name: str) -> dict[str, Pair]:
    pairs = report.whole.policies.items()
    return {policy: next(pair for pair in found if pair.figure == name) for policy, found in pairs}


def median_error(report: Report, name: str) -> float:
    """Median over policies of the absolute relative error of one figure."""
    return float(np.median([abs(pair.error) for pair in _of(report, name).values()]))


def orders(report: Report) -> list[Order]:
    """The pairs of policies that the live session tells apart, by each figure that is aimed at."""
    found = []
    for name in AIMS:
        by_value = sorted(_of(report, name).items(), key=lambda item: item[1].measured.value)
        for (fast, faster), (slow, slower) in combinations(by_value, 2):
            if faster.measured.high < slower.measured.low:
                found.append(Order(name, fast, slow, faster.predicted.value < slower.predicted.value))
    return found


def page(report: Report) -> str:
    recording, session = report.recording, report.recording.session
    return f"""<!-- Written by python -m dev.experiments.live fidelity -->
# The simulator against the live stack

The same {len(recording.live):,} requests, at the same times, went through `make demo`'s Envoy, balancer and four
Tritons with emulated GPUs, and through the simulator: {len(session.policies)} policies, {session.rounds} turns each of
{session.window_s:g} s, {session.rate_per_s:g} requests a second in the demo's bursts. Measured {report.when} on
{os.cpu_count()} cores. Again: `make fidelity`, on a machine that has nothing else to do.

{summary(report)}

{_table(report)}

![Tails and quantiles, live and simulated](live.png)

Live: 95% interval in brackets, from a bootstrap of half-second blocks. Simulated: median over {SEEDS} seeds, with the
range of 90% of them. [live.json](live.json) has p95 too, who served, the errors within each model, and executions.

## How the simulator was told

Nothing was fitted to the latencies above. The parts were measured one by one, on the same stack, before the session
and, for the overhead, also after it:

{_calibration(report)}

The session is simulated as one run: policies are swapped at the same requests, and each begins with what the
estimators learned under the others, as live.

## What differs, and why

- **Batches.** Triton gathers up to two batches ahead of a free instance; the simulator forms a batch when the instance
  is free. Executions, live / simulated: {_executions(report)}.
- **CPU.** Client, Envoy, balancer, agents and Tritons share {os.cpu_count()} cores. Where they wait for each other,
  many requests are late together; the simulator's jitter is independent from request to request.
- **The lock that is the GPU** goes to whichever of a worker's models the kernel wakes first; in the simulator they
  wait in order.
- **Statistics by batch size** are read from Triton up to 50 times a second; the simulator's reports carry them each
  time.
- **wlpr** is left out: with one weight for all workers, as in the demo, it is least_requests over again.
"""


def summary(report: Report) -> str:
    lines = []
    for name, aim in AIMS.items():
        error = median_error(report, name)
        lines.append([f"median error of {name} at most {aim:.0%}", f"{error:.1%}", _yes(error <= aim)])
    found = orders(report)
    agree = sum(each.agrees for each in found)
    same = "same order wherever live intervals do not overlap"
    lines.append([same, f"{agree} of {len(found)} pairs", _yes(agree == len(found))])
    wrong = [f"{each.figure}: live {each.faster} before {each.slower}" for each in found if not each.agrees]
    disagree = ["", "In another order: " + "; ".join(wrong) + "."] if wrong else []
    return "\n".join([markdown(["aim", "found", "met"], lines), *disagree])


def met(report: Report) -> bool:
    errors = all(median_error(report, name) <= aim for name, aim in AIMS.items())
    return errors and all(each.agrees for each in orders(report))


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _table(report: Report) -> str:
    head = ["policy", "mean ms live", "simulated"]
    head += [f"{name} ms {of}" for name in AIMS for of in ("live", "simulated", "error")]
    lines = []
    for policy, mean in _of(report, "mean").items():
        cells = [milliseconds(mean.measured.value), milliseconds(mean.predicted.value)]
        for name in AIMS:
            pair = _of(report, name)[policy]
            cells += [figure(pair, pair.measured), figure(pair, pair.predicted), f"{pair.error:+.1%}"]
        lines.append([policy, *cells])
    return markdown(head, lines)


def as_json(report: Report) -> dict[str, Any]:
    """All of the comparison; times in seconds, errors and shares of 1, workers in the order of `workers`."""
    recording = report.recording
    return {
        "requests": len(recording.live),
        "workers": {name: profile.device for name, profile in recording.profiles.items()},
        "executions": {"live": _live_executions(report), "simulated": _rounded(report.executions)},
        "policies": {
            policy: {
                pair.figure: {"live": asdict(pair.measured), "simulated": asdict(pair.predicted), "error": pair.error}
                for pair in pairs
            }
            | {
                "share_by_worker": {
                    "live": _rounded(report.shares[policy].measured),
                    "simulated": _rounded(report.shares[policy].predicted),
                },
                "errors_within_models": {
                    model: {pair.figure: pair.error for pair in found.policies[policy]}
                    for model, found in report.models.items()
                },
            }
            for policy, pairs in report.whole.policies.items()
        },
    }


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 4) for value in values]


def _calibration(report: Report) -> str:
    network, reports, recording = report.fleet.network, report.fleet.reports, report.recording
    noise = ", ".join(f"{model.name} {model.noise.cv:.1%}" for model in report.fleet.models)
    fixed_s = network.to_worker_s + network.to_client_s
    return f"""- service times by model, GPU and batch size: `balancer profile` of each Triton (a real sleep lasts a
  little longer than the table says), with their coefficient of variation ({noise});
- batching and instances: `config.pbtxt`; one execution at a time on a GPU, as the emulation has it;
- what a request takes beside that: {len(recording.easy):,} requests at the session's rate, but of one row and to a
  model so fast that none waits for another: {milliseconds(fixed_s)} ms, and an exponential of mean
  {milliseconds(network.jitter_s)} ms on top;
- reports every {milliseconds(reports.period_s)} ms, {milliseconds(reports.delay_s)} ms old on arrival; outcomes after
  {milliseconds(network.outcome_s)} ms, half an interval of Envoy's log and the way."""


def _executions(report: Report) -> str:
    both = zip(report.recording.profiles.values(), _live_executions(report), report.executions, strict=True)
    return ", ".join(f"{profile.device} {count:,} / {mean:,.0f}" for profile, count, mean in both)


def _live_executions(report: Report) -> list[int]:
    batches = report.recording.batches.values()
    return [sum(sum(sizes.values()) for sizes in models.values()) for models in batches]
