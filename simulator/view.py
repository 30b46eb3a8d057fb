"""Many fleets as policies see them: the core's own columns, with the environments as leading axis."""

from typing import Any

import numpy as np

from balancer.kernel import worker_columns
from balancer.kernel.compiled.numba_records import Native
from balancer.kernel.settings import EstimatorSettings
from balancer.kernel.state import RequestFeatures
from balancer.kernel.view import View, column, part
from policies.base import FloatArray, UintArray
from policies.hashing import hash_draw
from simulator.engine.compiled import compiled, from_source, mix
from simulator.engine.knowledge import row
from simulator.engine.layout import Sim

_fill_cached = from_source(worker_columns.fill_cached)


@compiled
def _see_cached(sim: Sim, found: np.ndarray) -> None:
    """Write `cached` of each worker for the request that waits in each environment, `(e, n)`; 0 where it has no key."""
    pending = sim.pending
    for e in range(pending.rows.size):
        found[e] = 0.0
        if pending.key[e] != 0:
            features = RequestFeatures(
                pending.model[e], pending.rows[e], mix(pending.key[e]), 1.0, np.inf, 0.0, 0, 0.0, 0.0
            )
            _fill_cached(sim, e, row(sim, e, pending.balancer[e], 0), features, pending.now_s[e], found[e])


class BatchView(View):
    """One request in each environment, as its balancer sees the fleet: arrays of shape `(e, n)`."""

    def __init__(self, sim: Sim, native: Native, settings: EstimatorSettings) -> None:
        self._sim, self._native = sim, native
        records = (
            sim.queue,
            sim.service,
            sim.latency,
            sim.tokens,
            sim.caches,
            sim.prefixes,
            sim.prefill,
            sim.decode,
            sim.lengths,
        )
        states: Any = [_Lazy(record, self._of_balancer) for record in records]
        pending = sim.pending
        super().__init__(states, settings, sim.decision.mask, pending.rows[:, None], pending.now_s[:, None])
        self._rows_of_all = np.arange(len(pending.rows))
        self._deciding = self._rows_of_all * sim.sizes.balancers + pending.balancer
        self._of_model = (..., 0) if sim.sizes.models == 1 else (self._rows_of_all, slice(None), pending.model)

    def _of_balancer(self, array: FloatArray) -> FloatArray:
        """`(e, n, ...)` of an array over `(e * balancers * n, ...)`."""
        z = self._sim.sizes
        split = array.reshape(-1, z.workers, *array.shape[1:])
        # Taking along one axis copies rows as a whole; two arrays of indices would take half as long again.
        return split if z.balancers == 1 else split.take(self._deciding, axis=0)

    @column
    def weight(self) -> FloatArray:
        return self._sim.decision.weight

    @column
    def name_hash(self) -> UintArray:
        return self._sim.decision.name_hash

    @column
    def identity(self) -> FloatArray:
        return self._identity_of(self._sim.decision.name_hash)

    @column
    def kind_identity(self) -> FloatArray:
        return self._identity_of(self._sim.decision.kind_hash)

    def _identity_of(self, hashes: UintArray) -> FloatArray:
        models = self._sim.decision.model_hash[self._rows_of_all, self._sim.pending.model]
        found: FloatArray = hash_draw(hashes, models[:, None])
        return found

    @column
    def report_age_s(self) -> FloatArray:
        return self._now_s - self._of_balancer(self._sim.decision.reported_s)

    @column
    def cached(self) -> FloatArray:
        found = np.zeros(self._sim.decision.mask.shape)
        _see_cached(self._native, found)
        return found

    @part
    def _prompt_tokens(self) -> FloatArray:
        return self._sim.pending.prompt_tokens[:, None]

    @column
    def matched_tokens(self) -> FloatArray:
        return np.where(self._prompt_tokens > 0, self._sim.decision.matched, 0.0)

    @column
    def saving_s(self) -> FloatArray:
        return np.where(self._sim.pending.key[:, None] != 0, self._saving_s(), 0.0)


class TrueView:
    """A view whose queues are as they really are, and whose completions know the work that really is before them."""

    def __init__(self, seen: BatchView, pending: FloatArray, backlog_s: FloatArray, completion_s: FloatArray) -> None:
        self._seen = seen
        self.pending = self.in_flight = self.reported_pending = pending
        self.backlog_s = backlog_s
        self.completion_s = completion_s
        self.eligible = seen.eligible
        self.error_rate = np.zeros_like(pending)
        self.report_age_s = np.zeros_like(pending)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)


class _Lazy:
    """Stands for a state record of the core, over the deciding balancers' rows: a field is copied when it is read."""

    def __init__(self, record: Any, look_up: Any) -> None:
        self._record = record
        self._look_up = look_up

    def __getattr__(self, name: str) -> FloatArray:
        array: FloatArray = self._look_up(getattr(self._record, name))
        setattr(self, name, array)
        return array
