"""Evidence that one arm does worse than another, which may be looked at after every observation.

An arm is a policy, or a version of a model, that gets a share of the requests, drawn by chance. Each observation
becomes a bet `x` in [-1, 1] that wins where the arm in question did worse, and is fair, of mean 0, where the arms are
equal: because the draw says which of the two got the observation, and for no other reason, so nothing is assumed of how
latencies are distributed or depend on each other. Who starts with 1 and bets again and again has a sum of mean 1; a
large one is unlikely.

Whoever waits for the arm to become worse starts anew with 1 whenever less is left. The sum then reaches `limit`, where
the arms stay equal, after at least `limit` observations on average: Shin, Ramdas, Rinaldo, "E-detectors", 2022
(arXiv 2203.03532), their CUSUM form; Ville, 1939, for the bound itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

BLOCK_S = 1.0
"""The outcomes of so many seconds are one observation of a `DrawComparison`."""
SLOW_SHARE = 0.1
"""Of the requests, those that are called slow."""
_FALSE_ALARM_BLOCKS = 100_000.0
"""Mean number of seconds, at least, from one false alarm to the next: 28 hours."""
_GAIN = 0.02


@dataclass(slots=True)
class Evidence:
    """The sum of one such gambler."""

    limit: float
    """At which the arm is called worse: the mean number of observations from one false alarm to the next, at least."""
    sum: float = field(default=1.0, init=False)
    """Before the observation that is under way."""
    _factor: float = field(default=1.0, init=False)

    @property
    def now(self) -> float:
        return max(self.sum, 1.0) * self._factor

    def bet(self, x: float) -> None:
        """Take a bet of mean 0 or less under equality, in [-1, 1]; several may make one observation."""
        self._factor *= 1.0 + x

    def close(self) -> bool:
        """End the observation; whether the arm is worse by it and all before."""
        self.sum = self.now
        self._factor = 1.0
        return self.sum >= self.limit

    def reset(self) -> None:
        self.sum = self._factor = 1.0


class DrawComparison:
    """Whether the new one of two arms does worse, where a draw says which of them gets a request.

    Each outcome with a cost c in [0, 1] is a bet on the draw:

        x = (z - share) * (c - margin * z - usual c) / 2,   z: 1 where the new arm got the request, else 0

    fair where both do the same, since then c does not depend on z.
    """

    def __init__(self, margins: Mapping[str, float]) -> None:
        """`margins`: what is compared, and by how much the new arm may do worse."""
        self.evidence = {metric: Evidence(len(margins) * _FALSE_ALARM_BLOCKS) for metric in margins}
        self.block_s = -math.inf
        self._margins = margins
        self._usual_cost = dict.fromkeys(margins, 0.0)
        self._slow_s: dict[str, float] = {}
        """By model, the latency that `SLOW_SHARE` of the requests exceed."""

    def bet(self, metric: str, cost: float, new: bool, share: float) -> None:
        """Take in an outcome; `share`: of the requests that the new arm got when it was drawn."""
        usual = self._usual_cost[metric]
        z = float(new)
        self.evidence[metric].bet((z - share) * (cost - self._margins[metric] * z - usual) / 2)
        self._usual_cost[metric] = usual + _GAIN * (cost - usual)

    def is_slow(self, model: str, latency_s: float) -> bool:
        """Whether few of the model's requests took so long."""
        return latency_s > self._slow_s.get(model, math.inf)

    def learn(self, model: str, latency_s: float) -> None:
        """Move the model's slow latency up where it is exceeded too often, else down (stochastic approximation)."""
        slow_s = self._slow_s.get(model, 2 * latency_s)
        self._slow_s[model] = slow_s * math.exp(_GAIN * (float(latency_s > slow_s) - SLOW_SHARE) / SLOW_SHARE / 2)

    def begins_block(self, now_s: float) -> bool:
        """Whether the outcomes so far are an observation, which `close` is to end; then another begins."""
        if now_s - self.block_s < BLOCK_S:
            return False
        self.block_s = now_s
        return True

    def close(self) -> str:
        """End the observation; the first metric by which the new arm does worse, empty: none."""
        worse = [metric for metric, evidence in self.evidence.items() if evidence.close()]
        return worse[0] if worse else ""
