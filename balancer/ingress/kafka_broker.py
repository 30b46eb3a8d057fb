"""Kafka: answers and the offsets of their requests are committed in one transaction, in the order of each partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from balancer.ingress.message import (
    ID_HEADER,
    KEY_HEADER,
    MAX_ID_BYTES,
    BrokerError,
    BrokerRefusesError,
    Event,
    Message,
    Settled,
    Topics,
    safe_id,
)

_TAKE_S = 0.5
_ANSWER_S = 10.0
_OURS = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 100,
}
_REFUSED = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED)
Said = TypeVar("Said")


@dataclass(slots=True)
class _Partition:
    open: dict[int, Settled | None] = field(default_factory=dict)
    """By offset, ascending: what was taken and is not committed, and what it ended as."""

    def ready(self) -> list[int]:
        """Offsets that can be committed: all before them have ended too."""
        found = []
        for offset, settled in self.open.items():
            if settled is None:
                break
            found.append(offset)
        return found


class KafkaBroker:
    """An id stands once among the answers that `read_committed` shows, as often as among the requests. What ends
    early waits for what came before it in its partition. What the URL says after `?` are properties of librdkafka.
    """

    max_body_bytes = 2**20 - 64 * 1024
    """What brokers take unless they are told otherwise, less room for headers."""

    def __init__(self, url: str, topics: Topics) -> None:
        """`topics.in_order` changes nothing here: partitions are in order as they stand."""
        parts = urlsplit(url)
        self._properties: dict[str, Any] = {"bootstrap.servers": parts.netloc, **dict(parse_qsl(parts.query))}
        self._properties |= {"log_level": 2}
        self._topics, self.lease_s = topics, topics.lease_s
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._teller: Producer | None = None
        self._member: Any = None
        self._partitions: dict[int, _Partition] = {}
        self._lost: list[Settled] = []
        """Ended here, while another one has got their partition."""
        self._doubtful = False
        """Whether nobody has said what became of the last commit."""
        self._revoked: list[int] = []
        self._early: list[Message] = []
        """Taken, and not asked for yet."""
        names = ("reader", "writer", "teller")
        self._reader, self._writer, self._tellers = (ThreadPoolExecutor(1, f"kafka-{what}") for what in names)

    async def open(self) -> None:
        if self._consumer is None:
            lease_ms = int(1e3 * self.lease_s)
            # Who is asked to give partitions away has twice as long for it, and others wait.
            times = {"session.timeout.ms": lease_ms, "max.poll.interval.ms": 2 * lease_ms}
            try:
                self._consumer = Consumer({**self._properties, **_OURS, **times, "group.id": self._topics.group})
            except KafkaException as error:
                raise BrokerRefusesError(f"Kafka: {_words(error)}; look at what follows ? in --broker") from error
            self._consumer.subscribe([self._topics.requests], on_revoke=self._revoke, on_lost=self._revoke)
        await self._in(self._writer, self._have_producer)

    def _have_producer(self) -> Producer:
        if self._producer is None:
            mine = f"{self._topics.group}-{self._topics.name}"
            how = {"transactional.id": mine, "transaction.timeout.ms": 10_000, "linger.ms": 0}
            producer = Producer({**self._properties, **how})
            producer.init_transactions(_ANSWER_S)
            self._producer = producer
        return self._producer

    def _revoke(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Called within `consume`."""
        self._revoked += [partition.partition for partition in partitions]

    async def take(self, most: int) -> Sequence[Message]:
        early, self._early = self._early, []
        return early or self._taken(*await self._in(self._reader, lambda: self._consume(most, _TAKE_S)))

    def _taken(self, taken: Sequence[KafkaMessage], revoked: Sequence[int], member: Any) -> list[Message]:
        self._member = member
        for number in revoked:
            gone = self._partitions.pop(number, _Partition())
            self._lost += [settled for settled in gone.open.values() if settled is not None]
        found = []
        for each in taken:
            if each.error() is None:
                found.append(message := _message(each))
                self._partitions.setdefault(message.position[0], _Partition()).open[message.position[1]] = None
        errors = [error for each in taken if (error := each.error()) is not None and error.code() in _REFUSED]
        if errors and not found:
            raise BrokerError(f"topic {self._topics.requests!r}: {errors[0].str()}; make it, with some partitions")
        return found

    def _consume(self, most: int, wait_s: float) -> tuple[list[KafkaMessage], list[int], Any]:
        """Messages, the partitions that went to others meanwhile, and as whom offsets are committed from now on."""
        consumer = self._consumer
        assert consumer is not None
        taken = consumer.consume(most, wait_s)
        if self._revoked:
            # Some are from before the rebalance, of partitions that others may have now: all are fetched again.
            taken = []
            from_here = consumer.committed(consumer.assignment(), _ANSWER_S)
            for partition in from_here:
                partition.offset = partition.offset if partition.offset >= 0 else OFFSET_BEGINNING
            consumer.assign(from_here)
        revoked, self._revoked = self._revoked, []
        return taken, revoked, consumer.consumer_group_metadata()

    async def settle(self, ended: Sequence[Settled]) -> Sequence[tuple[Settled, bool]]:
        for settled in ended:
            partition, offset = settled.message.position
            open_ = self._partitions.get(partition, _Partition()).open
            if offset in open_:
                open_[offset] = settled
            else:
                self._lost.append(settled)
        ready = {number: partition.ready() for number, partition in self._partitions.items()}
        batch = [self._partitions[number].open[offset] for number, offsets in ready.items() for offset in offsets]
        if batch:
            ends = [
                TopicPartition(self._topics.requests, number, max(each) + 1) for number, each in ready.items() if each
            ]
            ended_now, member = [each for each in batch if each is not None], self._member
            await self._in(self._writer, lambda: self._commit(ended_now, ends, member))
            for number, offsets in ready.items():
                for offset in offsets:
                    self._partitions[number].open.pop(offset, None)
        lost, self._lost = self._lost, []
        return [(settled, True) for settled in batch if settled is not None] + [(settled, False) for settled in lost]

    def _commit(self, batch: Sequence[Settled], ends: Sequence[TopicPartition], member: Any) -> None:
        """`member`: as whom; where partitions have gone to others since, Kafka refuses it."""
        # A producer that begins anew ends what its name has left open.
        producer, consumer = self._have_producer(), self._consumer
        assert consumer is not None
        if self._doubtful:
            committed = {each.partition: each.offset for each in consumer.committed(list(ends), _ANSWER_S)}
            batch = [each for each in batch if each.message.position[1] >= committed[each.message.position[0]]]
            ends = [end for end in ends if end.offset > committed[end.partition]]
            self._doubtful = False
            if not batch:
                return
        try:
            producer.begin_transaction()
            for settled in batch:
                id_ = settled.message.id
                headers = {**settled.headers, ID_HEADER: id_}
                key = settled.message.key if 0 < len(settled.message.key) <= MAX_ID_BYTES else id_
                producer.produce(self._topics.of(settled.fate), settled.body, key.encode(), headers=_encoded(headers))
            producer.send_offsets_to_transaction(list(ends), member, _ANSWER_S)
        except (KafkaException, BufferError) as error:
            self._abort(producer, error)
            raise
        try:
            producer.commit_transaction(_ANSWER_S)
        except KafkaException:
            self._doubtful, self._producer = True, None
            raise

    def _abort(self, producer: Producer, error: Exception) -> None:
        failed = error.args[0] if isinstance(error, KafkaException) else None
        with contextlib.suppress(KafkaException):
            if not (failed is not None and failed.fatal()):
                producer.abort_transaction(_ANSWER_S)
                return
        # Another one has its name, or the broker knows it no more: it begins as a new one.
        self._producer = None

    async def tell(self, events: Sequence[Event]) -> None:
        """By a producer of their own: they are in no transaction."""

        def tell() -> None:
            failed: list[KafkaError] = []

            def taken(error: KafkaError | None, _: KafkaMessage) -> None:
                failed.extend(() if error is None else (error,))

            if self._teller is None:
                patience = {"linger.ms": 0, "message.timeout.ms": int(1e3 * _ANSWER_S)}
                self._teller = Producer({**self._properties, **patience})
            for event in events:
                key, headers = event.message.id.encode(), _encoded(event.headers)
                self._teller.produce(self._topics.events, event.data, key, headers=headers, on_delivery=taken)
            self._teller.flush()
            if failed:
                raise KafkaException(failed[0])

        await self._in(self._tellers, tell)

    async def keep(self, held: Sequence[Message]) -> None:
        """Heartbeats are librdkafka's, but who takes part in a rebalance has to ask for messages."""
        consumer = self._consumer
        assert consumer is not None

        def nothing() -> tuple[list[KafkaMessage], list[int], Any]:
            consumer.pause(consumer.assignment())
            try:
                return self._consume(1, 0.0)
            finally:
                consumer.resume(consumer.assignment())

        self._early += self._taken(*await self._in(self._reader, nothing))

    async def lag(self) -> int:
        consumer = self._consumer
        assert consumer is not None

        def lag() -> int:
            total, topic = 0, self._topics.requests
            found = consumer.list_topics(topic, _ANSWER_S).topics[topic].partitions
            for partition in consumer.committed([TopicPartition(topic, number) for number in found], _ANSWER_S):
                low, high = consumer.get_watermark_offsets(partition, _ANSWER_S)
                total += high - max(partition.offset, low)
            return total

        return await self._in(self._writer, lag)

    async def close(self) -> None:
        if self._consumer is not None:
            with contextlib.suppress(BrokerError):
                await self._in(self._reader, self._consumer.close)
        for threads in (self._reader, self._writer, self._tellers):
            threads.shutdown(wait=False)

    async def _in(self, threads: ThreadPoolExecutor, ask: Callable[[], Said]) -> Said:
        """What Kafka says, asked in that thread.

        Raises:
            BrokerError: it says nothing, or no.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, ask)
        except (KafkaException, BufferError, RuntimeError) as error:
            raise BrokerError(_words(error)) from error


def _message(taken: KafkaMessage) -> Message:
    raw: Any = taken.headers() or ()
    headers = {name.lower(): (value or b"").decode("utf-8", "replace") for name, value in raw}
    place = (taken.partition(), taken.offset())
    key = (taken.key() or b"").decode("utf-8", "replace")
    id_ = headers.pop(ID_HEADER, "") or key or f"{taken.topic()}-{place[0]}-{place[1]}"
    _, published_ms = taken.timestamp()
    return Message(
        safe_id(id_), taken.value() or b"", headers, published_ms / 1e3, place, key=headers.get(KEY_HEADER, key)
    )


def _encoded(headers: Mapping[str, str]) -> list[tuple[str, str | bytes | None]]:
    return [(name, value.encode()) for name, value in headers.items()]


def _words(error: Exception) -> str:
    failed = error.args[0] if error.args else error
    return failed.str() if isinstance(failed, KafkaError) else str(error)
