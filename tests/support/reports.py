"""Reports, and a real collector to send them to."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from balancer.balancer_tls import BalancerTls
from balancer.reports.collector import OWN_SERVER_OPTIONS, SERVER_OPTIONS, Collector
from balancer.reports.intake import Intake
from balancer.reports.replicas import Replicas
from balancer.scheduler.events import Event, ModelReport, Report
from support.waiting import PATIENCE_S


@contextlib.asynccontextmanager
async def agent(
    *addresses: str,
    worker: str = "w",
    tls: BalancerTls | None = None,
    made: Callable[[str, int], Report] | None = None,
) -> AsyncIterator[Replicas]:
    """An agent that reports of a worker 100 times a second while the block runs, what `made` makes of name and number;
    None: `report_of`."""
    replicas = Replicas(addresses, tls)

    async def offer() -> None:
        for number in itertools.count():
            replicas.offer((made or report_of)(worker, number))
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(replicas.run()), asyncio.create_task(offer())]
    try:
        yield replicas
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def calling(
    address: str, *metadata: tuple[str, str], method: str, message: type[Message], answer: type[Message]
) -> AsyncIterator[Any]:
    """A stream of our own, on its own connection, so that it carries what nobody else would send."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        serializers = {"request_serializer": message.SerializeToString, "response_deserializer": answer.FromString}
        yield channel.stream_stream(method, **serializers)(metadata=metadata)


class ReceivedEvents:
    """Events that a collector passed on, and a way to wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, accept: Callable[[Event], bool], *, after: int = 0) -> Event:
        """The first event that is accepted, of those received before and from now on, except the first `after`."""
        looked_at = after
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    for event in self.events[looked_at:]:
                        looked_at += 1
                        if accept(event):
                            return event
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"none of {len(self.events)} events was it; the last: {self.events[-1:]}") from None

    async def report(self, accept: Callable[[Report], bool], *, after: int = 0) -> Report:
        """The first report that is accepted; as `until`."""
        event = await self.until(lambda event: isinstance(event, Report) and accept(event), after=after)
        assert isinstance(event, Report)
        return event


@contextlib.asynccontextmanager
async def collecting(
    on_event: Callable[[Event], None],
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    silence_s: float = 30.0,
    **options: Any,
) -> AsyncIterator[tuple[Collector, str]]:
    """A collector behind a real server of its own, and its `host:port`; further options are the collector's."""
    told = {name: options.pop(name) for name in ("refused", "failed") if name in options}
    collector = Collector(Intake(on_event, **told), silence_s, **options)
    server = grpc.aio.server(options=(*SERVER_OPTIONS, *OWN_SERVER_OPTIONS))
    collector.add_to(server)
    bound = server.add_insecure_port(f"{address}:{port}")
    await server.start()
    try:
        yield collector, f"{address}:{bound}"
    finally:
        await server.stop(None)


def report_of(worker: str, number: int, *, incarnation: int = 1, executions: int = 0) -> Report:
    """A report of one model, ready, with `executions` batches of one row at 10 ms each."""
    batches = ((1, executions, executions * 0.01),) if executions else ()
    model = ModelReport("m", "1", ready=True, pending=float(number), succeeded=executions, batches=batches)
    # With a utilisation: where it is unknown it is NaN, and equals nothing.
    return Report(worker, incarnation, number, ready=True, models=(model,), utilisation=0.5)
