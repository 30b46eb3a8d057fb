"""Batch statistics that only grow, though Triton clears those of a model whenever it loads the model anew."""

from balancer.agent.metrics_page import ModelKey

Batches = tuple[tuple[int, int, float], ...]
"""(rows, executions, seconds of compute in all) for each batch size, as in `balancer.scheduler.events.ModelReport`."""


class BatchTotals:
    """Sums of the statistics of every model, over all the times that it was loaded."""

    def __init__(self) -> None:
        self._totals: dict[ModelKey, Batches] = {}
        self._past: dict[ModelKey, Batches] = {}
        self._current: dict[ModelKey, Batches] = {}

    def of(self, key: ModelKey) -> Batches:
        """What was executed in all; empty for a model that never was."""
        return self._totals.get(key, ())

    def update(self, key: ModelKey, statistics: Batches) -> None:
        """Take in what Triton says now; lower numbers than before mean that it began anew."""
        if _fell(self._current.get(key, ()), statistics):
            self.ended(key)
        self._current[key] = statistics
        self._totals[key] = _sum(self._past.get(key, ()), statistics)

    def ended(self, key: ModelKey) -> None:
        """The model is being unloaded: the next statistics, however large, begin at zero."""
        if self._current.pop(key, ()):
            self._past[key] = self._totals[key]

    def clear(self) -> None:
        self._totals.clear()
        self._past.clear()
        self._current.clear()


def _fell(before: Batches, now: Batches) -> bool:
    if before == now:
        return False
    sizes = {rows: (executions, compute_s) for rows, executions, compute_s in now}
    for rows, executions, compute_s in before:
        new_executions, new_compute_s = sizes.get(rows, (0, 0.0))
        if new_executions < executions or new_compute_s < compute_s:
            return True
    return False


def _sum(one: Batches, other: Batches) -> Batches:
    if not one:
        return other
    sizes = {rows: (executions, compute_s) for rows, executions, compute_s in one}
    for rows, executions, compute_s in other:
        before_executions, before_compute_s = sizes.get(rows, (0, 0.0))
        sizes[rows] = (before_executions + executions, before_compute_s + compute_s)
    return tuple((rows, executions, compute_s) for rows, (executions, compute_s) in sorted(sizes.items()))
