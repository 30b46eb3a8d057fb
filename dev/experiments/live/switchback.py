"""The page: what was run, what each policy did, measured beside predicted, and what to make of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from experiments.live_switchback.design import DESIGN
from experiments.live_switchback.figures import IN_TIME, RESAMPLES, Pair
from experiments.live_switchback.report import Report
from simulator.scoreboard.statistics import Estimate
from tools.demo import traffic
from tools.load.display import milliseconds, share

SEEDS = 32


def page(report: Report) -> str:
    """The page, as Markdown."""
    recording = report.recording
    session, seconds = recording.session, recording.session.turns()[-1].end_s
    gpus = ", ".join(profile.device for profile in recording.profiles.values())
    return f"""<!-- Written by python -m experiments.live_switchback -->
# The policy {report.subject} on the live stack, in a switchback

Real Envoy, the balancer and {len(recording.profiles)} real Tritons. Their GPUs are **emulated** ({gpus}): a model
sleeps for what it was measured to take on such a GPU, one execution at a time. For {seconds / 60:.1f} minutes,
{len(recording.live):,} requests in bursts, {session.rate_per_s:g} a second in the mean, to models with deadlines:
{_mix()}. {_sessions(report)}
Measured {_when(report)} on {os.cpu_count()} cores. Again, on a machine that has nothing else to do:
`{_command(report)}`.

{_problems(report)}{summary(report)}

{_policies(report)}

In brackets: measured, the 95% interval, from {RESAMPLES:,} resamples of whole blocks; predicted, the range of 90% of
{len(report.simulated)} simulated runs under these very arrivals.
{_inside(report)}

![Tails, and {report.subject} against the others](switchback.png)

## Within each model

{_models(report)}

## Who served

Share of the requests by worker, measured / predicted; in brackets the worker's weight.

{_shares(report)}

## How it was run

- **Windows.** {session.rounds} blocks; in each, one window for each of {_listed(session.policies)}, in an order
  drawn for the block (seed {session.seed}), so that what drifts over minutes hits all alike. The policy is swapped by
  editing the config file while requests flow; the slowest swap was in force
  {milliseconds(max(recording.swaps_s))} ms after the file was written. {_left_out(report)}
- **Who decided.** {_own(report)}
- **Arrivals.** All windows of a block have the same requests at the same times{_names(report)}, so a ratio compares
  like with like.
- **Latency** is from the scheduled start of a request to its answer, as the unmodified tritonclient sees it. In time:
  within its model's deadline; a request that fails is not.
- **Weights.** {_weights(report)}
- **Intervals** draw whole blocks, the same for all policies. With {session.rounds} blocks they are somewhat too
  narrow, those of p99 above all: it rests on what a few bursts left waiting.
- **Prediction.** The simulator plays the same requests with the same swaps in one run. It was told service times
  (`balancer profile` of each Triton), batching (`config.pbtxt`) and what a request takes beside its execution, measured
  before and after the run with requests that do not wait; nothing was fitted to the latencies above. How well that
  holds in general: [fidelity](../fidelity/live.md).
- **Not shown.** One machine carries client, Envoy, balancer and Tritons; emulated GPUs know no memory, no clocks and no
  heat. This compares policies; the milliseconds are this machine's.
"""


def summary(report: Report) -> str:
    """The last policy against the others, in Markdown."""
    lines = [
        ["ratio of latencies, difference of shares", "", "measured", "predicted", f"{report.subject} is"],
        ["---", "---", "---:", "---:", "---"],
    ]
    for reference, pairs in report.whole.ratios.items():
        for pair in pairs:
            sign = "-" if pair.figure == IN_TIME else "/"
            cells = [pair.figure, _compared(pair, pair.measured), _compared(pair, pair.predicted), _verdict(pair)]
            lines.append([f"{report.subject} {sign} {reference}", *cells])
    return _markdown(lines)


def _verdict(pair: Pair) -> str:
    even = 0.0 if pair.figure == IN_TIME else 1.0
    if not pair.measured.excludes(even):
        return "not told apart"
    return "better" if (pair.measured.value > even) == (pair.figure == IN_TIME) else "**worse**"


def _compared(pair: Pair, of: Estimate) -> str:
    """A ratio, or for shares a difference in percentage points."""
    if pair.figure == IN_TIME:
        return f"{of.value * 100:+.2f} [{of.low * 100:+.2f}, {of.high * 100:+.2f}] points"
    return f"{of.value:.3f} [{of.low:.3f}, {of.high:.3f}]"


def _figure(pair: Pair, of: Estimate) -> str:
    show = share if pair.figure == IN_TIME else milliseconds
    return f"{show(of.value)} [{show(of.low)}, {show(of.high)}]"


def _name(figure: str) -> str:
    return figure if figure == IN_TIME else f"{figure} ms"


def _policies(report: Report) -> str:
    names = [_name(pair.figure) for pair in next(iter(report.whole.policies.values()))]
    lines = [["policy", "", *names], ["---", "---", *["---:"] * len(names)]]
    for policy, pairs in report.whole.policies.items():
        lines.append([policy, "measured", *(_figure(pair, pair.measured) for pair in pairs)])
        lines.append(["", "predicted", *(_figure(pair, pair.predicted) for pair in pairs)])
    return _markdown(lines)


def _models(report: Report) -> str:
    lines = [["model", "policy", *_MODEL_HEAD], ["---", "---", *["---:"] * len(_MODEL_HEAD)]]
    for model, found in report.models.items():
        for policy, pairs in found.policies.items():
            by_name = {pair.figure: pair for pair in pairs}
            p99, in_time = by_name["p99"], by_name[IN_TIME]
            cells = [_figure(pair, of) for pair in (p99, in_time) for of in (pair.measured, pair.predicted)]
            lines.append([model, policy, *cells])
    return _markdown(lines)


_MODEL_HEAD = ("p99 ms measured", "predicted", "in time measured", "predicted")


def _shares(report: Report) -> str:
    weights, profiles = report.recording.weights, report.recording.profiles
    head = ["policy", *(f"{name} {profiles[name].device} ({weights[name]:g})" for name in profiles)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for policy, shares in report.shares.items():
        both = zip(shares.measured, shares.predicted, strict=True)
        lines.append([policy, *(f"{measured:.0%} / {predicted:.0%}" for measured, predicted in both)])
    return _markdown(lines)


def _inside(report: Report) -> str:
    tables = {"figures": report.whole.policies, "ratios and differences": report.whole.ratios}
    counts = []
    for name, table in tables.items():
        pairs = [pair for row in table.values() for pair in row]
        counts.append(f"{sum(pair.inside for pair in pairs)} of {len(pairs)} {name}")
    return f"The prediction lies within the measured interval for {' and '.join(counts)}."


def _left_out(report: Report) -> str:
    session = report.recording.session
    return (
        f"The first {session.settle_s:g} s of a window are left out, for the queues and estimates that the policy "
        f"before left behind; {session.window_s:g} s count."
    )


def _own(report: Report) -> str:
    shares = ", ".join(f"{policy} {share:.1%}" for policy, share in report.own_decisions().items())
    return (
        f"Each policy itself, of the requests in its windows: {shares}. A trained policy is watched by its guard, "
        "which gives some short windows to `expected_latency` to compare, as in production. Those count here as the "
        "trained policy's; the simulation has no guard."
    )


def _weights(report: Report) -> str:
    if set(report.recording.weights.values()) == {1.0}:
        return "All workers weigh 1, so `wlpr` knows nothing of their speed."
    return (
        "Each worker's, in the list of workers, is what its GPU was measured to do of this traffic: `wlpr` gets the "
        "weights of an operator who measured."
    )


def _mix() -> str:
    return ", ".join(f"{mix.name} {mix.weight:.0%} ({milliseconds(mix.deadline_s)} ms)" for mix in traffic.MIX)


def _sessions(report: Report) -> str:
    session = report.recording.session
    if not session.sessions:
        return "No request has a key."
    return (
        f"Each model has {session.sessions} sessions at any moment, of {session.session_requests:g} requests in the "
        f"mean, which share a key. Each emulated GPU remembers {session.cache_keys:,} keys, and a request whose key it "
        f"has seen takes {session.cache_saving:.0%} less: a stand-in for a prefix cache, by the simulator's law. "
        "Policies place keys (`sticky_keys: false`); `wlpr` knows nothing of them."
    )


def _problems(report: Report) -> str:
    return "".join(f"**{problem}.**\n\n" for problem in report.problems())


def _names(report: Report) -> str:
    return ", their sessions under new names" if report.recording.session.sessions else ""


def _when(report: Report) -> str:
    return next(iter(report.recording.profiles.values())).measured_at.partition("T")[0]


def _command(report: Report) -> str:
    """What repeats this run."""
    session = report.recording.session
    if session == DESIGN and set(report.recording.weights.values()) != {1.0}:
        return "make switchback"
    policies = " ".join(f"--policy {policy}" for policy in session.policies)
    equal = " --equal-weights" if set(report.recording.weights.values()) == {1.0} else ""
    return (
        f"python -m experiments.live_switchback {policies} --blocks {session.rounds} --window-s {session.window_s:g} "
        f"--settle-s {session.settle_s:g} --rate {session.rate_per_s:g} --sessions {session.sessions} "
        f"--seed {session.seed}{equal}"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
