"""The page: who was fast, by how much, and how close the simulator came."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dev.experiments.served.candidates import CANDIDATES, OURS
from dev.experiments.served.record import SIMULATED_SEEDS, Played, one_balancer, overhead
from policies.base import FloatArray
from simulator.compare import text
from simulator.compare.statistics import CONFIDENCE, RESAMPLES, Estimate

AIM = 0.8
"""Of the time to first token over each peer's, mean and p99."""
FIDELITY = {"p50": 0.10, "p99": 0.15}
"""Largest errors."""
_BLOCK_S = 5.0
"""Requests of so many seconds are drawn together."""
_FIRST_TOKEN = f"{OURS}, ttft_weight 1"


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    whole: bool
    of: Callable[[FloatArray], float]

    def __call__(self, played: Played, candidate: str, chosen: slice | FloatArray = slice(None)) -> float:
        live = played.live[candidate]
        return self.of((live.whole_s if self.whole else live.first_s)[chosen])


def _quantile(level: float) -> Callable[[FloatArray], float]:
    return lambda seconds: float(np.nanquantile(seconds, level))


def _mean(seconds: FloatArray) -> float:
    return float(np.nanmean(seconds))


FIGURES = (
    Figure("first token, mean", False, _mean),
    Figure("p99", False, _quantile(0.99)),
    Figure("whole answer, mean", True, _mean),
    Figure("p99 of it", True, _quantile(0.99)),
)
_MEASURED = {
    "first token, p50": (False, "p50", _quantile(0.5)),
    "first token, p99": (False, "p99", _quantile(0.99)),
    "whole answer, p50": (True, "p50", _quantile(0.5)),
    "whole answer, p99": (True, "p99", _quantile(0.99)),
}
PEERS = tuple(each.name for each in CANDIDATES if each.peer)


@functools.cache
def ratio(played: Played, ours: str, theirs: str, figure: Figure) -> Estimate:
    """Ours over theirs; the interval by drawing blocks of requests, the same of both."""
    block = (played.arrivals.time_s // _BLOCK_S).astype(np.int64)
    places = [np.flatnonzero(block == number) for number in range(int(block.max()) + 1)]
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([places[number] for number in generator.integers(len(places), size=len(places))])
        drawn.append(figure(played, ours, chosen) / figure(played, theirs, chosen))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(figure(played, ours) / figure(played, theirs), float(low), float(high))


def errors(played: Played) -> dict[str, dict[str, Estimate]]:
    """Of each of our policies, each figure: simulated over live, less 1; the median seed, and the range of all."""
    found: dict[str, dict[str, Estimate]] = {}
    for name, (first_s, whole_s) in played.simulated.items():
        live = played.live[name]
        found[name] = {}
        for title, (whole, _, of) in _MEASURED.items():
            simulated = np.array([of(seed) for seed in (whole_s if whole else first_s)])
            error = simulated / of(live.whole_s if whole else live.first_s) - 1
            found[name][title] = Estimate(float(np.median(error)), float(error.min()), float(error.max()))
    return found


def problems(played: Sequence[Played]) -> list[str]:
    """Where an aim is missed."""
    found = []
    for each in played:
        for peer in PEERS:
            for figure in FIGURES[:2]:
                value = ratio(each, OURS, peer, figure).value
                if not value <= AIM:
                    found.append(f"{each.scenario}: {figure.name} is {value:.2f} of that of {peer}")
        for name, figures in errors(each).items():
            for title, error in figures.items():
                if not abs(error.value) <= FIDELITY[_MEASURED[title][1]]:
                    found.append(f"{each.scenario}: {name}, {title}: simulated {_signed(error)}")
    return found


def page(played: Sequence[Played]) -> str:
    missed = problems(played)
    parts = [
        "<!-- Written by python -m dev.experiments.served -->",
        "# Language models, live: routers before the same servers",
        "Emulated language models (no GPU computes; each step takes the seconds of a real one) serve the same prompts "
        "at the same times through Envoy with this balancer (`native`; one, whatever the scenario has), and through "
        "SGLang's routers with their defaults. Each begins with empty caches and nothing learned. "
        f"On {os.cpu_count()} cores, which client, servers and router share. Again: "
        "`python -m dev.experiments.served --page docs/fidelity`, on a machine that has nothing else to do.",
        _verdict(missed),
        *(_scenario(each) for each in played),
        "![First tokens, live and simulated](served.png)",
        "## How",
        _how(played),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(missed: Sequence[str]) -> str:
    aims = (
        f"The aims: time to first token of `{OURS}` at most {AIM:g} of each peer's, mean and p99; the simulator within "
        f"{FIDELITY['p50']:.0%} of the stack in p50, {FIDELITY['p99']:.0%} in p99."
    )
    if not missed:
        return f"{aims} All are met."
    return f"{aims} Missed:\n\n" + "\n".join(f"- {each}" for each in missed)


def _scenario(played: Played) -> str:
    scenario, _ = one_balancer(played.scenario, 1)
    lines = []
    for name, live in played.live.items():
        seconds = [f"{figure(played, name):.3g}" for figure in FIGURES]
        lines.append([name, *seconds, text.share(live.cached), str(len(live.errors))])
    head = ["seconds", *(figure.name for figure in FIGURES), "prompts cached", "failed"]
    ratios = []
    for ours in (OURS, _FIRST_TOKEN):
        for peer in PEERS:
            found = [ratio(played, ours, peer, figure) for figure in FIGURES]
            shown = [f"{each.value:.2f} ({each.low:.2f} to {each.high:.2f})" for each in found]
            ratios.append([ours, peer, *shown])
    return "\n\n".join(
        [
            f"## {scenario.summary}",
            f"Scenario `{played.scenario}`, its first {len(played.arrivals):,} requests, in "
            f"{played.arrivals.time_s[-1]:.0f} s.",
            text.markdown(head, lines),
            text.markdown(["", "over", *(figure.name for figure in FIGURES)], ratios, words=2),
        ]
    )


def fidelity_csv(played: Sequence[Played]) -> str:
    """How far the simulator is from the stack: simulated over live, less 1."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["scenario", "policy", "figure", "simulated over live less 1", "least", "most"])
    for each in played:
        for name, figures in errors(each).items():
            for title, error in figures.items():
                writer.writerow([each.scenario, name, title, *(f"{value:.2f}" for value in dataclasses.astuple(error))])
    return lines.getvalue()


def _signed(error: Estimate) -> str:
    return f"{error.value:+.0%} ({error.low:+.0%} to {error.high:+.0%})"


def _how(played: Sequence[Played]) -> str:
    lasting_ms = [f"{overhead(one_balancer(each.scenario, 1)[0], each.live) * 1e3:.1f}" for each in played]
    late_ms = max(live.late_s for each in played for live in each.live.values()) * 1e3
    return (
        "- Seconds count from when a request was to be sent; the client was at most "
        f"{late_ms:.0f} ms late. In brackets: {CONFIDENCE:.0%} intervals, from {RESAMPLES:,} draws of blocks of "
        f"{_BLOCK_S:g} s, of one run each.\n"
        "- The servers batch by the simulator's reference (`dev/emulated_llm/batch.py`), not by its engine, and tell "
        "their state by vLLM's metrics. A text is of hashes, 4 bytes a token; equal blocks have equal texts.\n"
        f"- Simulated: the median of {SIMULATED_SEEDS} seeds of ties, and their range, on equal requests. Told of "
        "the live run is only what a request takes beside its step until the first token, measured of requests alone, "
        f"{' and '.join(lasting_ms)} ms. [How far it is from live](served.csv).\n"
        "- Nothing is tuned, neither ours nor theirs."
    )
