"""Evidence that one arm does worse than another, which may be looked at after every observation.

An arm is a policy that decides a share of the requests, drawn by lot. Each observation becomes a bet `x` in [-1, 1]
that wins where the arm in question did worse, and is fair, of mean 0, where the arms are equal: because the lot says
which of the two got the observation, and for no other reason, so nothing is assumed of how latencies are distributed
or depend on each other. Who starts with 1 and bets again and again has a sum of mean 1; a large one is unlikely.

Whoever waits for the arm to become worse starts anew with 1 whenever less is left. The sum then reaches `limit`, where
the arms stay equal, after at least `limit` observations on average: Shin, Ramdas, Rinaldo, "E-detectors", 2022
(arXiv 2203.03532), their CUSUM form; Ville, 1939, for the bound itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
        """The sum, with the observation that is under way."""
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
        """Forget all."""
        self.sum = self._factor = 1.0
