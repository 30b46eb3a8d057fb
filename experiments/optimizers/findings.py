"""What came of it: ratios of latencies, with intervals over scenarios, training seeds and request seeds together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.intervals import together
from experiments.optimizers.algorithms import AGAINST
from experiments.optimizers.beside import DEFAULTS, TUNED
from experiments.optimizers.runs import Outcome
from policies.base import FloatArray
from simulator.scoreboard.statistics import Estimate
from simulator.training.validation import TAIL_WEIGHT, Case

MEAN, P99, BOTH = "mean", "p99", "both"
"""Both: mean times the root of p99, whose logarithm validation and the tuning of rivals minimise."""
_WEIGHTS = {MEAN: (1.0, 0.0), P99: (0.0, 1.0), BOTH: (1.0, TAIL_WEIGHT)}


@dataclass(frozen=True)
class Found:
    """All outcomes of one budget, and of what is judged beside."""

    outcomes: Mapping[str, Sequence[Outcome]]
    """By algorithm, one for each training seed; of what is judged beside one."""
    sets: Mapping[str, Sequence[Case]]
    _ratios: dict[tuple[str, ...], Estimate] = field(default_factory=dict, compare=False, repr=False)
    """Those that were asked for: each takes half a second, and page and file ask for the same."""

    def logs(self, name: str, title: str, figure: str) -> FloatArray:
        """Logarithms of a figure, `(scenarios, trainings, request seeds)`."""
        scenarios = len(dict.fromkeys(case.group for case in self.sets[title]))
        of_mean, of_p99 = _WEIGHTS[figure]
        found = []
        for outcome in self.outcomes[name]:
            each = outcome["judged"][title]
            logs = of_mean * np.log(each["mean_s"]) + of_p99 * np.log(each["p99_s"])
            found.append(logs.reshape(scenarios, -1))
        return np.stack(found, axis=1)

    def ratio(self, name: str, to: str, title: str, figure: str) -> Estimate:
        """Geometric mean over all; the interval draws trainings of both sides."""
        if name == to:
            return Estimate(1.0, 1.0, 1.0)
        asked = (name, to, title, figure)
        if asked not in self._ratios:
            self._ratios[asked] = together(self.logs(name, title, figure), np.mean, self.logs(to, title, figure))
        return self._ratios[asked]

    def by_training(self, name: str, to: str, title: str, figure: str) -> FloatArray:
        """The ratio of each training to the other's geometric mean, `(trainings,)`."""
        ours, theirs = self.logs(name, title, figure), self.logs(to, title, figure)
        ratios: FloatArray = np.exp((ours - theirs.mean(axis=1, keepdims=True)).mean(axis=(0, 2)))
        return ratios

    def best(self, title: str, names: Sequence[str]) -> str:
        """Of the algorithms the one with the lowest mean and p99 together."""
        return min(names, key=lambda name: float(self.logs(name, title, BOTH).mean()))


def ratios(found: Found, name: str, title: str) -> dict[str, Estimate]:
    """All that the page has of one line, by `figure/to`."""
    wanted = [(figure, to) for to in (DEFAULTS, TUNED) for figure in (MEAN, P99)] + [(BOTH, AGAINST)]
    return {f"{figure}/{to}": found.ratio(name, to, title, figure) for figure, to in wanted}
