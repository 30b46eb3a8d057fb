"""NATS JetStream: requests are a durable consumer's, answers a stream with a subject for each id."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError
from nats.js.errors import Error as JetStreamError

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

_ID, _ABSENT = "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"
_IN_SUBJECT = "id"
"""What stands after it in the subject of a request is its id, where no header has one: MQTT's clients have none."""
_WRONG_LAST = 10071
"""JetStream's error code where the subject has a message already."""
_MOST_HELD = 10_000
"""Messages, by all ingresses of a group together."""
_TAKE_S = 5.0
_ANSWER_S = 5.0
_HEADERS_BYTES = 64 * 1024
"""Kept free in a message for its headers."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
Said = TypeVar("Said")


class NatsBroker:
    """An id stands once among the answers: a subject takes a second message from nobody, as NATS checks.

    Streams that are not there are made, with the defaults of a single server.
    """

    def __init__(self, url: str, topics: Topics) -> None:
        events = (topics.events,) if topics.events else ()
        for name in (topics.requests, topics.answers, topics.dead_letters, topics.group, *events):
            if not _NAME.fullmatch(name):
                raise BrokerRefusesError(f"{name!r} cannot name a stream of NATS: give letters, digits, - and _")
        self._url, self._topics, self.lease_s = url, topics, topics.lease_s
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._pulled: JetStreamContext.PullSubscription | None = None
        self.max_body_bytes = 2**20
        self._lost = True
        """Whether it may have handed out what we have not got."""
        self._held: set[int] = set()
        """Sequences of what was handed out here and is not settled."""
        self._done: dict[int, bool] = {}
        """Of what is being settled, by identity: what is done already, and whether it was published now."""

    async def open(self) -> None:
        if self._client is None:
            client = Client()

            async def quiet(_: Exception) -> None:
                """What goes wrong shows in what is asked next."""

            async def reconnected() -> None:
                self._lost = True

            connecting = client.connect(
                self._url, error_cb=quiet, reconnected_cb=reconnected, max_reconnect_attempts=-1, connect_timeout=5
            )
            try:
                await asyncio.wait_for(_asked(connecting), _ANSWER_S)
            except TimeoutError as error:
                await client.close()
                raise BrokerError(f"nobody answers at {without_password(self._url)}") from error
            self._client = client
        self._jetstream = self._client.jetstream(timeout=_ANSWER_S)
        self.max_body_bytes = self._client.max_payload - _HEADERS_BYTES
        await self._have_stream(self._topics.requests, RetentionPolicy.WORK_QUEUE)
        for name in (self._topics.answers, self._topics.dead_letters):
            await self._have_stream(name, RetentionPolicy.LIMITS)
        await self._subscribe()

    async def _subscribe(self) -> None:
        topics, jetstream = self._topics, self._jetstream
        assert jetstream is not None
        before, self._pulled = self._pulled, None
        if before is not None:
            with contextlib.suppress(BrokerError):
                await _asked(before.unsubscribe())
        if topics.in_order:
            # What was handed out and not settled comes before what is new: a consumer begins at the first that is left.
            with contextlib.suppress(_NotThereError):
                await _asked(jetstream.delete_consumer(topics.requests, topics.group))
        config = ConsumerConfig(
            durable_name=topics.group, ack_policy=AckPolicy.EXPLICIT, ack_wait=self.lease_s, max_ack_pending=_MOST_HELD
        )
        subject, stream = f"{topics.requests}.>", topics.requests
        self._pulled = await _asked(
            jetstream.pull_subscribe(subject, durable=topics.group, stream=stream, config=config)
        )
        self._lost = False

    async def _have_stream(self, name: str, retention: RetentionPolicy) -> None:
        jetstream = self._jetstream
        assert jetstream is not None
        try:
            await _asked(jetstream.stream_info(name))
        except _NotThereError:
            config = StreamConfig(
                name=name,
                subjects=[f"{name}.>"],
                retention=retention,
                storage=StorageType.FILE,
                allow_direct=True,
            )
            await _asked(jetstream.add_stream(config))

    async def take(self, most: int) -> Sequence[Message]:
        assert self._client is not None
        if not self._client.is_connected:
            raise BrokerError("there is no connection to NATS")
        if self._lost:
            await self._subscribe()
        assert self._pulled is not None
        try:
            taken: list[Msg] = await self._pulled.fetch(most, timeout=_TAKE_S)
            new = [each for each in taken if each.metadata.sequence.stream not in self._held]
            found = await asyncio.gather(*map(self._message, new))
        except (TimeoutError, nats.errors.TimeoutError):
            return []
        except (BrokerError, NatsError, JetStreamError, OSError) as error:
            self._lost = True
            raise BrokerError(str(error) or type(error).__name__) from error
        self._held |= {message.position.metadata.sequence.stream for message in found}
        return found

    async def _message(self, taken: Msg) -> Message:
        metadata = taken.metadata
        given = {name.lower(): value for name, value in (taken.headers or {}).items()}
        # What the server obeys is not handed on.
        headers = {name: value for name, value in given.items() if not name.startswith("nats-")}
        sequence, again = metadata.sequence.stream, metadata.num_delivered or 1
        before = f"{self._topics.requests}.{_IN_SUBJECT}."
        in_subject = taken.subject[len(before) :] if taken.subject.startswith(before) else ""
        own_id = given.get(_ID.lower()) or headers.pop(ID_HEADER, "") or in_subject
        id_ = safe_id(own_id or f"{self._topics.requests}-{sequence}")
        return Message(
            id=id_,
            body=taken.data,
            headers=headers,
            published_s=metadata.timestamp.timestamp(),
            position=taken,
            deliveries=again,
            key=headers.get(KEY_HEADER, ""),
            known=(again > 1 or self._topics.in_order) and await self._is_answered(id_),
        )

    async def _is_answered(self, id_: str) -> bool:
        jetstream = self._jetstream
        assert jetstream is not None
        for topic in (self._topics.answers, self._topics.dead_letters):
            try:
                await _asked(jetstream.get_last_msg(topic, _subject(topic, id_), direct=True))
            except _NotThereError:
                continue
            return True
        return False

    async def settle(self, ended: Sequence[Settled]) -> Sequence[tuple[Settled, bool]]:
        left = [settled for settled in ended if id(settled) not in self._done]
        for error in await asyncio.gather(*map(self._settle_one, left), return_exceptions=True):
            if error is not None:
                raise error
        done, self._done = self._done, {}
        return [(settled, done[id(settled)]) for settled in ended]

    async def _settle_one(self, settled: Settled) -> None:
        """First the answer, then the acknowledgement: where that is lost, the message is handed out again, and its
        answer found.
        """
        jetstream = self._jetstream
        assert jetstream is not None
        now = settled.fate != "known"
        if now:
            subject = _subject(self._topics.of(settled.fate), settled.message.id)
            headers = {**settled.headers, ID_HEADER: settled.message.id, _ABSENT: "0"}
            try:
                await _asked(jetstream.publish(subject, settled.body, headers=headers))
            except _ThereAlreadyError:
                now = False
        await _asked(settled.message.position.ack())
        self._done[id(settled)] = now
        self._held.discard(settled.message.position.metadata.sequence.stream)

    async def tell(self, events: Sequence[Event]) -> None:
        """To whoever listens; a stream on their subjects keeps them."""
        assert self._client is not None
        if not self._client.is_connected:
            raise BrokerError("there is no connection to NATS")
        for event in events:
            subject = _subject(self._topics.events, event.message.id)
            await _asked(self._client.publish(subject, event.data, headers=event.headers))

    async def keep(self, held: Sequence[Message]) -> None:
        await asyncio.gather(*(_asked(message.position.in_progress()) for message in held))

    async def lag(self) -> int:
        assert self._jetstream is not None
        found = await _asked(self._jetstream.consumer_info(self._topics.requests, self._topics.group))
        return (found.num_pending or 0) + (found.num_ack_pending or 0)

    async def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(BrokerError):
                await _asked(self._client.flush(int(_ANSWER_S)))
            await self._client.close()


class _NotThereError(BrokerError):
    pass


class _ThereAlreadyError(BrokerError):
    pass


async def _asked(asked: Coroutine[Any, Any, Said]) -> Said:
    """What NATS says.

    Raises:
        BrokerError: it says nothing, or no.
    """
    try:
        return await asked
    except NotFoundError as error:
        raise _NotThereError(str(error)) from error
    except APIError as error:
        raise (_ThereAlreadyError if error.err_code == _WRONG_LAST else BrokerError)(str(error)) from error
    except (NatsError, JetStreamError, OSError, TimeoutError) as error:
        raise BrokerError(str(error) or type(error).__name__) from error


def _subject(topic: str, id_: str) -> str:
    """Of an id: with each byte but letters, digits, - and _ as = and two hexadecimal digits."""
    return f"{topic}." + "".join(
        chr(each) if chr(each).isascii() and (chr(each).isalnum() or each in b"-_") else f"={each:02X}"
        for each in id_.encode()
    )
