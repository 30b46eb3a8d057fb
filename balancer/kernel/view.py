"""The fleet as policies see it: columns computed when first read, at one moment.

Production sees one fleet, for one request at a time; the simulator sees many side by side. Both compute the columns
here, over arrays of shape `(..., n)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from balancer.kernel.estimators import caches, generation, latency, prefixes, queue, service, tokens
from balancer.kernel.estimators.caches import Caches
from balancer.kernel.estimators.columns import At
from balancer.kernel.estimators.generation import Lengths
from balancer.kernel.estimators.latency import Latency
from balancer.kernel.estimators.prefixes import Prefixes
from balancer.kernel.estimators.queue import Queue
from balancer.kernel.estimators.service import Service
from balancer.kernel.estimators.tokens import Tokens
from balancer.kernel.settings import EstimatorSettings, Settings
from balancer.kernel.state import FleetState
from policies.base import BoolArray, FloatArray, Policy, Request, UintArray
from policies.hashing import hash_draw

if TYPE_CHECKING:
    from balancer.kernel.python_kernel import Kernel

Value = TypeVar("Value")
Scalar = TypeVar("Scalar", bound=np.generic)


def read_only(array: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The array as policies get it: not copied, and it refuses to be written to.

    A third party's policy that writes to a column fails, where it would otherwise change what is known of the fleet.
    """
    shown: npt.NDArray[Scalar] = array[:]  # half the time of `view()`
    shown.setflags(write=False)
    return shown


class part(Generic[Value]):
    """A `functools.cached_property` without its lock, which in Python 3.11 costs as much as the arithmetic."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, view: Any, owner: type | None = None) -> Value:
        value: Value = self._compute(view)
        view.__dict__[self._name] = value
        return value


class column(part[npt.NDArray[Scalar]]):
    """A part that policies see. Some are the estimators' own arrays, so that none can be written to."""

    def __get__(self, view: Any, owner: type | None = None) -> npt.NDArray[Scalar]:
        value = read_only(self._compute(view))
        view.__dict__[self._name] = value
        return value


class View:
    """Implements `policies.base.FleetView`, which says what each column is, over estimators' state; nothing is copied.

    `now_s` and `rows` broadcast against `(..., n)`.
    """

    _of_model: At
    """Where an array `(..., n, m)` has the column of the request's model, `(..., n)`."""

    def __init__(
        self,
        states: tuple[Queue, Service, Latency, Tokens, Caches, Prefixes, Service, Service, Lengths],
        settings: EstimatorSettings,
        eligible: BoolArray,
        rows: float | FloatArray,
        now_s: float | FloatArray,
    ) -> None:
        self._queue, self._service, self._latency, self._tokens, self._caches = states[:5]
        self._prefixes, self._prefill, self._decode, self._lengths = states[5:]
        self._settings = settings
        self._rows = rows
        self._now_s = now_s
        self._eligible = eligible

    @column
    def eligible(self) -> BoolArray:
        return self._eligible

    @column
    def in_flight(self) -> FloatArray:
        return self._queue.in_flight

    @column
    def reported_pending(self) -> FloatArray:
        return self._queue.reported_pending

    @part
    def _peer_share_left(self) -> FloatArray | None:
        """For the two columns that need it; None where all requests are our own."""
        return (
            queue.peer_share_left(self._queue, ..., self._now_s)
            if np.count_nonzero(self._queue.peer_in_flight)
            else None
        )

    @column
    def pending(self) -> FloatArray:
        left = self._peer_share_left
        return self._queue.in_flight if left is None else queue.pending_now(self._queue, ..., left)

    @column
    def pending_other_models(self) -> FloatArray:
        return queue.of_other_models(self._queue, ..., self._queue.known_requests[self._of_model], self.pending)

    @column
    def backlog_s(self) -> FloatArray:
        return queue.backlog_now_s(self._queue, ..., self._now_s, self._peer_share_left)

    @part
    def _forming(self) -> FloatArray:
        return queue.forming_now(self._queue, ..., self._now_s)

    @column
    def completion_s(self) -> FloatArray:
        q, s = self._queue, self._service
        batched_s = queue.completion_now_s(q, s, self._of_model, self._rows, self.backlog_s, self._forming)
        return self._with_prompt(
            lambda: generation.answered_now_s(
                self._decode, self._of_model, self.first_token_s, self._output_tokens, self.pending
            ),
            batched_s,
        )

    @part
    def _prompt_tokens(self) -> FloatArray:
        """Of the request; 0: it has none."""
        return np.zeros(())

    @part
    def _max_tokens(self) -> FloatArray:
        """Most that the request allows its answer; 0: it sets no bound."""
        return np.zeros(())

    @part
    def _output_tokens(self) -> FloatArray:
        return generation.output_tokens_now(self._lengths, self._of_model, self._max_tokens)

    @part
    def _nothing(self) -> FloatArray:
        return np.zeros_like(self._prefixes.waiting_tokens)

    def _with_prompt(self, of: Callable[[], FloatArray], without: FloatArray) -> FloatArray:
        """What is computed of a prompt, for requests that have one."""
        return np.where(self._prompt_tokens > 0, of(), without) if np.count_nonzero(self._prompt_tokens) else without

    @column
    def matched_tokens(self) -> FloatArray:
        return self._nothing

    @part
    def _to_compute(self) -> FloatArray:
        return np.maximum(self._prompt_tokens - self.matched_tokens, 1.0)

    @column
    def first_token_s(self) -> FloatArray:
        return self._with_prompt(
            lambda: generation.first_token_now_s(self._prefill, self._of_model, self.waiting_tokens, self._to_compute),
            self._nothing,
        )

    @column
    def prompt_s(self) -> FloatArray:
        return self._with_prompt(
            lambda: generation.prompt_now_s(self._prefill, self._of_model, self._to_compute), self._nothing
        )

    @column
    def slowdown_s(self) -> FloatArray:
        return self._with_prompt(
            lambda: generation.slowdown_now_s(self._decode, self._of_model, self.prompt_s, self._output_tokens),
            self._nothing,
        )

    @column
    def work_behind_s(self) -> FloatArray:
        of_model = cast(tuple[Any, ...], self._of_model)
        return queue.work_behind_now_s(self._queue, self._service, of_model, self._rows, self._forming)

    @column
    def service_s(self) -> FloatArray:
        return service.alone_s(self._service, self._of_model, self._rows)

    @column
    def latency_s(self) -> FloatArray:
        return latency.latency_now_s(self._latency, ..., self._now_s, self._settings.latency_decay_s)

    @column
    def error_rate(self) -> FloatArray:
        x = self._latency
        if not np.count_nonzero(x.errors):
            return x.errors
        return latency.error_rate_now(x, ..., self._now_s, self._settings.error_decay_s)

    @column
    def tokens(self) -> FloatArray:
        return tokens.level_now(self._tokens, ..., self._settings.tokens, self._now_s)

    @column
    def waiting_tokens(self) -> FloatArray:
        return prefixes.waiting_now(self._prefixes, ..., self._queue.balancers)

    @column
    def cached_tokens(self) -> FloatArray:
        return prefixes.cached_now(self._prefixes, self._of_model)

    @column
    def held_tokens(self) -> FloatArray:
        return self._prefixes.held_tokens[self._of_model]

    @column
    def memory_tokens(self) -> FloatArray:
        return self._prefixes.memory_tokens[self._of_model]

    def _saving_s(self) -> FloatArray:
        balancers = self._queue.balancers
        return caches.saving_now_s(self._caches, self._service, self._of_model, self._rows, balancers)


class LiveFleet(FleetState, Protocol):
    """A fleet's state, by what settings it is read, and who computes what needs loops."""

    @property
    def settings(self) -> Settings: ...

    @property
    def kernel(self) -> Kernel: ...


class LiveView(View):
    """One fleet, for one request; arrays have shape `(n,)`."""

    def __init__(
        self,
        fleet: LiveFleet,
        eligible: BoolArray,
        column: int,
        request: Request,
        now_s: float,
    ) -> None:
        assert request.key is None or isinstance(request.key, int)  # arrays are for the simulator's views
        self._fleet, self._eligible = fleet, eligible
        self.column, self.request, self.at_s = column, request, now_s
        self.rows, self.key = float(request.rows), request.key
        self._queue, self._service = fleet.queue, fleet.service
        self._latency, self._tokens, self._caches = fleet.latency, fleet.tokens, fleet.caches
        self._prefixes, self._prefill, self._decode, self._lengths = (
            *(fleet.prefixes, fleet.prefill),
            *(fleet.decode, fleet.lengths),
        )
        self._settings = fleet.settings.estimators
        self._of_model = (slice(None), column)

    @property
    def mask(self) -> BoolArray:
        """`eligible` as it is kept, not to be written to."""
        return self._eligible

    @mask.setter
    def mask(self, mask: BoolArray) -> None:
        self._eligible = mask
        self.__dict__.pop("eligible", None)

    def of_one(self, worker: int) -> LiveView:
        return LiveView(self._fleet, np.arange(len(self._eligible)) == worker, self.column, self.request, self.at_s)

    # Arrays of no axis: NumPy takes twice as long to combine a column with a float of Python's.
    @part
    def _rows(self) -> FloatArray:
        return np.asarray(self.rows)

    @part
    def _now_s(self) -> FloatArray:
        return np.asarray(self.at_s)

    def answer(self, policy: Policy, request: Request) -> FloatArray | None:
        """The policy's probabilities, `(n,)`, where the kernel has them; None: ask the policy."""
        return self._fleet.kernel.answer(self._fleet, policy, request, self)

    @column
    def weight(self) -> FloatArray:
        weights: FloatArray = self._fleet.decision.weight[0]
        return weights

    @column
    def name_hash(self) -> UintArray:
        hashes: UintArray = self._fleet.decision.name_hash[0]
        return hashes

    @column
    def identity(self) -> FloatArray:
        return self._identity_of(self.name_hash)

    @column
    def kind_identity(self) -> FloatArray:
        return self._identity_of(self._fleet.decision.kind_hash[0])

    def _identity_of(self, hashes: UintArray) -> FloatArray:
        found: FloatArray = hash_draw(hashes, self._fleet.decision.model_hash[0, self.column])
        return found

    @column
    def report_age_s(self) -> FloatArray:
        return self._now_s - self._fleet.decision.reported_s

    @column
    def cached(self) -> FloatArray:
        if self.key is None:
            return np.zeros(len(self._eligible))
        return self._fleet.kernel.look_up(self._fleet, self.column, self.rows, self.key, self.at_s)

    @part
    def _prompt_tokens(self) -> FloatArray:
        return np.asarray(float(self.request.prompt_tokens))

    @part
    def _max_tokens(self) -> FloatArray:
        return np.asarray(float(self.request.max_tokens))

    @column
    def matched_tokens(self) -> FloatArray:
        if not self.request.prompt_tokens:
            return np.zeros(len(self._eligible))
        return self._fleet.kernel.match(self._fleet, self.request, self.column)

    @column
    def saving_s(self) -> FloatArray:
        return np.zeros(len(self._eligible)) if self.key is None else self._saving_s()
