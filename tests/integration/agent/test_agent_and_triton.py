"""The agent beside a real Triton, reporting to a real collector."""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
from support.bootstrap import changed
from support.certificates import Authority
from support.envoy_fakes import Rig
from support.inputs import input_of
from support.real_triton import running
from support.reports import ReceivedEvents, collecting
from support.waiting import PATIENCE_S, eventually

from balancer.agent.agent import AgentOptions, run_agent
from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.sections import TritonTlsSection
from balancer.extproc.endpoints import Endpoint
from balancer.kernel.settings import Settings
from balancer.reports import sending
from balancer.reports.control import drain
from balancer.scheduler.events import Event, Finished, ModelReport, Report, WorkerAdded
from balancer.scheduler.router import Router
from balancer.stack.process import free_ports
from balancer.stack.tritonserver import TritonServer
from policies.base import Request
from policies.round_robin import RoundRobin

pytestmark = pytest.mark.integration

MODELS = Path(__file__).with_name("models")


def triton_at(ports: list[int], log_path: Path, *further: str) -> TritonServer:
    return TritonServer(
        name="w",
        model_repository=MODELS,
        grpc_port=ports[0],
        http_port=ports[1],
        metrics_port=ports[2],
        log_path=log_path,
        extra_args=("--model-control-mode=explicit", "--load-model=*", *further),
    )


@pytest.fixture
async def triton(tmp_path: Path) -> AsyncIterator[TritonServer]:
    server = triton_at(free_ports(3), tmp_path / "triton.log")
    async with running(server):
        yield server


@contextlib.asynccontextmanager
async def restarted(triton: TritonServer, folder: Path) -> AsyncIterator[None]:
    """Another one on its ports."""
    again = triton_at([triton.grpc_port, triton.http_port, triton.metrics_port], folder / "restarted.log")
    try:
        await again.start()
        yield
    finally:
        await again.kill()


@contextlib.asynccontextmanager
async def agent_beside(
    triton: TritonServer, *balancers: str, control: Path | None = None, triton_tls: BalancerTls | None = None
) -> AsyncIterator[None]:
    options = AgentOptions(
        worker="w",
        balancers=balancers,
        triton_grpc=triton.grpc_endpoint,
        triton_metrics=f"{triton.address}:{triton.metrics_port}",
        triton_http=triton.http_endpoint,
        device="T4",
        memory_bytes=16 << 30,
        control=control,
        triton_tls=triton_tls,
    )
    stop = asyncio.Event()
    agent = asyncio.create_task(run_agent(options, stop))
    try:
        yield
    finally:
        stop.set()
        await agent


@pytest.fixture
async def received(triton: TritonServer) -> AsyncIterator[ReceivedEvents]:
    """What a balancer hears of the Triton, from when it is ready."""
    received = ReceivedEvents()
    async with collecting(received) as (_, address), agent_beside(triton, address):
        await received.report(lambda report: report.ready)
        received.events.clear()
        yield received


@pytest.fixture
async def client(triton: TritonServer) -> AsyncIterator[Any]:
    async with triton_aio.InferenceServerClient(triton.grpc_endpoint) as client:
        yield client


def seconds(value: float) -> list[Any]:
    return [input_of(triton_grpc, "SECONDS", np.full((1, 1), value, np.float32))]


def model_of(report: Report, name: str = "seconds") -> ModelReport:
    """Of the report; not ready where the report lists no models, as before Triton answered."""
    return next((model for model in report.models if model.model == name), ModelReport(name, "", ready=False))


async def test_each_of_two_balancers_receives_what_the_other_has_in_flight_of_the_same_moment(
    triton: TritonServer, client: Any
) -> None:
    """Two routers, the agent and a real Triton: what one has sent, the other counts as executing there, and takes what
    its prompts begin with for cached."""
    prompt = Request("seconds", prompt_tokens=100.0, prefix=((2**63 + 1, 64.0),))
    routers = [Router(RoundRobin(), Settings()) for _ in range(2)]
    received = [ReceivedEvents(), ReceivedEvents()]

    def telling(b: int) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            routers[b].observe(event, asyncio.get_running_loop().time())
            received[b](event)

        return tell

    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for b, router in enumerate(routers):
            router.observe(WorkerAdded("w"), 0.0)
            fleet = router.fleet
            telling_it = {"prompts": fleet.untold_prompts.take, "knows": fleet.index.__contains__}
            collecting_there = collecting(telling(b), at_worker=fleet.at_worker, **telling_it)
            addresses.append((await stack.enter_async_context(collecting_there))[1])
        await stack.enter_async_context(agent_beside(triton, *addresses))
        await received[1].report(lambda report: report.ready and report.peers_in_flight == ())
        decisions = [routers[0].route(prompt, asyncio.get_running_loop().time()) for _ in range(4)]
        requests = asyncio.gather(*(client.infer("seconds", seconds(2.0)) for _ in decisions))
        report = await received[1].report(lambda report: report.peers_in_flight == (("seconds", 4),))
        # 36 that nobody computed before, then one each.
        assert report.peers_waiting_tokens == 100 + 3 * 36
        assert routers[1].view(prompt, asyncio.get_running_loop().time()).matched_tokens.tolist() == [64]
        # None of its own, none waits or all do: by what it was told, 4 are there, long before any ends.
        assert routers[1].fleet.queue.peer_in_flight[0] == 4
        await requests
        for decision in decisions:
            routers[0].observe(Finished(decision.number, "w", 2.0, True), asyncio.get_running_loop().time())
        await received[1].report(lambda report: report.peers_in_flight == (), after=len(received[1].events))


async def test_reports_say_what_triton_does(received: ReceivedEvents, client: Any) -> None:
    idle = await received.report(lambda report: report.ready)
    assert (idle.worker, idle.device, idle.memory_bytes, idle.balancers) == ("w", "T4", 16 << 30, 1)
    assert {(model.model, model.version, model.ready) for model in idle.models} == {
        ("seconds", "1", True),
        ("plain", "1", True),
    }
    assert (model_of(idle).max_batch_rows, model_of(idle).instances) == (4, 2)
    assert (model_of(idle, "plain").max_batch_rows, model_of(idle, "plain").instances) == (1, 1)

    requests = asyncio.gather(*(client.infer("seconds", seconds(0.3)) for _ in range(64)))
    busy = await received.report(lambda report: model_of(report).pending > 0 and model_of(report).executing > 0)
    assert model_of(busy).executing <= 8
    await requests

    done = await received.report(lambda report: bool(model_of(report).batches) and model_of(report).succeeded == 64)
    done = await received.report(
        lambda report: sum(rows * executions for rows, executions, _ in model_of(report).batches) == 64
    )
    assert (model_of(done).pending, model_of(done).failed) == (0, 0)
    for _, executions, compute_s in model_of(done).batches:
        assert compute_s >= 0.3 * executions
    assert model_of(done, "plain").batches == ()
    await received.report(lambda report: model_of(report).executing == 0, after=len(received.events))
    with pytest.raises(triton_grpc.InferenceServerException):
        await client.infer("seconds", seconds(-1.0))
    await received.report(lambda report: model_of(report).failed == 1)


async def test_a_triton_is_read_and_reached_by_tls_and_by_nobody_without_a_certificate(tmp_path: Path) -> None:
    """Triton's own TLS, at its gRPC port: for the agent, and for Envoy."""
    authority = Authority(tmp_path / "certificates")
    own, client = authority.issue("triton", dns="triton.example"), authority.issue("client", dns="client")
    files = {"grpc-server-cert": own.cert, "grpc-server-key": own.key, "grpc-root-cert": authority.file}
    options = ("--grpc-use-ssl-mutual=true", *(f"--{name}={path}" for name, path in files.items()))
    shown = {"cert_file": str(client.cert), "key_file": str(client.key)}
    tls = TritonTlsSection(ca_file=str(authority.file), server_name="triton.example", rest=False, **shown)
    triton, received = triton_at(free_ports(3), tmp_path / "triton.log", *options), ReceivedEvents()
    rig = Rig(tmp_path, workers=[])
    rig.options = changed(rig.options, triton_tls=tls)
    try:
        await triton.start()
        await triton.wait_ready()
        async with (
            collecting(received) as (_, address),
            agent_beside(triton, address, triton_tls=tls.trust()),
            rig.running(),
        ):
            report = await received.report(lambda report: report.ready)
            assert model_of(report).ready
            worker = Endpoint("w", triton.address, triton.grpc_port, triton.http_port, "healthy")
            rig.balancers[0].ads.update([worker])
            async with triton_aio.InferenceServerClient(rig.envoy.endpoint) as through_envoy:

                async def is_ready() -> bool:
                    with contextlib.suppress(triton_grpc.InferenceServerException):
                        return bool(await through_envoy.is_model_ready("plain"))
                    return False

                await eventually(is_ready, "Envoy reaches Triton")
                assert await through_envoy.infer("seconds", seconds(0.0))
            async with triton_aio.InferenceServerClient(triton.grpc_endpoint) as plain:
                with pytest.raises(triton_grpc.InferenceServerException):
                    await plain.is_server_live()
    finally:
        await triton.kill()


async def test_the_first_request_after_quiet_is_reported_by_an_agent_that_is_woken(
    triton: TritonServer, client: Any
) -> None:
    """An hour may pass between two reports, so only the wake can bring one."""
    pause_s, received = 3600.0, ReceivedEvents()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sending, "_LONGEST_PAUSE_S", pause_s)
        # Of silence, a third is the most that is allowed.
        async with (
            collecting(received, silence_s=3 * pause_s, pause_s=lambda: pause_s) as (collector, address),
            agent_beside(triton, address),
        ):
            await received.report(lambda report: report.ready)
            received_before = -1

            async def is_quiet() -> bool:
                nonlocal received_before
                before, received_before = received_before, len(received.events)
                await asyncio.sleep(0.5)
                return received_before == before

            while not await is_quiet():
                pass
            # A Triton that is used by others is looked at no earlier; the balancer says that it sends a request.
            pause_s, before = 0.0, len(received.events)
            await collector.wake()
            await client.infer("plain", seconds_unbatched(0.0))
            await received.report(lambda report: any(m.succeeded for m in report.models), after=before)


async def test_a_killed_triton_is_not_ready_and_a_restarted_one_is_another_incarnation(
    received: ReceivedEvents, client: Any, triton: TritonServer, tmp_path: Path
) -> None:
    await client.infer("seconds", seconds(0.0))
    before = await received.report(lambda report: bool(model_of(report).batches))
    await triton.kill()
    down = await received.report(lambda report: not report.ready)
    assert (down.incarnation, down.models) == (before.incarnation, ())
    assert down.number > before.number

    async with restarted(triton, tmp_path):
        again = await received.report(lambda report: report.ready, after=len(received.events))
    assert again.incarnation > before.incarnation
    assert (model_of(again).succeeded, model_of(again).batches) == (0, ())


@pytest.mark.parametrize("queued", [1, 24], ids=["executing only", "with a queue"])
async def test_a_terminating_triton_drains_before_it_refuses_and_one_that_returns_drains_no_more(
    received: ReceivedEvents, client: Any, triton: TritonServer, tmp_path: Path, queued: int
) -> None:
    """It serves on until the balancer knows and nothing is left; then it goes, and waits for no time-out."""
    requests = [asyncio.ensure_future(client.infer("seconds", seconds(0.3))) for _ in range(queued)]
    # The agent has then looked at the HTTP port, too.
    before = await received.report(lambda report: report.ready)
    await received.report(lambda report: report.number > before.number + 10)
    triton.process.terminate()
    draining = await received.report(lambda report: report.draining)
    assert draining.ready
    # Sent while it stops, as a request that was on its way.
    await client.infer("plain", seconds_unbatched(0.0))
    await asyncio.gather(*requests)
    await received.report(lambda report: not report.ready)
    await triton.wait()
    async with restarted(triton, tmp_path):
        again = await received.report(lambda report: report.ready and not report.draining, after=len(received.events))
    assert again.incarnation > draining.incarnation


async def test_a_drained_worker_is_known_to_every_balancer_and_has_nothing_left(
    triton: TritonServer, client: Any
) -> None:
    first, second = ReceivedEvents(), ReceivedEvents()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "agent.sock"
        async with (
            collecting(first) as (_, one),
            collecting(second) as (_, other),
            agent_beside(triton, one, other, control=path),
        ):
            await client.infer("seconds", seconds(0.3))
            await first.report(lambda report: report.ready and report.balancers == 2)
            requests = [asyncio.ensure_future(client.infer("seconds", seconds(1.0))) for _ in range(24)]
            await first.report(lambda report: model_of(report).pending > 0)
            assert "not drained after 0 s" in await drain(path, 0.0)
            assert await drain(path, PATIENCE_S) == ""
            assert all(request.done() for request in requests)
            for received in (first, second):
                assert any(isinstance(event, Report) and event.draining for event in received.events)
            # It still serves who comes past the balancers, and goes on draining.
            await client.infer("plain", seconds_unbatched(0.0))
            await first.report(lambda report: report.draining and report.ready, after=len(first.events))


def seconds_unbatched(value: float) -> list[Any]:
    return [input_of(triton_grpc, "SECONDS", np.full(1, value, np.float32))]


async def test_a_hanging_triton_is_not_ready_until_it_goes_on(received: ReceivedEvents, triton: TritonServer) -> None:
    before = await received.report(lambda report: report.ready)
    triton.process.send_signal(signal.SIGSTOP)
    hanging = await received.report(lambda report: not report.ready)
    triton.process.send_signal(signal.SIGCONT)
    after = await received.report(lambda report: report.ready, after=received.events.index(hanging))
    assert after.incarnation == before.incarnation


async def test_a_model_that_is_unloaded_leaves_the_others_ready(received: ReceivedEvents, client: Any) -> None:
    await client.infer("seconds", seconds(0.0))
    first = await received.report(lambda report: bool(model_of(report).batches))
    await client.unload_model("seconds")
    unloaded = await received.report(lambda report: not model_of(report).ready)
    assert unloaded.ready
    assert model_of(unloaded, "plain").ready

    await client.load_model("seconds")
    await received.report(lambda report: model_of(report).ready, after=len(received.events))
    # Loading anew cleared Triton's statistics; the reported ones go on.
    await client.infer("seconds", seconds(0.0))
    again = await received.report(lambda report: [batch[:2] for batch in model_of(report).batches] == [(1, 2)])
    assert again.incarnation == first.incarnation


async def test_a_worker_that_reports_to_no_balancer_is_not_drained(triton: TritonServer) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "agent.sock"
        async with agent_beside(triton, f"127.0.0.1:{free_ports(1)[0]}", control=path):
            await eventually(path.exists, "the agent listens")
            assert "no balancer is connected" in await drain(path, PATIENCE_S)
