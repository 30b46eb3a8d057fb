"""How many requests may be at the fleet, by what a balancer says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from balancer.errors import OperatorError
from balancer.ingress.room import Room


class Said:
    """A balancer's page, and how often it was asked for."""

    def __init__(self, **rooms: tuple[float, float]) -> None:
        self.rooms: dict[str, tuple[float | str, float]] | str = {**rooms}
        self.asked = asyncio.Condition()
        self.times = 0

    async def __call__(self) -> bytes:
        async with self.asked:
            self.times += 1
            self.asked.notify_all()
        if isinstance(self.rooms, str):
            raise OperatorError(self.rooms)
        rooms = {name: {"requests": requests, "in_flight": there} for name, (requests, there) in self.rooms.items()}
        return json.dumps({"room": rooms}).encode()

    async def again(self) -> None:
        """Wait until what it says now has been taken."""
        async with self.asked:
            seen = self.times
            await self.asked.wait_for(lambda: self.times > seen + 1)


@contextlib.asynccontextmanager
async def following(said: Said) -> AsyncIterator[Room]:
    room = Room(said)
    task = asyncio.create_task(room.run())
    await room.enter("first")
    await said.again()
    try:
        yield room
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_no_more_go_in_than_the_fleet_has_room_for_and_in_order() -> None:
    async with following(Said(m=(2.0, 0.0))) as room:
        entered: list[int] = []

        async def enter(number: int) -> None:
            await room.enter("m")
            entered.append(number)

        tasks = [asyncio.create_task(enter(number)) for number in range(5)]
        await asyncio.wait(tasks[:2])
        assert entered == [0, 1]
        room.leave("m")
        await tasks[2]
        room.leave("m")
        await tasks[3]
        assert entered == [0, 1, 2, 3]
        tasks[4].cancel()


async def test_requests_of_others_leave_less_room() -> None:
    said = Said(m=(10.0, 7.0))
    async with following(said) as room:
        assert room.of()["m"] == 3
        await room.enter("m")
        said.rooms = {"m": (10.0, 8.0)}
        await said.again()
        assert room.of()["m"] == 3, "one of those in flight is ours"
        said.rooms = {"m": (10.0, 50.0)}
        await said.again()
        assert room.of()["m"] == 1, "a fleet full of others' requests still serves some of ours"
        said.rooms = {"m": (0.0, 0.0)}
        await said.again()
        assert room.of()["m"] == 0, "without workers there is none"


async def test_more_room_lets_in_those_that_wait() -> None:
    said = Said(m=(0.0, 0.0))
    async with following(said) as room:
        waiting = asyncio.create_task(room.enter("m"))
        await said.again()
        assert not waiting.done()
        said.rooms = {"m": (4.0, 0.0)}
        await waiting


async def test_a_balancer_that_is_away_or_says_nonsense_changes_nothing() -> None:
    said = Said(m=(6.0, 0.0))
    async with following(said) as room:
        said.rooms = "nobody answers"
        await said.again()
        assert room.of()["m"] == 6
        for nonsense in ("many", float("inf"), float("nan"), -1.0, 1e300):
            said.rooms = {"m": (nonsense, 0.0)}
            await said.again()
            assert room.of()["m"] == 6


async def test_models_that_are_gone_are_forgotten() -> None:
    said = Said(m=(6.0, 0.0), n=(6.0, 0.0))
    async with following(said) as room:
        await room.enter("n")
        said.rooms = {}
        await said.again()
        assert not room.of()
        assert "n" in room._models, "one of it is still at the fleet"
        room.leave("n")
        assert "n" not in room._models


async def test_names_that_clients_make_up_leave_nothing_behind() -> None:
    async with following(Said(m=(6.0, 0.0))) as room:
        for number in range(100):
            await room.enter(f"made-up-{number}")
            room.leave(f"made-up-{number}")
        assert room.of().keys() == {"m"}
        assert len(room._models) == 2, "m, and the first that is still there"


async def test_who_gives_up_waiting_takes_no_room() -> None:
    async with following(Said(m=(1.0, 0.0))) as room:
        await room.enter("m")
        first, second = (asyncio.create_task(room.enter("m")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        room.leave("m")
        await second
