"""Runs beside one Triton, or a server of OpenAI's API, and tells every balancer how it fares, 20 to 100 times a second
while requests flow."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from balancer import bounds
from balancer.agent.access import Access
from balancer.agent.device import DeviceMonitor
from balancer.agent.drain import Drain, DrainError
from balancer.agent.limits import ModelLimits
from balancer.agent.openai_source import OpenAISource
from balancer.agent.quiet import Pace
from balancer.agent.server_state import ServerSource, ServerState
from balancer.agent.triton_port import TritonPort
from balancer.agent.triton_source import TritonSource
from balancer.balancer_tls import BalancerTls, credentials
from balancer.bounds import OutOfBoundsError
from balancer.errors import OperatorError
from balancer.reports import control
from balancer.reports.addresses import check_address, check_targets
from balancer.reports.replicas import Replicas
from balancer.scheduler.events import Report
from balancer.scheduler.peers import ANSWER_WITHIN_S

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
    """The balancer's report ports, or `unix:/path`; a name with several addresses stands for as many replicas."""
    triton_grpc: str = "127.0.0.1:8001"
    triton_metrics: str = "127.0.0.1:8002"
    triton_http: str = "127.0.0.1:8000"
    """That closes first when Triton stops; empty: not asked, so that a stop is noticed later."""
    openai: str = ""
    """Address of a server that speaks OpenAI's API, which the agent reads instead of a Triton; empty: it reads a
    Triton."""
    openai_tls: BalancerTls | None = None
    """Towards that server; None: plain text."""
    openai_key_file: Path | None = None
    """The file with the key of that server; None: it asks for none."""
    report_hz: float = 50.0
    """While requests flow."""
    device: str = ""
    """Device kind, such as `A100`; empty: as NVML says."""
    memory_bytes: int = 0
    """Device memory; 0: as NVML says."""
    tls: BalancerTls | None = None
    """Towards the balancers; None: plain text."""
    triton_tls: BalancerTls | None = None
    """Towards Triton's gRPC port; None: plain text. Its metrics port has no TLS."""
    control: Path | None = None
    """The socket by which the agent is told to drain; None: none."""

    def __post_init__(self) -> None:
        if not self.worker:
            raise OperatorError("worker is empty; give the name under which discovery lists this worker")
        if not self.balancers:
            raise OperatorError("balancers is empty; give the host:port of at least one balancer")
        if len(self.balancers) > bounds.MAX_BALANCERS:
            raise OperatorError(f"balancers: {len(self.balancers)} are too many; give {bounds.MAX_BALANCERS} at most")
        try:
            bounds.text("worker", self.worker)
            bounds.text("device", self.device)
        except OutOfBoundsError as error:
            raise OperatorError(str(error)) from error
        check_targets("balancers", self.balancers, "127.0.0.1:9102")
        for option, addresses, example in (
            ("triton_grpc", (self.triton_grpc,), "127.0.0.1:8001"),
            ("triton_metrics", (self.triton_metrics,), "127.0.0.1:8002"),
            ("triton_http", (self.triton_http,) if self.triton_http else (), "127.0.0.1:8000"),
            ("openai", (self.openai,) if self.openai else (), "127.0.0.1:8000"),
        ):
            for address in addresses:
                check_address(option, address, example)
        if not MIN_REPORT_HZ <= self.report_hz <= MAX_REPORT_HZ:
            valid = f"{MIN_REPORT_HZ:.0f} to {MAX_REPORT_HZ:.0f}"
            raise OperatorError(f"report_hz: {self.report_hz} is out of range; choose {valid} reports a second")
        if self.memory_bytes < 0:
            raise OperatorError(f"memory_bytes: {self.memory_bytes} is negative; give bytes, or 0 to ask NVML")


async def run_agent(options: AgentOptions, stop: asyncio.Event, source: ServerSource | None = None) -> None:
    """Report until `stop` is set. Neither a missing Triton nor a missing balancer ends it; both are tried for ever.

    `source`: what it reports on, in place of the server that the options name.

    Raises:
        OperatorError: if a TLS file cannot be read now.
    """
    for tls in (options.tls, options.triton_tls):
        if tls is not None:
            await asyncio.to_thread(credentials, tls)
    await Access(options.openai_tls, options.openai_key_file).read()
    agent = _Agent(options, source)
    async with control.listening(options.control, agent.drained):
        await agent.run(stop)


class _Agent:
    def __init__(self, options: AgentOptions, source: ServerSource | None) -> None:
        self._options = options
        self._pace = Pace()
        self._source: ServerSource
        if source is not None:
            self._source = source
        elif options.openai:
            access = Access(options.openai_tls, options.openai_key_file)
            self._source = OpenAISource(options.openai, self._pace.pause, access)
        else:
            self._source = TritonSource(
                options.triton_grpc, options.triton_metrics, options.triton_tls, pause=self._pace.pause
            )
        self._device = DeviceMonitor(options.device, options.memory_bytes)
        self._replicas = Replicas(options.balancers, options.tls, self._look_now)
        self._port: TritonPort | None = None
        if options.triton_http and isinstance(self._source, TritonSource):
            self._port = TritonPort(options.triton_http, pause=self._pace.pause, closed=self._look_now)
        self._drain = Drain(self._replicas)
        self._limits = ModelLimits()
        self._triton: ServerState | None = None
        self._hurry = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                work = [self._source.watch(), self._device.watch(), self._replicas.run(), self._report()]
                if self._port is not None:
                    work.append(self._port.watch(self._answers, self._let_finish))
                tasks = [group.create_task(each) for each in work]
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._source.close()

    async def drained(self, timeout_s: float) -> str:
        """Drain; why that was not done within the time, or empty."""
        self._drain.begin()
        self._look_now()
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain.drained()
        except TimeoutError:
            return f"not drained after {timeout_s:.0f} s: {self._drain.missing()}"
        except DrainError as error:
            return str(error)
        return ""

    def _look_now(self) -> None:
        """Something happens: report at once, and at full rate."""
        self._pace.wake()
        self._hurry.set()

    def _answers(self) -> bool:
        return self._triton is not None and self._triton.reached

    async def _let_finish(self) -> None:
        """Triton stops: tell the balancers now, and wait until it may."""
        self._look_now()
        with contextlib.suppress(DrainError):
            await self._drain.drained()

    async def _report(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = 1.0 / self._options.report_hz
        incarnation, number = -1, 0
        # A worker that was served by is not to be taken for one that is not ready because its agent is another process.
        await self._source.looked.wait()
        due_s = loop.time()
        while True:
            # Both at once: what balancers answer, and what Triton says, are to be of one moment.
            triton, _ = await asyncio.gather(self._source.read(), self._replicas.ask(ANSWER_WITHIN_S))
            self._triton = triton
            self._drain.observe(triton, loop.time())
            number = number + 1 if triton.incarnation == incarnation else 0
            incarnation = triton.incarnation
            report = self._report_of(triton, number)
            self._replicas.offer(report)
            now_s = loop.time()
            quiet_s = self._pace.observe(triton, 0.0 if report.draining else self._replicas.pause_s, now_s)
            # Late by a period or more: leave reports out rather than send two at once.
            due_s = max(min(due_s, now_s) + max(period_s, quiet_s), now_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._hurry.wait()
            self._hurry.clear()

    def _report_of(self, triton: ServerState, number: int) -> Report:
        gpu = self._device.state
        return Report(
            worker=self._options.worker,
            incarnation=triton.incarnation,
            number=number,
            ready=triton.ready,
            models=self._limits.fit(triton.models),
            balancers=min(max(self._replicas.connected, 1), bounds.MAX_BALANCERS),
            device=gpu.kind,
            memory_bytes=gpu.memory_bytes,
            memory_used_bytes=gpu.memory_used_bytes,
            utilisation=gpu.utilisation,
            draining=self._drain.draining or (self._port is not None and self._port.stopping),
        )
