"""Is it better than `expected_latency`? On episodes that nobody trained on, with equal arrivals and seeds for both."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from policies.base import FloatArray, Policy
from policies.expected_latency import ExpectedLatency
from policies.learned import Learned
from policies.learned.artifact import make_artifact
from policies.learned.features import FEATURES
from policies.learned.network import Network
from policies.wlpr import WeightedLeastPending
from simulator.compare.metrics import WARM_UP_SHARE, counted_s
from simulator.compare.statistics import Estimate, ratio
from simulator.pool import TaskPool
from simulator.run import run
from simulator.scenario import Scenario
from simulator.spec import FleetSpec
from simulator.train.scenarios import random_scenario

VALIDATION_SEED = 1 << 31
"""The first seed of validation: training draws seeds below, so no episode is in both."""
REPORT_SEED = VALIDATION_SEED + (1 << 20)
"""The first seed of the scoreboard at the end, whose episodes chose nothing."""
RANDOM = "random"
"""Stands for the random scenarios, each of which is played once."""
TAIL_WEIGHT = 0.5
_TASKS = 4


class ValidationEpisode(NamedTuple):
    group: str
    scenario: Scenario
    seed: int
    rivals: FleetSpec | None = None
    """The fleet as others than the network have it; None: the scenario's."""

    def fleet(self, policy: Policy) -> FleetSpec:
        return self.scenario.fleet if self.rivals is None or isinstance(policy, Learned) else self.rivals


def cases(named: Sequence[Scenario], each: int, random: int, first_seed: int) -> tuple[ValidationEpisode, ...]:
    """`each` episodes of every named scenario, and `random` random scenarios."""
    found = [ValidationEpisode(one.name, one, first_seed + k) for one in named for k in range(each)]
    for k in range(random):
        generator = np.random.default_rng(first_seed + k)
        found.append(ValidationEpisode(RANDOM, random_scenario(generator), first_seed + k))
    return tuple(found)


def validation_cases(named: Sequence[Scenario], random_share: float, episodes: int) -> tuple[ValidationEpisode, ...]:
    each = max(1, round((1 - random_share) * episodes / len(named))) if named and random_share < 1 else 0
    return cases(named, each, round(random_share * episodes), VALIDATION_SEED)


class NetworkVerdict(NamedTuple):
    """A network against `expected_latency`; ratios are geometric means, below 1 is better."""

    cost: float
    mean: float
    """Ratio of mean latencies."""
    p99: float
    worst_mean: float
    """Of the scenario with the largest ratio."""
    worst_p99: float

    def words(self) -> str:
        return (
            f"mean x{self.mean:.3f}, p99 x{self.p99:.3f} of expected_latency's; "
            f"worst scenario x{self.worst_mean:.3f}, x{self.worst_p99:.3f}"
        )


class MeanAndTail(NamedTuple):
    """Mean and p99 in seconds of each case, as `counted_s` counts them; `(e,)` each."""

    mean_s: FloatArray
    p99_s: FloatArray


class Validation:
    def __init__(self, chosen: Sequence[ValidationEpisode], requests: int, random_share: float, pool: TaskPool) -> None:
        self._cases, self._requests, self._random_share = tuple(chosen), requests, random_share
        self._expected = latencies(self._cases, requests, ExpectedLatency(), pool)
        groups = np.array([case.group for case in self._cases])
        named = [name for name in dict.fromkeys(groups.tolist()) if name != RANDOM]
        self._members = [np.flatnonzero(groups == name) for name in named]
        self._random = np.flatnonzero(groups == RANDOM)

    def judge(self, network: Network, pool: TaskPool) -> NetworkVerdict:
        """Play them by the network.

        Of each scenario the loss is log(mean ratio) + `TAIL_WEIGHT` * log(p99 ratio), and again what of either is above
        0: to be worse somewhere is worth less than to be better elsewhere. Cost: the mean over scenarios, random and
        named ones weighed as in training.
        """
        found = latencies(self._cases, self._requests, learned(network), pool)
        mean = np.log(found.mean_s / self._expected.mean_s)
        p99 = np.log(found.p99_s / self._expected.p99_s)
        named = np.array([[mean[rows].mean(), p99[rows].mean()] for rows in self._members]).reshape(-1, 2)
        several = np.stack([mean[self._random], p99[self._random]], axis=1)
        weights = np.concatenate(
            [
                np.full(len(part), share / max(len(part), 1))
                for part, share in ((named, 1 - self._random_share), (several, self._random_share))
            ]
        )
        all_of_them = np.concatenate([named, several])
        loss = (all_of_them + np.maximum(all_of_them, 0.0)) @ np.array([1.0, TAIL_WEIGHT])
        total = np.exp(np.average(all_of_them, axis=0, weights=weights))
        scenarios = [*named, several.mean(axis=0)] if len(several) else list(named)
        worst = np.exp(np.max(scenarios, axis=0))
        return NetworkVerdict(float(np.average(loss, weights=weights)), *map(float, (*total, *worst)))


def learned(network: Network) -> Policy:
    """The policy with this network, of no known range."""
    unknown = np.zeros(len(FEATURES))
    return Learned(artifact=make_artifact(network, unknown, unknown, {}))


def latencies(chosen: Sequence[ValidationEpisode], requests: int, policy: Policy, pool: TaskPool) -> MeanAndTail:
    count = min(_TASKS, len(chosen))
    parts = pool.map(partial(_play, requests, policy), [chosen[part::count] for part in range(count)])
    found = np.empty((len(chosen), 2))
    for part, each in enumerate(parts):
        found[part::count] = each
    return MeanAndTail(found[:, 0], found[:, 1])


def _play(requests: int, policy: Policy, chosen: Sequence[ValidationEpisode]) -> FloatArray:
    """Cases side by side: mean and p99 of each, `(e, 2)`."""
    fleets = [case.fleet(policy) for case in chosen]
    arrivals = [case.scenario.arrivals(case.seed, requests) for case in chosen]
    result = run(fleets, arrivals, policy, seeds=[case.seed for case in chosen])
    counted = [seconds[:, int(requests * WARM_UP_SHARE) :] for seconds in counted_s(result)]
    both = [[np.nanmean(seconds, axis=1), np.nanquantile(seconds, 0.99, axis=1)] for seconds in counted]
    judged: FloatArray = np.exp(np.mean(np.log(both), axis=0)).T
    return judged


def scoreboard(network: Network, chosen: Sequence[ValidationEpisode], requests: int, pool: TaskPool) -> dict[str, Any]:
    """For the record: by scenario and policy, the ratios of mean and p99 to that policy's, each with its interval.

    Intervals are over seeds of a scenario, or over random scenarios; see `simulator.compare.statistics`.
    """
    own = latencies(chosen, requests, learned(network), pool)
    board: dict[str, Any] = {}
    groups = np.array([case.group for case in chosen])
    for policy in (ExpectedLatency(), WeightedLeastPending()):
        other = latencies(chosen, requests, policy, pool)
        for group in dict.fromkeys(groups.tolist()):
            rows = groups == group
            board.setdefault(group, {})[policy.name] = {
                "mean": _rounded(ratio(own.mean_s[rows], other.mean_s[rows])),
                "p99": _rounded(ratio(own.p99_s[rows], other.p99_s[rows])),
            }
    return board


def nothing_to_gain(board: Mapping[str, Any]) -> bool:
    """Whether a scoreboard is certain of no lower mean than that of `expected_latency`, which then had better stay."""
    # No number at all is certain of nothing.
    return any(not against[ExpectedLatency.name]["mean"][2] < 1 for against in board.values())


def _rounded(estimate: Estimate) -> list[float]:
    return [round(number, 4) for number in (estimate.value, estimate.low, estimate.high)]
