"""How many requests of each model may be at the fleet, by what a balancer says of its workers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from balancer.errors import OperatorError

logger = logging.getLogger(__name__)
BUSY_PERIOD_S, IDLE_PERIOD_S = 0.1, 2.0
"""Between two questions: while messages are worked on, and else."""
_FIRST = 4.0
"""Requests of a model that no balancer has spoken of; enough to find out what the listener says of it."""
_BESIDE = 16
"""Requests taken beyond the room of the models that are asked for: other models may come, and have room."""
_MOST_MODELS, _MOST_REQUESTS = 1000, 1e6
"""That a balancer speaks of; who answers there may be anybody."""


@dataclass(slots=True)
class _OfModel:
    limit: float = _FIRST
    told: bool = False
    """Whether a balancer speaks of it; else it is a name in a message."""
    at_fleet: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Room:
    def __init__(self, ask: Callable[[], Awaitable[bytes]]) -> None:
        """`ask`: for a balancer's page `/room`; raises OperatorError where there is no answer."""
        self._ask = ask
        self._models: dict[str, _OfModel] = {}
        self._busy = asyncio.Event()

    async def run(self) -> None:
        silent = False
        while True:
            before = {name: model.at_fleet for name, model in self._models.items()}
            try:
                self._take(await self._ask(), before)
                silent = False
            except (OperatorError, ValueError, TypeError, KeyError, RecursionError) as error:
                if not silent:
                    logger.warning("the fleet's room stays as it was: %s", str(error)[:500])
                silent = True
            if self._busy.is_set():
                await asyncio.sleep(BUSY_PERIOD_S)
            else:
                with_work = asyncio.ensure_future(self._busy.wait())
                await asyncio.wait((with_work,), timeout=IDLE_PERIOD_S)
                with_work.cancel()

    def _take(self, said: bytes, before: dict[str, int]) -> None:
        rooms = json.loads(said)["room"]
        for name in [*rooms][:_MOST_MODELS]:
            requests, in_flight = (_number(rooms[name][each]) for each in ("requests", "in_flight"))
            model = self._models.setdefault(name, _OfModel())
            others = max(in_flight - before.get(name, 0), 0.0)
            model.limit, model.told = max(requests - others, 1.0 if requests else 0.0), True
            _wake(model)
        for name in [name for name in self._models if name not in rooms]:
            self._models[name].limit, self._models[name].told = _FIRST, False
            self._forget_unknown(name)

    def _forget_unknown(self, name: str) -> None:
        model = self._models[name]
        _wake(model)
        if not model.told and not model.at_fleet and not model.waiting:
            del self._models[name]

    @property
    def total(self) -> int:
        """Requests that may be taken, those of the models that are asked for and some more."""
        asked_for = (model.limit for model in self._models.values() if model.at_fleet or model.waiting)
        return int(sum(asked_for)) + _BESIDE

    def of(self) -> dict[str, float]:
        """By model that a balancer speaks of."""
        return {name: model.limit for name, model in self._models.items() if model.told}

    async def enter(self, name: str) -> None:
        """Wait until the fleet has room for one more request of the model, and take it."""
        self._busy.set()
        model = self._models.setdefault(name, _OfModel())
        if model.at_fleet < model.limit and not model.waiting:
            model.at_fleet += 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        model.waiting.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.leave(name)
            else:
                model.waiting.remove(mine)
            raise

    def leave(self, name: str) -> None:
        model = self._models[name]
        model.at_fleet -= 1
        self._forget_unknown(name)
        if not any(other.at_fleet or other.waiting for other in self._models.values()):
            self._busy.clear()


def _number(said: float) -> float:
    """ValueError where it is none that there can be."""
    if not 0 <= float(said) <= _MOST_REQUESTS:
        raise ValueError(f"it speaks of {said} requests; is that a balancer's listen.admin?")
    return float(said)


def _wake(model: _OfModel) -> None:
    while model.waiting and model.at_fleet < model.limit:
        model.at_fleet += 1
        model.waiting.popleft().set_result(None)
