"""Redis Streams: a consumer group reads requests; one script publishes an answer and settles its request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from balancer.ingress.message import (
    ID_HEADER,
    KEY_HEADER,
    BrokerError,
    BrokerRefusesError,
    Event,
    Message,
    Settled,
    Topics,
    safe_id,
    without_password,
)

_SETTLE = """
-- Who has not settled it yet publishes, and settles it; an id that was published of late is not published again.
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
if ARGV[4] == 'known' then return 0 end
if not redis.call('SET', KEYS[3], ARGV[2], 'NX', 'EX', ARGV[3]) then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5))
return 1
"""
_BODY = b"body"
"""The field of an entry with its body; all others are headers."""
_TAKE_S = 5.0
_ANSWER_S = 10.0
REMEMBER_S = 24 * 3600
"""For so long an id counts as answered; who sends it later begins anew."""
KEPT_EVENTS = 100_000


class RedisBroker:
    """An id stands once among the answers: settling its entry and publishing are one script, which does it once.

    With Redis Cluster, all names need one hash tag, as `{fleet}requests`.
    """

    max_body_bytes = 256 * 2**20

    def __init__(self, url: str, topics: Topics) -> None:
        self._topics, self.lease_s = topics, topics.lease_s
        self._once = f"{topics.answers}:once:"
        self._claims, self._cursor, self._claimed_s = True, "0-0", 0.0
        """Whether it goes through what others left, how far, and when it last had."""
        self._from_anybody = topics.in_order
        self._held: set[bytes] = set()
        """Positions of what was handed out here and is not settled."""
        try:
            self._redis: Redis = Redis.from_url(url, socket_timeout=_ANSWER_S, socket_connect_timeout=5.0)
        except ValueError as error:
            raise BrokerRefusesError(f"{without_password(url)} is no address of a Redis: {error}") from error
        self._script = ""

    async def open(self) -> None:
        self._script = await _asked(self._redis.script_load(_SETTLE))
        try:
            await _asked(self._redis.xgroup_create(self._topics.requests, self._topics.group, id="0", mkstream=True))
        except BrokerError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def take(self, most: int) -> Sequence[Message]:
        """What others left first; then what is new."""
        try:
            taken = await self._taken(most)
        except BrokerError:
            # What it handed out meanwhile, and we have not got, comes before what is new.
            self._claims, self._cursor, self._from_anybody = True, "0-0", self._topics.in_order
            raise
        self._held |= {message.position for message in taken}
        return taken

    async def _taken(self, most: int) -> list[Message]:
        self._claims |= time.monotonic() - self._claimed_s >= self.lease_s / 3
        while self._claims:
            if entries := await self._left_by_others(most):
                return await self._messages(entries, again=True)
        topics, wait_ms = self._topics, int(1e3 * _TAKE_S)
        streams = await _asked(
            self._redis.xreadgroup(topics.group, topics.name, {topics.requests: ">"}, count=most, block=wait_ms)
        )
        return await self._messages([entry for _, entries in streams or () for entry in entries], again=False)

    async def _left_by_others(self, most: int) -> Sequence[Any]:
        """Entries of ingresses that are gone; at the start, where order matters, of whoever has them."""
        topics, idle_ms = self._topics, 0 if self._from_anybody else int(1e3 * self.lease_s)
        self._cursor, found, *_ = await _asked(
            self._redis.xautoclaim(topics.requests, topics.group, topics.name, idle_ms, self._cursor, count=most)
        )
        self._claims = self._cursor not in (b"0-0", "0-0")
        if not self._claims:
            self._claimed_s, self._from_anybody = time.monotonic(), False
        return [(position, fields) for position, fields in found if fields and position not in self._held]

    async def _messages(self, entries: Sequence[Any], again: bool) -> list[Message]:
        if not entries:
            return []
        found = []
        async with self._redis.pipeline(transaction=False) as pipeline:
            for position, fields in entries:
                pipeline.exists(self._once + _id(position, fields))
                if again:
                    pipeline.xpending_range(self._topics.requests, self._topics.group, position, position, 1)
            said = await _asked(pipeline.execute())
        step = 2 if again else 1
        for number, (position, fields) in enumerate(entries):
            pending, headers = said[step * number + 1] if again else (), _headers(fields)
            found.append(
                Message(
                    id=_id(position, fields),
                    body=fields.get(_BODY, b""),
                    headers=headers,
                    published_s=int(position.split(b"-")[0]) / 1e3,
                    position=position,
                    deliveries=pending[0]["times_delivered"] if pending else 1 + again,
                    key=headers.get(KEY_HEADER, ""),
                    known=bool(said[step * number]),
                )
            )
        return found

    async def settle(self, ended: Sequence[Settled]) -> Sequence[tuple[Settled, bool]]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for settled in ended:
                message = settled.message
                headers = {**settled.headers, ID_HEADER: message.id}
                fields = [part for pair in headers.items() for part in pair] + [_BODY, settled.body]
                keys = (self._topics.requests, self._topics.of(settled.fate), self._once + message.id)
                pipeline.evalsha(
                    self._script, 3, *keys, self._topics.group, message.position, REMEMBER_S, settled.fate, *fields
                )
            try:
                said = await _asked(pipeline.execute())
            except _NoScriptError:
                # The server has been started anew.
                self._script = await _asked(self._redis.script_load(_SETTLE))
                raise
        self._held -= {settled.message.position for settled in ended}
        return [(settled, bool(now)) for settled, now in zip(ended, said, strict=True)]

    async def tell(self, events: Sequence[Event]) -> None:
        """The newest `KEPT_EVENTS` or some more stay."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            for event in events:
                fields: dict[Any, Any] = {**event.headers, _BODY: event.data}
                pipeline.xadd(self._topics.events, fields, maxlen=KEPT_EVENTS)
            await _asked(pipeline.execute())

    async def keep(self, held: Sequence[Message]) -> None:
        if positions := [message.position for message in held]:
            topics = self._topics
            await _asked(self._redis.xclaim(topics.requests, topics.group, topics.name, 0, positions, justid=True))

    async def lag(self) -> int:
        """What is settled is deleted."""
        return int(await _asked(self._redis.xlen(self._topics.requests)))

    async def close(self) -> None:
        await self._redis.aclose()


class _NoScriptError(BrokerError):
    pass


async def _asked(asked: Any) -> Any:
    """What Redis says.

    Raises:
        BrokerError: it says nothing, or no.
    """
    try:
        return await cast(Awaitable[Any], asked)
    except NoScriptError as error:
        raise _NoScriptError(str(error)) from error
    except (RedisError, OSError, TimeoutError) as error:
        raise BrokerError(str(error) or type(error).__name__) from error


def _id(position: bytes, fields: Mapping[bytes, bytes]) -> str:
    return safe_id((fields.get(b"id") or fields.get(ID_HEADER.encode()) or position).decode("utf-8", "replace"))


def _headers(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace").lower(): value.decode("utf-8", "replace")
        for name, value in fields.items()
        if name not in (_BODY, b"id", ID_HEADER.encode())
    }
