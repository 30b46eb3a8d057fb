"""Redis Streams: a consumer group reads requests; one script publishes an answer and settles its request."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from balancer.ingress.message import ID_HEADER, KEY_HEADER, BrokerError, BrokerRefusesError, Message, Settled

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
Said = TypeVar("Said")


class RedisBroker:
    """An id stands once among the answers: settling its entry and publishing are one script, which does it once.

    With Redis Cluster, all names need one hash tag, as `{fleet}requests`.
    """

    keep_s = 30.0
    max_body_bytes = 256 * 2**20

    def __init__(self, url: str, requests: str, answers: str, dead_letters: str, group: str, in_order: bool) -> None:
        self._requests, self._group, self._in_order = requests, group, in_order
        self._to = {"answered": answers, "dead": dead_letters, "known": answers}
        self._once = f"{answers}:once:"
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._claimed_s = -self.keep_s
        try:
            self._redis: Redis = Redis.from_url(url, socket_timeout=_ANSWER_S, socket_connect_timeout=5.0)
        except ValueError as error:
            raise BrokerRefusesError(f"{url!r} is no address of a Redis: {error}") from error
        self._script = ""

    async def open(self) -> None:
        self._script = await _asked(self._redis.script_load(_SETTLE))
        try:
            await _asked(self._redis.xgroup_create(self._requests, self._group, id="0", mkstream=True))
        except BrokerError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def take(self, most: int) -> Sequence[Message]:
        """What others left first; then what is new."""
        left_s = 0.0 if self._in_order and self._claimed_s < 0 else self.keep_s
        if time.monotonic() - self._claimed_s >= self.keep_s / 3 or not left_s:
            found = await _asked(
                self._redis.xautoclaim(
                    self._requests, self._group, self._name, int(left_s * 1e3), count=most, start_id="0-0"
                )
            )
            if len(entries := [entry for entry in found[1] if entry[1]]) < most:
                self._claimed_s = time.monotonic()
            if entries:
                return await self._messages(entries, again=True)
        streams = await _asked(
            self._redis.xreadgroup(self._group, self._name, {self._requests: ">"}, count=most, block=int(_TAKE_S * 1e3))
        )
        return await self._messages([entry for _, entries in streams or () for entry in entries], again=False)

    async def _messages(self, entries: Sequence[Any], again: bool) -> list[Message]:
        if not entries:
            return []
        found = []
        async with self._redis.pipeline(transaction=False) as pipeline:
            for position, fields in entries:
                pipeline.exists(self._once + _id(position, fields))
                if again:
                    pipeline.xpending_range(self._requests, self._group, position, position, 1)
            said = await _asked(pipeline.execute())
        step = 2 if again else 1
        for number, (position, fields) in enumerate(entries):
            pending = said[step * number + 1] if again else ()
            found.append(
                Message(
                    id=_id(position, fields),
                    body=fields.get(_BODY, b""),
                    headers=_headers(fields),
                    published_s=int(position.split(b"-")[0]) / 1e3,
                    position=position,
                    deliveries=pending[0]["times_delivered"] if pending else 1 + again,
                    key=_headers(fields).get(KEY_HEADER, ""),
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
                keys = (self._requests, self._to[settled.fate], self._once + message.id)
                pipeline.evalsha(
                    self._script, 3, *keys, self._group, message.position, REMEMBER_S, settled.fate, *fields
                )
            try:
                said = await _asked(pipeline.execute())
            except _NoScriptError:
                # The server has been started anew.
                self._script = await _asked(self._redis.script_load(_SETTLE))
                raise
        return [(settled, bool(now)) for settled, now in zip(ended, said, strict=True)]

    async def keep(self, held: Sequence[Message]) -> None:
        if positions := [message.position for message in held]:
            await _asked(self._redis.xclaim(self._requests, self._group, self._name, 0, positions, justid=True))

    async def lag(self) -> int:
        """What is settled is deleted."""
        return int(await _asked(self._redis.xlen(self._requests)))

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
    return (fields.get(b"id") or fields.get(ID_HEADER.encode()) or position).decode("utf-8", "replace")


def _headers(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace").lower(): value.decode("utf-8", "replace")
        for name, value in fields.items()
        if name not in (_BODY, b"id", ID_HEADER.encode())
    }
