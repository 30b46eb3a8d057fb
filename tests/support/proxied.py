"""The proxy of one process between a client and fake workers, over real gRPC; Envoy is left out."""

import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from balancer.channels.channels import Links
from balancer.config.config import from_mapping
from balancer.discovery.workers import WorkerSpec, changes
from balancer.extproc.picker import Picker
from balancer.proxy.messages import INFER, STREAM
from balancer.proxy.settings import ProxyConstants
from balancer.scheduler.events import Finished
from balancer.scheduler.router import Router
from balancer.server.metrics import Metrics
from balancer.server.proxy_front import ProxyFront
from balancer.server.recorder import Recorder
from balancer.server.security.gatekeeper import GuardedServer
from balancer.stack.stack import sum_of
from support.fake_worker import FakeWorker, Infer


def request(
    model: str = "m", value: float = 1.0, *, name: str = "", rows: int = 1, parameters: Mapping[str, Any] | None = None
) -> bytes:
    """A ModelInferRequest of one FP32 input, all of whose elements are `value`."""
    message = service_pb2.ModelInferRequest(model_name=model, id=name)
    message.inputs.add(name="X", datatype="FP32", shape=[rows, 2])
    message.raw_input_contents.append(np.full((rows, 2), value, np.float32).tobytes())
    for key, each in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(each)]
        setattr(message.parameters[key], kind, each)
    data: bytes = message.SerializeToString()
    return data


@dataclass
class Rig:
    """What the tests need of it."""

    front: ProxyFront
    router: Router
    picker: Picker
    metrics: Metrics
    channel: grpc.aio.Channel
    specs: list[WorkerSpec]
    workers: Sequence[FakeWorker]

    @property
    def worker(self) -> FakeWorker:
        """The first, or only one."""
        return self.workers[0]

    async def infer(self, data: bytes, **options: Any) -> bytes:
        """One inference; `options` of the call."""
        return await self.call(data, **options)

    def call(self, data: bytes, **options: Any) -> Any:
        """One that can be cancelled and asked for its metadata."""
        method: Any = self.channel.unary_unary(INFER)
        return method(data, **options)

    def stream(self, **options: Any) -> Any:
        """A stream of inferences."""
        method: Any = self.channel.stream_stream(STREAM)
        return method(**options)

    @property
    def in_flight(self) -> int:
        """Requests that the router takes to be at workers."""
        return self.router.in_flight_by_worker().total()

    @property
    def held(self) -> int:
        """Requests that wait for room."""
        return len(self.picker.holding.waiting)

    def configure(self, sections: Mapping[str, Any]) -> None:
        """Another config."""
        config = from_mapping({"envoy": {"frontend": "proxy"}, "telemetry": {"required": False}, **sections})
        self.router.configure(self.router.policy, config.settings())
        self.front.configure(config.proxy_settings())

    def failing(self, worker: str) -> None:
        """The router hears of a failure there, as from Envoy."""
        self.router.observe(Finished(-1, worker, None, False), time.monotonic())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples that have the labels."""
        families = text_string_to_metric_families(self.metrics.exposition().decode())
        return sum_of([sample for family in families for sample in family.samples], name, **labels)


@asynccontextmanager
async def proxied(
    workers: Sequence[FakeWorker] | Infer | None = None, constants: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Rig]:
    """A proxy before these workers, or before one that answers so, which are started, with further sections of the
    config, and other `ProxyConstants`. By round robin."""
    workers = workers if isinstance(workers, Sequence) else [FakeWorker("a", workers)]
    for worker in workers:
        await worker.start()
    config = from_mapping(
        {
            "policy": {"name": "round_robin"},
            "envoy": {"frontend": "proxy"},
            "telemetry": {"required": False},
            **sections,
        }
    )
    router = Router(config.policy.built, config.settings())
    metrics = Metrics(router, time.monotonic)
    picker = Picker(router, time.monotonic)
    recorder = Recorder(router, picker, metrics, time.monotonic)
    links = Links()
    front = ProxyFront(config, recorder, time.monotonic, lambda: True, links, picker)
    front.configure(dataclasses.replace(config.proxy_settings(), constants=ProxyConstants(**(constants or {}))))
    picker.splits.configure(config.splits())
    specs = [each.spec(number) for number, each in enumerate(workers, start=1)]
    for event in changes((), specs):
        router.observe(event, time.monotonic())
    router.tick(time.monotonic())
    links.update(specs)
    front.workers(specs)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    front.add_to(GuardedServer(server, metrics, None))  # type: ignore[arg-type]  # as the listeners do
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    try:
        yield Rig(front, router, picker, metrics, channel, specs, workers)
    finally:
        await channel.close()
        await server.stop(None)
        await links.close()
        for worker in workers:
            await worker.stop()
