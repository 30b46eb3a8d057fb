"""Names that several models serve: by what is left of the time, or by how sure the faster ones are."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from balancer.proxy.attempts import Clocks
from balancer.proxy.messages import OK, Answer, Arrived
from balancer.proxy.rules.cascades import answer_s, in_time, next_step
from balancer.proxy.rules.confidence import confidence
from balancer.proxy.rules.reading import with_model, writes_memory
from balancer.proxy.rules.settings import ConfidenceCascade, ProxySettings
from policies.base import Request

Execute = Callable[[Arrived], Awaitable[Answer]]


@dataclass(slots=True)
class Step:
    """The model that is asked now, or gave the answer."""

    arrived: Arrived


class Cascades:
    """Chooses models, and asks one after the other."""

    def __init__(
        self, expected_s: Callable[[Request], float | None], clocks: Clocks, counts: Counter[tuple[str, str]]
    ) -> None:
        """`expected_s`: how long a request's best worker is expected to take; None: it has none."""
        self._expected, self._clocks, self._counts = expected_s, clocks, counts
        self._settings = ProxySettings()

    def configure(self, settings: ProxySettings) -> None:
        """From now on."""
        self._settings = settings

    def has(self, name: str) -> bool:
        """Whether several models may serve this name."""
        return name in self._settings.cascades or name in self._settings.confidence_cascades

    async def infer(self, step: Step, execute: Execute) -> Answer:
        """The answer to a request for a name; `step` says afterwards whose."""
        arrived = step.arrived
        name = arrived.call.request.model
        sure = self._settings.confidence_cascades.get(name)
        if sure is not None:
            answer = await self._until_sure(step, sure, execute)
        else:
            chosen = self._first(arrived, self._settings.cascades[name])
            step.arrived = self._asking(arrived, chosen)
            answer = await execute(step.arrived)
        self._counts["cascades", step.arrived.call.request.model] += 1
        return answer

    def _first(self, arrived: Arrived, models: tuple[str, ...]) -> str:
        """Without any worker, the first, so that its absence is told; a sequence stays with the first."""
        among = models[:1] if arrived.call.request.sequence else models
        left_s = float(arrived.call.request.deadline_s)
        return in_time(among, lambda model: self._expected_s(arrived, model), left_s) or models[0]

    async def _until_sure(self, step: Step, cascade: ConfidenceCascade, execute: Execute) -> Answer:
        """Ask one after the other, until an answer is sure enough, or the next would be too late."""
        asked, models = step.arrived, cascade.models
        time_s = float(asked.call.request.deadline_s)
        until_s = self._clocks.now() + time_s - answer_s(time_s)
        # A sequence stays with one model, and no model writes over what another has written.
        alone = bool(asked.call.request.sequence) or writes_memory(asked.data)
        # The first that has a worker: `inf` leaves none out for time.
        first, _ = next_step(models[:1] if alone else models, lambda model: self._expected_s(asked, model), math.inf)
        step.arrived = self._asking(asked, first or models[0])
        answer = await execute(step.arrived)
        left = models[models.index(step.arrived.call.request.model) + 1 :]
        while not alone and answer.code == OK and left and not self._is_sure(answer, cascade):
            left_s = until_s - self._clocks.now()
            model, late = next_step(left, lambda model: self._expected_s(asked, model), left_s)
            if model is None:
                self._counts["confidence", "late" if late else "no_worker"] += 1
                break
            left = left[left.index(model) + 1 :]
            following = self._asking(asked, model, until_s)
            better = await self._in_time(following, until_s, execute)
            if better is None or better.code != OK:
                self._counts["confidence", "late" if better is None else "failed"] += 1
                break
            step.arrived, answer = following, better
        return answer

    def _is_sure(self, answer: Answer, cascade: ConfidenceCascade) -> bool:
        found = confidence(answer.data, cascade.output)
        result = "unread" if found is None else "sure" if found >= cascade.threshold else "unsure"
        self._counts["confidence", result] += 1
        return result == "sure"

    async def _in_time(self, arrived: Arrived, until_s: float, execute: Execute) -> Answer | None:
        """None: it is too late for this one, and the one before is given."""
        left_s = until_s - self._clocks.now()
        try:
            async with asyncio.timeout(left_s if left_s < math.inf else None):
                return await execute(arrived)
        except TimeoutError:
            return None

    def _asking(self, arrived: Arrived, model: str, until_s: float = math.inf) -> Arrived:
        """The request for one of the models; `until_s`: when it is too late for a later one."""
        request = replace(arrived.call.request, model=model)
        deadline_s = arrived.deadline_s
        if until_s < math.inf:
            request = replace(request, deadline_s=max(until_s - self._clocks.now(), 1e-9))
            deadline_s = min(deadline_s, until_s)
        settings = self._settings.of(model)
        return replace(
            arrived,
            call=replace(arrived.call, request=request),
            data=with_model(arrived.data, model),
            deadline_s=deadline_s,
            repeatable=arrived.repeatable or settings.repeatable,
            hedged=settings.hedge,
            cascaded=True,
        )

    def _expected_s(self, arrived: Arrived, model: str) -> float | None:
        return self._expected(replace(arrived.call.request, model=model))
