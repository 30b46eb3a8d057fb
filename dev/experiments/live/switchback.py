"""The page: what was run, what each policy did, measured beside predicted, and what to make of it."""

import os
from collections.abc import Sequence
from dataclasses import replace

from balancer.load.result import milliseconds, share
from dev.demo import steps
from dev.experiments.live.figures import IN_TIME, RESAMPLES, Pair
from dev.experiments.live.report import Report
from dev.experiments.live.session import QUICK, SWITCHBACK, Session
from policies.learned import Learned
from simulator.compare.statistics import Estimate
from simulator.compare.text import markdown


def page(report: Report) -> str:
    recording = report.recording
    session, seconds = recording.session, recording.session.turns()[-1].end_s
    gpus = ", ".join(profile.device for profile in recording.profiles.values())
    return f"""<!-- Written by python -m dev.experiments.live switchback -->
# The policy {report.subject} on the live stack, in a switchback

Real Envoy, the balancer and {len(recording.profiles)} real Tritons. Their GPUs are **emulated** ({gpus}): a model
sleeps for what it was measured to take on such a GPU, one execution at a time. For {seconds / 60:.1f} minutes,
{len(recording.live):,} requests in bursts, {session.rate_per_s:g} a second in the mean, to models with deadlines:
{_mix()}. Each model has {session.sessions} sessions at any moment, of {session.session_requests:g} requests in the
mean, which share a key. Each emulated GPU remembers {session.cache_keys:,} keys, and a request whose key it has seen
takes {session.cache_saving:.0%} less: a stand-in for a prefix cache, by the simulator's law. Policies place keys
(`sticky_keys: false`); `wlpr` knows nothing of them.
Measured {report.when} on {os.cpu_count()} cores. Again, on a machine that has nothing else to do:
`{_command(report)}`.

{_problems(report)}{summary(report)}

{_policies(report)}

In brackets: measured, the 95% interval, from {RESAMPLES:,} resamples of whole blocks; predicted, the range of 90% of
{len(report.simulated)} simulated runs under these very arrivals.
{_inside(report)}

![Tails, and {report.subject} against the others](switchback.png)

[results.json](results.json) has p50 and p95 too, the same within each model, and who served.

## How it was run

- **Windows.** {session.rounds} blocks; in each, one window for each of {_listed(session.policies)}, in an order
  drawn for the block, under the same requests at the same times, their sessions under new names. The policy is swapped
  by editing the config file while requests flow. The first {session.settle_s:g} s of a window are left out, for what
  the policy before left behind; {session.window_s:g} s count.
{_training(session)}- **Who decided.** {_own(report)}
- **Latency** is from the scheduled start of a request to its answer, as the unmodified tritonclient sees it. In time:
  within its model's deadline; a request that fails is not.
- **Weights.** Each worker's is what its GPU was measured to do of this traffic: `wlpr` gets the weights of an operator
  who measured.
- **Intervals** draw whole blocks. With {session.rounds} blocks they are somewhat too narrow, those of p99 above all.
- **Prediction.** The simulator plays the same requests with the same swaps. Nothing was fitted to the latencies above
  ([how it is told](../fidelity/live.md)).
- **Not shown.** One machine carries client, Envoy, balancer and Tritons; emulated GPUs know no memory, no clocks and no
  heat. This compares policies; the milliseconds are this machine's.
"""


def summary(report: Report) -> str:
    head = ["ratio of latencies, difference of shares", "", "measured", "predicted", f"{report.subject} is"]
    lines = []
    for reference, pairs in report.whole.ratios.items():
        for pair in _shown(pairs):
            sign = "-" if pair.figure == IN_TIME else "/"
            cells = [pair.figure, _compared(pair, pair.measured), _compared(pair, pair.predicted), _verdict(pair)]
            lines.append([f"{report.subject} {sign} {reference}", *cells])
    return markdown(head, lines, words=2)


def _shown(pairs: Sequence[Pair]) -> list[Pair]:
    """The figures that the page has; results.json has all."""
    return [pair for pair in pairs if pair.figure in ("mean", "p99", IN_TIME)]


def _verdict(pair: Pair) -> str:
    even = 0.0 if pair.figure == IN_TIME else 1.0
    if not pair.measured.excludes(even):
        return "not told apart"
    return "better" if (pair.measured.value > even) == (pair.figure == IN_TIME) else "**worse**"


def _compared(pair: Pair, of: Estimate) -> str:
    if pair.figure == IN_TIME:
        return f"{of.value * 100:+.2f} [{of.low * 100:+.2f}, {of.high * 100:+.2f}] points"
    return f"{of.value:.3f} [{of.low:.3f}, {of.high:.3f}]"


def figure(pair: Pair, of: Estimate) -> str:
    show = share if pair.figure == IN_TIME else milliseconds
    return f"{show(of.value)} [{show(of.low)}, {show(of.high)}]"


def _name(figure: str) -> str:
    return figure if figure == IN_TIME else f"{figure} ms"


def _policies(report: Report) -> str:
    names = [_name(pair.figure) for pair in _shown(next(iter(report.whole.policies.values())))]
    lines = []
    for policy, pairs in report.whole.policies.items():
        lines.append([policy, "measured", *(figure(pair, pair.measured) for pair in _shown(pairs))])
        lines.append(["", "predicted", *(figure(pair, pair.predicted) for pair in _shown(pairs))])
    return markdown(["policy", "", *names], lines, words=2)


def _inside(report: Report) -> str:
    tables = {"figures": report.whole.policies, "ratios and differences": report.whole.ratios}
    counts = []
    for name, table in tables.items():
        pairs = [pair for row in table.values() for pair in row]
        counts.append(f"{sum(pair.inside for pair in pairs)} of {len(pairs)} {name}")
    return f"The prediction lies within the measured interval for {' and '.join(counts)}."


def _own(report: Report) -> str:
    shares = ", ".join(f"{policy} {share:.1%}" for policy, share in report.own_decisions().items())
    return (
        f"Each policy itself, of the requests in its windows: {shares}. A trained policy's guard gives some short "
        "windows to `expected_latency` to compare; they count as the trained policy's."
    )


def _training(session: Session) -> str:
    if not session.logged_rounds:
        return ""
    logged = session.logged
    return (
        f"- **Training.** Before, {len(logged.workload()):,} other requests came for {logged.turns()[-1].end_s:.0f} s, "
        "which `expected_latency`\n  decided and the stack recorded; `balancer train --from-log` made `learned` of it, "
        "by the times that were measured\n  of each GPU (`--profile`), whether the fleet made of it is a twin or not "
        "(`--unchecked`).\n"
    )


def _mix() -> str:
    return ", ".join(f"{mix.name} {mix.weight:.0%} ({milliseconds(mix.deadline_s)} ms)" for mix in steps.MIX)


def _problems(report: Report) -> str:
    return "".join(f"**{problem}.**\n\n" for problem in report.problems())


def _command(report: Report) -> str:
    session = report.recording.session
    named = tuple(name for name in session.policies if name != Learned.name)
    if replace(session, policies=named, learned="", logged_rounds=0) == SWITCHBACK and session.learned:
        return "make switchback" if session.logged_rounds else f"make switchback FILE={session.learned}"
    quick = " --quick" if session.rounds == QUICK.rounds else ""
    learned = " --train" if session.logged_rounds else session.learned and f" --learned {session.learned}"
    return f"python -m dev.experiments.live switchback{quick}{''.join(f' --policy {name}' for name in named)}{learned}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
