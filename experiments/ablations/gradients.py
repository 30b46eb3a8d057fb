"""How well each way of estimating the gradient does: its signal to noise ratio per second of computing.

At one policy, the one that training starts from, and for the coefficients `bias` of the cost terms alone: six numbers
that matter, and whose gradient both kinds of estimates have. Each estimate is a mean of independent samples (a pair of
episodes in PGPE, an episode elsewhere). Signal: the length of the mean; noise: the root of the summed variances of one
sample. The ratio grows with the root of the number of samples, so it is given for a second of one core:
signal / noise * sqrt(samples a second).

What is biased may have much signal: each line also has the cosine of its mean with that of PGPE, which has no discount
and whose objective is what one wants to know.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.ablations.pgpe import AblatedPgpe
from experiments.ablations.switches import Ablation
from policies.base import FloatArray
from policies.learned.network import Network
from simulator.training import collect
from simulator.training.actor import Actor, Critic
from simulator.training.arena import CostWeights, arena
from simulator.training.collect import Decisions, normalised, relative_cost
from simulator.training.pgpe import MOST_DIFFERENCE, Pgpe, PgpeSettings
from simulator.training.ppo import PpoSettings, advantages
from simulator.training.reinforce import returns_to_go
from simulator.training.scenarios import Randomised
from simulator.training.weights import scale_by_part

_SIDE_BY_SIDE = 32
_FIT_PASSES = 8
_NO_TRACE = 1e9


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is sampled."""

    pairs: int = 512
    """Of PGPE, for each line."""
    episodes: int = 256
    """Of single decisions; as many again to fit critics on."""
    requests: int = 1000
    seed: int = 0

    @staticmethod
    def within(decisions: int) -> Effort:
        """Less than usual where the budget of a variant is small."""
        few = max(8, decisions // 2000)
        usual = Effort()
        return Effort(min(usual.pairs, few), min(usual.episodes, few), min(usual.requests, max(50, decisions // 100)))


class Row(NamedTuple):
    """A way to estimate."""

    title: str
    ratio: float
    """Signal to noise of a second."""
    low: float
    """End of the 95% interval, by resampling samples."""
    high: float
    cosine: float
    """With PGPE's mean."""
    samples_per_s: float


def measure(draw: Randomised, effort: Effort) -> list[Row]:
    """All lines, PGPE's first."""
    rows: list[Row] = []
    reference = np.zeros(0)
    for title, ablation in {
        "PGPE: symmetric pairs on common random numbers": Ablation(),
        "the same without common random numbers": Ablation(common_random_numbers=False),
        "not symmetric: against the unperturbed policy": Ablation(symmetric=False),
        "neither symmetric nor on common random numbers": Ablation(symmetric=False, common_random_numbers=False),
    }.items():
        samples, seconds = _of_pgpe(draw, ablation, effort)
        reference = samples.mean(axis=0) if not rows else reference
        rows.append(_row(title, samples, seconds, reference))
    for title, (samples, seconds) in _of_decisions(draw, effort).items():
        rows.append(_row(title, samples, seconds, reference))
    return rows


def _of_pgpe(draw: Randomised, ablation: Ablation, effort: Effort) -> tuple[FloatArray, float]:
    # No regret: single decisions have no such thing, and the same is to be estimated.
    settings = PgpeSettings(
        coefficients_share=0.0,
        pairs=effort.pairs,
        requests=effort.requests,
        tasks=8,
        cost=CostWeights(regret=0.0),
    )
    algorithm = AblatedPgpe(settings, draw, effort.seed, ablation)
    tasks = algorithm.tasks()
    began_s = time.process_time()
    found = [algorithm.sampled(task) for task in tasks]
    seconds = time.process_time() - began_s
    chosen = scale_by_part(settings.hidden, {name: float(name == "bias") for name in Network._fields}) > 0
    noise, difference = (np.concatenate(parts) for parts in zip(*found, strict=True))
    difference = np.clip(difference, -MOST_DIFFERENCE, MOST_DIFFERENCE)
    return difference[:, None] * noise[:, chosen], seconds / len(difference)


class _Collected(NamedTuple):
    found: Decisions
    playing_s: float
    """Seconds an episode took."""
    expecting_s: float
    """Of it, for the control variate."""


def _collected(draw: Randomised, network: Network, effort: Effort, seed: int) -> _Collected:
    parts, playing_s, expecting_s = [], 0.0, 0.0
    for part in range(0, effort.episodes, _SIDE_BY_SIDE):
        count = min(_SIDE_BY_SIDE, effort.episodes - part)
        task = collect.Task(draw, network, count, effort.requests, 0.5, 0.5, (effort.seed, seed, part))
        generator, here = np.random.default_rng(task.seed), arena(draw, count, effort.requests)
        marks = [time.process_time()]
        episodes = [here.load(e, generator) for e in range(count)]
        marks.append(time.process_time())
        expected = collect.play_expected(here)
        collect.load(here, episodes)
        marks.append(time.process_time())
        parts.append(collect.decisions_of(*collect.play(here, network, expected), expected, task))
        marks.append(time.process_time())
        playing_s += marks[3] - marks[2] + marks[1] - marks[0]
        expecting_s += marks[2] - marks[1]
    return _Collected(collect.joined(parts), playing_s / effort.episodes, expecting_s / effort.episodes)


def _of_decisions(draw: Randomised, effort: Effort) -> dict[str, tuple[FloatArray, float]]:
    """By title: the gradient of each episode, `(e, 6)`, and the seconds that one takes."""
    start = Pgpe(PgpeSettings(), draw, effort.seed).network
    to_fit, (found, playing_s, expecting_s) = (_collected(draw, start, effort, seed) for seed in (1, 2))
    slopes = _slopes(start, found)
    estimates = {
        (horizon, variate): _critic_of(to_fit.found, horizon, variate)
        for horizon, variate in ((1.0, True), (5.0, True), (20.0, True), (5.0, False))
    }
    lines: dict[str, tuple[FloatArray, float]] = {}

    def line(title: str, horizon: float, variate: bool, critic: bool, trace: float, even: bool = False) -> None:
        began_s = time.process_time()
        cost = _cost(found, variate)
        if critic:
            estimate = _estimates(estimates[horizon, variate], found)
            settings = PpoSettings(horizon=horizon, trace=trace)
            weight, _ = advantages(cost, estimate, found.passed, found.taken, settings)
        else:
            weight = returns_to_go(cost, found.passed, found.taken, horizon)
            weight -= weight[found.taken].mean()
        if even:
            weight = normalised(weight, found.taken)
        samples = (np.where(found.taken, weight, 0.0)[..., None] * slopes).mean(axis=0)
        used_s = (time.process_time() - began_s) / effort.episodes
        lines[title] = samples, playing_s + used_s + expecting_s * variate

    line("single decisions, horizon 5: control variate, critic, GAE over 1", 5.0, True, True, 1.0)
    line("the same, and of equal spread in each episode, as PPO has it", 5.0, True, True, 1.0, even=True)
    line("control variate, critic, whole returns", 5.0, True, True, _NO_TRACE)
    line("critic, GAE over 1, no control variate", 5.0, False, True, 1.0)
    line("control variate, no critic (REINFORCE)", 5.0, True, False, _NO_TRACE)
    line("neither control variate nor critic", 5.0, False, False, _NO_TRACE)
    line("control variate, critic, GAE over 1; horizon 1", 1.0, True, True, 1.0)
    line("control variate, critic, GAE over 1; horizon 20", 20.0, True, True, 1.0)
    line("control variate, no critic; horizon 1", 1.0, True, False, _NO_TRACE)
    line("control variate, no critic; horizon 20", 20.0, True, False, _NO_TRACE)
    return lines


def _cost(found: Decisions, variate: bool) -> FloatArray:
    """What each decision cost, `(t, e)`, with the control variate or without."""
    return relative_cost(found if variate else found._replace(expected_cost=np.zeros_like(found.expected_cost)))


def _slopes(network: Network, found: Decisions) -> FloatArray:
    """The gradient of each decision's log probability by the coefficients `bias`, `(t, e, 6)`."""
    with torch.no_grad():
        actor, parts = Actor(network), []
        for t in range(len(found.taken)):
            columns = (found.features, found.terms, found.relative_cost, found.eligible)
            parts.append(actor(*(torch.from_numpy(column[t]) for column in columns)).exp().numpy())
    probabilities = np.nan_to_num(np.stack(parts))  # where nobody decided
    mean = np.einsum("...n,...nt->...t", probabilities, found.terms)
    picked = np.take_along_axis(found.terms, np.maximum(found.worker, 0)[..., None, None], axis=-2)[..., 0, :]
    slopes: FloatArray = float(network.beta) * (mean - picked).astype(np.float64)
    return slopes


def _critic_of(found: Decisions, horizon: float, variate: bool) -> Critic:
    """Fitted to returns; of other episodes than it is used on."""
    target = returns_to_go(_cost(found, variate), found.passed, found.taken, horizon)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        critic = Critic(PpoSettings().critic_hidden)
    optimiser = torch.optim.Adam(critic.parameters(), lr=2e-3)
    columns = [
        torch.from_numpy(column[found.taken]) for column in (found.features, found.queue, found.state, found.eligible)
    ]
    wanted = torch.from_numpy(target[found.taken].astype(np.float32))
    generator = np.random.default_rng(0)
    for _ in range(_FIT_PASSES):
        for chosen in torch.split(torch.from_numpy(generator.permutation(len(wanted))), 2048):
            loss = (critic(*(column[chosen] for column in columns)) - wanted[chosen]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return critic


def _estimates(critic: Critic, found: Decisions) -> FloatArray:
    columns = (found.features, found.queue, found.state, found.eligible)
    with torch.no_grad():
        rows = [critic(*(torch.from_numpy(column[t]) for column in columns)).numpy() for t in range(len(found.taken))]
    return np.stack(rows).astype(np.float64)


def signal_to_noise(samples: FloatArray) -> float:
    """Of one sample: length of the mean, without what of it is noise, by the root of the summed variances."""
    variance = float(samples.var(axis=0, ddof=1).sum())
    signal = float(np.square(samples.mean(axis=0)).sum()) - variance / len(samples)
    return float(np.sqrt(max(signal, 0.0) / max(variance, 1e-300)))


def _row(title: str, samples: FloatArray, seconds: float, reference: FloatArray) -> Row:
    """`seconds`: of one sample."""
    generator = np.random.default_rng(0)
    scale = 1 / np.sqrt(seconds)
    resampled = [signal_to_noise(samples[generator.integers(len(samples), size=len(samples))]) for _ in range(200)]
    low, high = np.quantile(resampled, [0.025, 0.975]) * scale
    mean = samples.mean(axis=0)
    lengths = max(float(np.linalg.norm(mean) * np.linalg.norm(reference)), 1e-300)
    cosine = float(mean @ reference) / lengths
    return Row(title, signal_to_noise(samples) * scale, float(low), float(high), cosine, 1 / seconds)


def as_json(rows: list[Row], effort: Effort) -> dict[str, Any]:
    """For the file."""
    return {"effort": dataclasses.asdict(effort), "rows": [row._asdict() for row in rows]}
