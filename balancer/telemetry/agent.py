"""Runs beside one Triton and tells every balancer how it fares, 20 to 100 times a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from balancer.core.events import Report
from balancer.errors import OperatorError
from balancer.telemetry.device import Device
from balancer.telemetry.streams import BalancerTls, Replicas
from balancer.telemetry.triton_source import TritonSource

MIN_REPORT_HZ = 20.0
MAX_REPORT_HZ = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is told. Addresses are `host:port`; an IPv6 host stands in brackets.

    Raises:
        OperatorError: if an option is out of range.
    """

    worker: str
    """The worker's name, as discovery spells it."""
    balancers: tuple[str, ...]
    """The balancer's report ports; a name with several addresses stands for as many replicas."""
    triton_grpc: str = "127.0.0.1:8001"
    triton_metrics: str = "127.0.0.1:8002"
    report_hz: float = 50.0
    device: str = ""
    """Device kind, such as `A100`; empty: as NVML says."""
    memory_bytes: int = 0
    """Device memory; 0: as NVML says."""
    tls: BalancerTls | None = None
    """None: plain text."""

    def __post_init__(self) -> None:
        """Check every option."""
        if not self.worker:
            raise OperatorError("worker is empty; give the name under which discovery lists this worker")
        if not self.balancers:
            raise OperatorError("balancers is empty; give the host:port of at least one balancer")
        for option, addresses in (
            ("balancers", self.balancers),
            ("triton_grpc", (self.triton_grpc,)),
            ("triton_metrics", (self.triton_metrics,)),
        ):
            for address in addresses:
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                    raise OperatorError(f"{option}: {address!r} is not host:port; write it like 127.0.0.1:8001")
        if not MIN_REPORT_HZ <= self.report_hz <= MAX_REPORT_HZ:
            valid = f"{MIN_REPORT_HZ:.0f} to {MAX_REPORT_HZ:.0f}"
            raise OperatorError(f"report_hz: {self.report_hz} is out of range; choose {valid} reports a second")
        if self.memory_bytes < 0:
            raise OperatorError(f"memory_bytes: {self.memory_bytes} is negative; give bytes, or 0 to ask NVML")


async def run_agent(options: AgentOptions, stop: asyncio.Event) -> None:
    """Report until `stop` is set. Neither a missing Triton nor a missing balancer ends it; both are tried for ever."""
    source = TritonSource(options.triton_grpc, options.triton_metrics)
    device = Device(options.device, options.memory_bytes)
    replicas = Replicas(options.balancers, options.tls)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(source.watch()),
                group.create_task(device.watch()),
                group.create_task(replicas.run()),
                group.create_task(_report(options, source, device, replicas)),
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()
    finally:
        source.close()


async def _report(options: AgentOptions, source: TritonSource, device: Device, replicas: Replicas) -> None:
    loop = asyncio.get_running_loop()
    period_s = 1.0 / options.report_hz
    due_s = loop.time()
    incarnation, number = -1, 0
    while True:
        triton = await source.read()
        number = number + 1 if triton.incarnation == incarnation else 0
        incarnation = triton.incarnation
        gpu = device.state
        replicas.offer(
            Report(
                worker=options.worker,
                incarnation=incarnation,
                number=number,
                ready=triton.ready,
                models=triton.models,
                balancers=max(replicas.connected, 1),
                device=gpu.kind,
                memory_bytes=gpu.memory_bytes,
                memory_used_bytes=gpu.memory_used_bytes,
                utilisation=gpu.utilisation,
            )
        )
        # Late by a period or more: leave reports out rather than send two at once.
        due_s = max(due_s + period_s, loop.time())
        await asyncio.sleep(due_s - loop.time())
