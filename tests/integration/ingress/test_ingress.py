"""Requests of a topic, through the listener, to another topic: real brokers, a real stack."""

import asyncio
import contextlib
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import aiomqtt
import nats
import pytest
import pytest_asyncio
import redis.asyncio
from support.brokers import BROKERS, Asked, Program, RealBroker, RealNats, Said
from support.running import running
from support.stack import Stack
from support.waiting import eventually
from tritonclient.grpc import service_pb2

from balancer.ingress.message import NO_ID
from balancer.stack.nats_server import find_nats
from balancer.stack.process import Child, LocalProcess, free_ports

TENSOR: dict[str, Any] = {"name": "INPUT", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
MODEL = {"x-model": "emulated_tft"}
PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), workers=2)
    async with running(stack):
        yield stack


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> RealBroker:
    return BROKERS[request.param](tmp_path)


def new_ingress(stack: Stack, broker: RealBroker, *further: str, name: str = "ingress") -> Child:
    """A Kafka broker wants at least six seconds to take a consumer for gone."""
    lease_s = "6" if broker.scheme == "kafka" else "1"
    where = ("--broker", broker.url, "--listener", f"http://{stack.url}", "--balancer", stack.admin())
    return Child(
        arguments=["ingress", *where, "--lease-s", lease_s, *further], log_path=broker.directory / f"{name}.log"
    )


async def all_said(broker: RealBroker, count: int) -> list[Said]:
    """Once all ids have ended; with those that ended twice."""

    def ended(said: list[Said]) -> bool:
        return len({each.id for each in said}) >= count

    said: list[Said] = await eventually(broker.said, "all ended", until=ended)
    return said


def asked(count: int, **headers: str) -> list[Asked]:
    return [Asked(f"id-{number}", BODY, {**MODEL, **headers}) for number in range(count)]


def protobuf(count: int) -> list[Asked]:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="INPUT", shape=[1, 4], datatype="FP32")
    raw = struct.pack("<4f", *TENSOR["data"])
    body = service_pb2.ModelInferRequest(model_name="emulated_tft", inputs=[tensor], raw_input_contents=[raw])
    return [Asked(f"pb-{number}", body.SerializeToString(), PROTOBUF) for number in range(count)]


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_have_the_ids_of_their_requests_and_what_cannot_be_answered_says_why(
    stack: Stack, broker: RealBroker
) -> None:
    odd = [
        Asked("no-model", BODY, {}),
        Asked("wrong-shape", json.dumps({"inputs": [{**TENSOR, "shape": [3]}]}).encode(), MODEL),
        Asked("too-late", BODY, {**MODEL, "x-deadline-ms": "0"}),
        Asked("x" * 5000, BODY, MODEL),
        Asked("many-headers", BODY, {f"h{number}": "x" for number in range(5000)}),
    ]
    port = free_ports(1)[0]
    async with running(broker, new_ingress(stack, broker, "--metrics", f"127.0.0.1:{port}")):
        await broker.publish([*asked(40, **{"x-priority": "1"}), *odd, *protobuf(5), Asked("none", b"{", PROTOBUF)])
        said = await all_said(broker, 51)
        answers = {each.id: each for each in said if each.topic == "answers"}
        dead = {each.id: each for each in said if each.topic != "answers"}
        assert len(said) == len(answers) + len(dead) == 51, "each id once"
        assert answers.keys() == {f"id-{number}" for number in range(40)} | {f"pb-{number}" for number in range(5)}
        outputs = {each["name"] for each in json.loads(answers["id-3"].body)["outputs"]}
        assert outputs == {"CHECKSUM", "WORKER"}
        assert answers["id-3"].headers["x-status"] == "200"
        by_grpc = service_pb2.ModelInferResponse.FromString(answers["pb-3"].body)
        assert {each.name for each in by_grpc.outputs} == {"CHECKSUM", "WORKER"}
        reasons = {id_: each.headers["x-dead-reason"] for id_, each in dead.items()}
        assert "x-model" in reasons["no-model"]
        assert "Shape does not match" in reasons["wrong-shape"]
        assert "deadline" in reasons["too-late"]
        assert "ModelInferRequest" in reasons["none"]
        (nameless,) = (reason for id_, reason in reasons.items() if id_.startswith(NO_ID))
        assert "printable" in nameless
        assert len(dead["many-headers"].headers) < 40
        assert dead["wrong-shape"].body == odd[1].body
        metrics = await page(f"http://127.0.0.1:{port}/metrics")
        assert 'balancer_ingress_settled_total{fate="dead"} 6.0' in metrics


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


@pytest.mark.asyncio(loop_scope="module")
async def test_an_id_stands_once_whatever_is_killed(stack: Stack, broker: RealBroker) -> None:
    """Ingresses are killed while they hold messages, and the broker where it keeps what it has."""
    count, at_once = 600, 2 if broker.lasting else 1
    async with contextlib.AsyncExitStack() as parts:
        await parts.enter_async_context(running(broker))

        async def start(number: int) -> Child:
            ingress = new_ingress(stack, broker, "--name", f"ingress-{number}", name=f"ingress-{number}")
            parts.push_async_callback(ingress.stop)
            await ingress.start()
            return ingress

        ingresses = [await start(number) for number in range(at_once)]
        await broker.publish(asked(count))
        for turn in range(at_once):
            before = len(await broker.said())
            await eventually(broker.said, "more ended", until=lambda said, before=before: len(said) > before)
            await ingresses[turn % at_once].kill()
            if broker.lasting:
                await broker.kill()
                await broker.start()
            ingresses[turn % at_once] = await start(turn % at_once)
        said = await all_said(broker, count)
    assert Counter(each.id for each in said).most_common(1)[0][1] == 1, "each once"
    assert Counter(each.topic for each in said) == {"answers": count}


@pytest.mark.asyncio(loop_scope="module")
async def test_who_comes_second_with_an_answer_publishes_nothing(stack: Stack, tmp_path: Path) -> None:
    broker = RealNats(tmp_path)
    async with running(broker):
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="answers", subjects=["answers.>"])
        await client.jetstream().publish("answers.id-1", b"of another", headers={"x-request-id": "id-1"})
        await client.close()
        async with running(new_ingress(stack, broker)):
            await broker.publish(asked(3))
            said = {each.id: each.body for each in await all_said(broker, 3)}
            await eventually(broker.left, "all are settled", until=lambda left: left == 0)
    assert len(said) == 3
    assert said["id-1"] == b"of another"


@pytest.mark.asyncio(loop_scope="module")
async def test_messages_of_a_key_keep_their_order_though_the_ingress_is_killed(
    stack: Stack, broker: RealBroker
) -> None:
    count = 400
    keyed = [
        Asked(each.id, each.body, {**each.headers, "x-routing-key": f"k{number % 3}"})
        for number, each in enumerate(asked(count))
    ]
    if not broker.lasting:
        pytest.skip("there a key stays in its partition, which the test before this holds to")
    async with contextlib.AsyncExitStack() as parts:
        await parts.enter_async_context(running(broker))
        first, second = (new_ingress(stack, broker, "--in-order", name=name) for name in ("first", "second"))
        for each in (first, second):
            parts.push_async_callback(each.stop)
        await first.start()
        await broker.publish(keyed)
        await eventually(broker.said, "some ended", until=lambda said: len(said) > 10)
        await first.kill()
        await second.start()
        before = len(await broker.said())
        await eventually(broker.said, "more ended", until=lambda said: len(said) > before)
        await broker.kill()
        await broker.start()
        said = await all_said(broker, count)
    numbers = [int(each.id.removeprefix("id-")) for each in said]
    for key in range(3):
        of_key = [number for number in numbers if number % 3 == key]
        assert of_key == sorted(of_key)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_fleet_has_no_room_for_stays_at_the_broker(stack: Stack, tmp_path: Path) -> None:
    broker = BROKERS["redis"](tmp_path)
    async with running(broker):
        await broker.publish(asked(3000))
        async with running(new_ingress(stack, broker)):
            room = (await stack.get("/room"))["room"]["emulated_tft"]["requests"]
            async with redis.asyncio.Redis.from_url(broker.url) as client:
                most = 0
                while await client.xlen("requests"):
                    for group in await client.xinfo_groups("requests"):
                        most = max(most, group["pending"])
                    await asyncio.sleep(0)
    assert 0 < most <= 2 * (room + 16), "16: for other models, that may come"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_device_of_mqtt_finds_the_answer_by_the_id_in_its_topic(stack: Stack, tmp_path: Path) -> None:
    broker = NatsWithMqtt(tmp_path)
    async with (
        running(broker, new_ingress(stack, broker, "--model", "emulated_tft")),
        aiomqtt.Client("127.0.0.1", broker.mqtt_port, identifier="device") as device,
    ):
        await device.subscribe("answers/#", qos=1)
        for id_ in ("cam-7-1", "cam-7-2", "cam-7-1"):
            await device.publish(f"requests/id/{id_}", BODY, qos=1)
        answers: dict[str, Any] = {}
        async with asyncio.timeout(60):
            while len(answers) < 2:
                # Who only subscribes may also see what the stream refuses: a second answer.
                message = await anext(device.messages)
                answers[str(message.topic)] = json.loads(message.payload)
        assert answers.keys() == {"answers/cam-7-1", "answers/cam-7-2"}
        assert all("outputs" in each for each in answers.values())
        await eventually(broker.left, "nothing waits", until=lambda left: left == 0)
        assert sorted(each.id for each in await broker.said()) == ["cam-7-1", "cam-7-2"]


class NatsWithMqtt(RealNats):
    """By its own port for clients of MQTT."""

    def _new_process(self) -> LocalProcess:
        (self.mqtt_port,) = free_ports(1)
        file = self.directory / "nats.conf"
        file.write_text(
            f"server_name: one, host: 127.0.0.1, port: {self.port}\n"
            f"jetstream {{store_dir: {json.dumps(str(self.directory / 'nats'))}}}\n"
            f"mqtt {{host: 127.0.0.1, port: {self.mqtt_port}}}\n"
        )
        return Program(command=[find_nats(), "--config", str(file)], log_path=self.directory / "nats.log")
