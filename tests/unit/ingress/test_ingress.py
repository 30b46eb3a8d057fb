"""What becomes of messages, over a broker in memory that is none: `tests/integration/ingress` has the real ones."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from balancer.ingress import ingress as ingress_module
from balancer.ingress.calls import Call
from balancer.ingress.events import Execution
from balancer.ingress.ingress import MOST_BEGUN, MOST_DELIVERIES, Ingress, Options
from balancer.ingress.message import BrokerError, BrokerRefusesError, Event, Message, Settled, safe_id
from balancer.ingress.metrics import IngressMetrics
from balancer.ingress.outcomes import Answer, Failure
from balancer.ingress.room import Room

LATER = Failure("the fleet is full", final=False, begun=0)
LOST = Failure("the worker died", final=False, begun=1)
WRONG = Failure("the listener answers 400: wrong shape", final=True, begun=0)
OK = Answer(b"said", {"content-type": "application/json"})


class FakeBroker:
    """Keeps messages in memory, and fails as often as it is told to."""

    lease_s = 30.0
    max_body_bytes = 1000

    def __init__(self, *messages: Message, failures: float = 0.0) -> None:
        self.messages = [*messages]
        self.settled: list[tuple[str, Settled]] = []
        self.told: list[Event] = []
        self.most_asked = 0
        self.all_settled = asyncio.Event()
        self.closed = False
        self._left = len(messages)
        self._failing = random.Random(1)
        self._failures = failures

    def _may_fail(self) -> None:
        if self._failing.random() < self._failures:
            raise BrokerError("it is away")

    async def open(self) -> None:
        self._may_fail()

    async def take(self, most: int) -> Sequence[Message]:
        self._may_fail()
        self.most_asked = max(self.most_asked, most)
        taken, self.messages = self.messages[:most], self.messages[most:]
        if not taken:
            await asyncio.Event().wait()
        return taken

    async def settle(self, ended: Sequence[Settled]) -> Sequence[tuple[Settled, bool]]:
        self._may_fail()
        self.settled += [(each.message.id, each) for each in ended]
        if len(self.settled) >= self._left:
            self.all_settled.set()
        return [(each, True) for each in ended]

    async def tell(self, events: Sequence[Event]) -> None:
        self._may_fail()
        self.told += events

    async def keep(self, held: Sequence[Message]) -> None: ...

    async def lag(self) -> int:
        return len(self.messages)

    async def close(self) -> None:
        self.closed = True


class Listener:
    """Says of each message what it is told to, in turn, and the last for ever."""

    def __init__(self, **said: Sequence[Answer | Failure]) -> None:
        self._said = {id_: [*each] for id_, each in said.items()}
        self.calls: list[str] = []
        self.at_once = self.most_at_once = 0
        self.hold: asyncio.Event | None = None

    async def __call__(
        self, call: Call, message: Message, until_s: float, execution: Execution | None = None
    ) -> Answer | Failure:
        self.calls.append(message.id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await (self.hold.wait() if self.hold else asyncio.sleep(0))
        finally:
            self.at_once -= 1
        said = self._said.get(message.id, [OK])
        return said.pop(0) if len(said) > 1 else said[0]


def message(id_: str, key: str = "", **more: Any) -> Message:
    known: dict[str, Any] = {"body": b"{}", "headers": {"x-model": "m"}, "published_s": time.time(), "position": None}
    return Message(id_, key=key, **(known | more))


async def served(broker: FakeBroker, listener: Listener, room: float = 100.0, **options: Any) -> Ingress:
    async with running(broker, listener, room, **options) as ingress:
        await broker.all_settled.wait()
    return ingress


@contextlib.asynccontextmanager
async def running(
    broker: FakeBroker, listener: Listener, most: float = 100.0, **options: Any
) -> AsyncIterator[IngressMetrics]:
    async def says() -> bytes:
        return json.dumps({"room": {"m": {"requests": most, "in_flight": listener.at_once}}}).encode()

    room, metrics, stop = Room(says), IngressMetrics(), asyncio.Event()
    following = asyncio.create_task(room.run())
    task = asyncio.create_task(Ingress(broker, listener, room, Options(**options), metrics).run(stop))
    try:
        yield metrics
    finally:
        stop.set()
        following.cancel()
        await task


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_module, "_FIRST_PAUSE_S", 0.0)


def fates(broker: FakeBroker) -> Mapping[str, str]:
    assert max(Counter(id_ for id_, _ in broker.settled).values()) == 1, "each once"
    return {id_: each.fate for id_, each in broker.settled}


async def test_every_message_ends_once_whatever_becomes_of_its_calls() -> None:
    drawn = random.Random(0)
    said, expected = {}, {}
    for number in range(200):
        failures = [drawn.choice((LATER, LOST)) for _ in range(drawn.randrange(6))]
        last = drawn.choice((OK, OK, WRONG))
        said[f"id{number}"] = [*failures, last]
        expected[f"id{number}"] = "answered" if last is OK else "dead"
    broker = FakeBroker(*map(message, said), failures=0.2)
    await served(broker, Listener(**said))
    assert fates(broker) == expected
    assert broker.closed


async def test_what_fails_at_worker_after_worker_is_a_dead_letter_and_what_finds_no_room_is_not() -> None:
    listener = Listener(poison=[LOST], patient=[LATER] * 50 + [OK])
    broker = FakeBroker(message("poison", body=b"asked"), message("patient"))
    await served(broker, listener)
    assert fates(broker) == {"poison": "dead", "patient": "answered"}
    assert listener.calls.count("poison") == MOST_BEGUN
    (letter,) = [each for _, each in broker.settled if each.fate == "dead"]
    assert letter.body == b"asked"
    assert letter.headers == {"x-model": "m", "x-dead-reason": "the worker died", "x-dead-calls": str(MOST_BEGUN)}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message("late", headers={"x-model": "m", "x-deadline-ms": "5"}, published_s=time.time() - 1), "deadline"),
        (message("none", headers={}), "names no model"),
        (message("deadly", deliveries=MOST_DELIVERIES + 1), "never settled"),
        (message(safe_id("\x00")), "its id is none"),
    ],
)
async def test_what_nobody_can_answer_is_not_sent(bad: Message, reason: str) -> None:
    broker, listener = FakeBroker(bad), Listener()
    await served(broker, listener)
    ((_, letter),) = broker.settled
    assert letter.fate == "dead"
    assert reason in letter.headers["x-dead-reason"]
    assert not listener.calls


async def test_an_answer_that_the_broker_cannot_take_is_said_to_be_so() -> None:
    broker = FakeBroker(message("a"))
    await served(broker, Listener(a=[Answer(b"x" * 1001, {})]))
    ((_, letter),) = broker.settled
    assert "1001 bytes" in letter.headers["x-dead-reason"]


async def test_a_dead_letter_is_as_small_as_the_broker_can_take() -> None:
    many = {f"h{number}": "x" * 5000 for number in range(9000)}
    broker = FakeBroker(message("a", headers=many), message("b", headers={}, body=b"x" * 1001))
    await served(broker, Listener())
    letters = dict(broker.settled)
    assert len(letters["a"].headers) == 32 + 2
    assert max(map(len, letters["a"].headers.values())) == 1024
    assert letters["b"].body == b""
    assert "1001 bytes are left out" in letters["b"].headers["x-dead-reason"]


async def test_what_was_answered_before_is_not_sent_again() -> None:
    broker, listener = FakeBroker(message("a", known=True, deliveries=2)), Listener()
    await served(broker, listener)
    assert fates(broker) == {"a": "known"}
    assert not listener.calls


async def test_a_second_execution_is_counted() -> None:
    broker = FakeBroker(message("a"), message("b", deliveries=2), message("c"))
    async with running(broker, Listener(a=[LOST, OK], c=[LATER, OK])) as metrics:
        await broker.all_settled.wait()
    assert metrics.repeated._value.get() == 2, "a after its loss, and b that another may have begun with"


async def test_no_more_is_taken_than_the_fleet_has_room_for() -> None:
    broker, listener = FakeBroker(*(message(f"id{number}") for number in range(300))), Listener()
    await served(broker, listener, room=7)
    assert len(fates(broker)) == 300
    assert listener.most_at_once <= 7
    assert broker.most_asked <= 7 + 16


async def test_messages_of_a_key_are_served_in_their_order() -> None:
    keys = [f"k{number % 5}" for number in range(100)]
    said = {f"id{number}": [LATER] * (number % 4) + [OK] for number in range(100)}
    broker = FakeBroker(*(message(f"id{number}", key) for number, key in enumerate(keys)))
    listener = Listener(**said)
    await served(broker, listener, in_order=True)
    order = defaultdict(list)
    for id_, _ in broker.settled:
        order[int(id_[2:]) % 5].append(int(id_[2:]))
    assert all(each == sorted(each) for each in order.values())
    assert listener.most_at_once <= 5


async def test_it_ends_what_it_holds_before_it_stops_and_takes_nothing_new() -> None:
    broker, listener = FakeBroker(message("a")), Listener()
    listener.hold = asyncio.Event()
    async with running(broker, listener):
        while not listener.at_once:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, listener.hold.set)
    assert fates(broker) == {"a": "answered"}


async def test_what_does_not_end_in_time_is_left_to_others() -> None:
    broker, listener = FakeBroker(message("a")), Listener()
    listener.hold = asyncio.Event()
    async with running(broker, listener, drain_s=0.01):
        while not listener.at_once:
            await asyncio.sleep(0)
    assert not broker.settled
    assert broker.closed


async def test_a_mistake_of_ours_costs_one_message() -> None:
    class Mistaken(Listener):
        async def __call__(
            self, call: Call, message: Message, until_s: float, execution: Execution | None = None
        ) -> Answer | Failure:
            if message.id == "b":
                raise ZeroDivisionError
            return await super().__call__(call, message, until_s)

    broker = FakeBroker(message("a"), message("b"), message("c"))
    await served(broker, Mistaken())
    assert fates(broker) == {"a": "answered", "b": "dead", "c": "answered"}


async def test_what_the_broker_will_never_do_ends_it() -> None:
    class Refusing(FakeBroker):
        async def open(self) -> None:
            raise BrokerRefusesError("there is no such topic; make it")

    with pytest.raises(BrokerRefusesError, match="no such topic"):
        await Ingress(Refusing(), Listener(), Room(_nothing), Options(), IngressMetrics()).run(asyncio.Event())


async def _nothing() -> bytes:
    return b'{"room": {}}'
