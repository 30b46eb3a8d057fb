"""Clients of MQTT, by NATS's own port for them: a real NATS, its ingress, a real stack."""

import asyncio
import json
from pathlib import Path

import aiomqtt
from integration.ingress.test_ingress import BODY, new_ingress
from support.brokers import Program, RealNats
from support.running import running
from support.stack import Stack
from support.waiting import eventually

from balancer.stack.nats_server import find_nats
from balancer.stack.process import LocalProcess, free_ports


class NatsWithMqtt(RealNats):
    def _new_process(self) -> LocalProcess:
        (self.mqtt_port,) = free_ports(1)
        file = self.directory / "nats.conf"
        file.write_text(
            f"server_name: one, host: 127.0.0.1, port: {self.port}\n"
            f"jetstream {{store_dir: {json.dumps(str(self.directory / 'nats'))}}}\n"
            f"mqtt {{host: 127.0.0.1, port: {self.mqtt_port}}}\n"
        )
        return Program(command=[find_nats(), "--config", str(file)], log_path=self.directory / "nats.log")


async def test_a_device_finds_the_answer_by_the_id_in_its_topic(tmp_path: Path) -> None:
    broker = NatsWithMqtt(tmp_path)
    async with (
        running(stack := Stack(tmp_path / "stack", workers=1)),
        running(broker, new_ingress(stack, broker, "--model", "emulated_tft")),
        aiomqtt.Client("127.0.0.1", broker.mqtt_port, identifier="device") as device,
    ):
        await device.subscribe("answers/#", qos=1)
        for id_ in ("cam-7-1", "cam-7-2", "cam-7-1"):
            await device.publish(f"requests/id/{id_}", BODY, qos=1)
        async with asyncio.timeout(60):
            answers = [await anext(device.messages) for _ in range(2)]
        assert {str(each.topic) for each in answers} == {"answers/cam-7-1", "answers/cam-7-2"}
        assert all("outputs" in json.loads(each.payload) for each in answers)
        await eventually(broker.left, "nothing waits", until=lambda left: left == 0)
        assert sorted(each.id for each in await broker.said()) == ["cam-7-1", "cam-7-2"]
