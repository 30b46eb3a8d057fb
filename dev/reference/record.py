"""What becomes of each request, as `simulator.result` wants it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dev.reference.batcher import LiveRequest
from dev.reference.world import World
from policies.base import FloatArray
from simulator.arrivals import Arrivals
from simulator.result import Result, Status


@dataclass(frozen=True)
class Executed:
    """One execution that ended."""

    worker: int
    number: int
    """How many the worker had started before."""
    model: int
    started_s: float
    ended_s: float
    requests: tuple[int, ...]


class Record:
    def __init__(self, arrivals: Arrivals, timeline_period_s: float) -> None:
        k = len(arrivals)
        self.arrivals = arrivals
        self.timeline_period_s = timeline_period_s
        self.unended = k
        self.arrival_s = np.full(k, np.nan)
        self.latency_s = np.full(k, np.nan)
        self.first_s = np.full(k, np.nan)
        self.matched_tokens = np.full(k, np.nan)
        self.cached_tokens = np.full(k, np.nan)
        self.status = np.full(k, Status.UNFINISHED, np.int8)
        self.worker = np.full(k, -1, np.int16)
        self.picked = np.full(k, -1, np.int16)
        self.attempts = np.zeros(k, np.int8)
        self.pending_integral_s = 0.0
        self.end_s = 0.0
        self._pending = 0
        self._changed_s = 0.0
        self._timeline: list[tuple[float, list[int]]] = []

    def arrived(self, request: LiveRequest) -> None:
        self.arrival_s[request.index] = request.arrival_s
        self._change_pending(+1, request.arrival_s)

    def ended(self, request: LiveRequest, status: Status, worker: int, now_s: float, latency_s: float) -> None:
        if self.status[request.index] != Status.UNFINISHED:
            raise AssertionError(f"request {request.index} ended twice")
        self.status[request.index] = status
        self.worker[request.index] = worker
        self.latency_s[request.index] = latency_s
        self.cached_tokens[request.index] = request.cached
        self.attempts[request.index] = request.attempts
        self._change_pending(-1, now_s)
        self.end_s = now_s
        self.unended -= 1

    def _change_pending(self, by: int, now_s: float) -> None:
        self.pending_integral_s += self._pending * (now_s - self._changed_s)
        self._pending += by
        self._changed_s = now_s

    def sample(self, now_s: float, pending: list[int]) -> None:
        if self.unended:
            self._timeline.append((now_s, pending))

    def placed(self, request: LiveRequest, world: World) -> None:
        """Note what its balancer took its worker to have of its prompt, if it has one."""
        prompt = world.routers[request.balancer]._in_flight[request.number].prompt
        if prompt is not None:
            self.matched_tokens[request.index] = request.tokens - prompt.to_compute

    def _of_prompts(self, world: World, column: Any) -> FloatArray:
        generates = np.array([model.generation is not None for model in world.fleet.models])
        return np.where(generates[self.arrivals.model], column, np.nan)[None]

    def result(self, world: World) -> Result:
        a, workers = self.arrivals, world.workers
        n = len(workers)
        return Result(
            arrival_s=self.arrival_s[None],
            latency_s=self.latency_s[None],
            first_s=np.where(self.status == Status.OK, self.first_s, np.nan)[None],
            prompt_tokens=self._of_prompts(world, np.nan if a.prompts is None else a.prompts.tokens),
            cached_tokens=self.cached_tokens[None],
            matched_tokens=self.matched_tokens[None],
            status=self.status[None],
            worker=self.worker[None],
            picked=self.picked[None],
            attempts=self.attempts[None],
            model=a.model[None],
            rows=a.rows[None],
            deadline_s=a.deadline_s[None],
            priority=a.priority[None],
            tenant=a.tenant[None],
            pending_integral_s=np.array([self.pending_integral_s]),
            end_s=np.array([self.end_s]),
            busy_s=np.array([[worker.device.busy_s for worker in workers]]),
            executions=np.array([[worker.started for worker in workers]], np.int64),
            timeline_s=np.array([at_s for at_s, _ in self._timeline]),
            timeline_pending=np.array([pending for _, pending in self._timeline], np.float64).reshape(1, -1, n),
            workers=tuple(worker.spec.name for worker in workers),
            models=tuple(model.name for model in world.fleet.models),
        )
