"""A stranger who reaches one port, with TLS on: whatever is called there is refused, and nothing is learned of it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from support.certificates import Authority, Identity
from support.waiting import eventually

from balancer.config.config import from_mapping
from balancer.reports import report_pb2
from balancer.server.app import App
from balancer.stack.process import free_port_range, free_ports

NAME = "balancer.test"
PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
ENVOY_CALLS = (
    PROCESS,
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)
REPORT = "/balancer.telemetry.v1.Reports/Stream"
TELL = "/balancer.telemetry.v1.Peers/Tell"
CALLS = (*ENVOY_CALLS, REPORT, TELL)
REFUSED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED}
ROLES = {
    "envoy": "spiffe://balancer/envoy",
    "agent of a": "spiffe://balancer/agent/a",
    "peer": "spiffe://balancer/peer",
    "admin": "spiffe://balancer/admin",
    "nobody": "spiffe://elsewhere/envoy",
}


@dataclass
class Served:
    """A balancer of workers `a` and `b`, with certificates on every port, in this process."""

    app: App
    authority: Authority
    addresses: dict[str, str]
    stack: AsyncExitStack

    def credentials(self, role: str) -> grpc.ChannelCredentials:
        """Those of a client with that certificate."""
        return self.authority.issue(role.replace(" ", "-"), uri=ROLES[role]).credentials(self.authority)

    async def channel(self, listener: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """A connection of its own; None: without TLS."""
        options = [("grpc.ssl_target_name_override", NAME), ("grpc.use_local_subchannel_pool", 1)]
        address = self.addresses[listener]
        if credentials is None:
            return await self.stack.enter_async_context(grpc.aio.insecure_channel(address, options=options[1:]))
        return await self.stack.enter_async_context(grpc.aio.secure_channel(address, credentials, options=options))

    async def call(self, listener: str, method: str, credentials: grpc.ChannelCredentials | None) -> grpc.StatusCode:
        """Send an empty message, and return how that ends; OK where anything is answered."""
        channel = await self.channel(listener, credentials)
        return await outcome(channel.unary_stream(method)(b"", timeout=10))

    async def report(self, worker: str, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
        """Send a report on a worker; OK where it is acknowledged."""
        channel = await self.channel("reports", credentials)
        report = report_pb2.WorkerReport(worker=worker, incarnation=1, all_models=True, ready=True)
        return await outcome(channel.unary_stream(REPORT)(report.SerializeToString(), timeout=10))

    async def status(self, address: str, page: str, shown: Identity | None) -> int:
        """Of a page over HTTPS, for a client with that certificate; 0 where the connection is refused."""
        trusted = ssl.create_default_context(cadata=self.authority.pem.decode())
        if shown is not None:
            trusted.load_cert_chain(shown.cert, shown.key)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://{address}{page}", ssl=trusted, server_hostname=NAME) as response,
            ):
                return response.status
        except aiohttp.ClientError:
            return 0

    def reports(self) -> dict[str, int]:
        """Reports that the router received, by what became of them."""
        return dict(self.app.router.fleet.reports)


async def outcome(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> grpc.StatusCode:
    """How a call ended; OK where anything was answered, and then it is left."""
    try:
        answer = await call.read()
        return await call.code() if answer is grpc.aio.EOF else grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    authority = Authority(tmp_path)
    own = authority.issue("balancer", dns=NAME).section(authority)
    envoy, fleet, reports, admin = free_port_range(2), free_port_range(2), *free_ports(2)
    listen = {"envoy": f"127.0.0.1:{envoy}", "reports": f"127.0.0.1:{reports}", "admin": f"127.0.0.1:{admin}"}
    workers = [
        {"name": name, "address": "127.0.0.1", "grpc_port": port, "http_port": port + 1}
        for name, port in (("a", 1), ("b", 3))
    ]
    config = from_mapping(
        {
            "listen": listen | {"fleet": f"127.0.0.1:{fleet}"},
            "tls": dict.fromkeys(listen, own),
            "envoy": {"balancer_tls": {"ca_file": str(authority.file), "server_name": NAME}},
            "discovery": {"workers": workers},
        }
    )
    serving, stop = asyncio.Event(), asyncio.Event()
    app = App(config, None, serving=serving.set)
    running = asyncio.create_task(app.run(stop))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.wait, [running])
        stack.callback(stop.set)
        await asyncio.wait_for(serving.wait(), 30)
        further = {"envoy's own": f"127.0.0.1:{envoy + 1}", "fleet": f"127.0.0.1:{fleet}"}
        yield Served(app, authority, listen | further, stack)


STRANGERS = ("plain text", "no certificate", "another authority", *ROLES)


def stranger(served: Served, kind: str, tmp_path: Path) -> grpc.ChannelCredentials | None:
    if kind == "plain text":
        return None
    if kind == "no certificate":
        return grpc.ssl_channel_credentials(served.authority.pem)
    if kind == "another authority":
        # Of the same name and with the right role, but it is not the one that the balancer trusts.
        forged = Authority(tmp_path / "forged").issue("envoy", uri=ROLES["envoy"])
        return forged.credentials(served.authority)
    return served.credentials(kind)


@pytest.mark.parametrize("kind", STRANGERS)
async def test_a_stranger_cannot_call_anything(served: Served, kind: str, tmp_path: Path) -> None:
    credentials = stranger(served, kind, tmp_path)
    envoys = dict.fromkeys(("envoy", "envoy's own"), ENVOY_CALLS)
    may = {"envoy": envoys, "agent of a": {"reports": (REPORT,)}, "peer": {"reports": (TELL,)}}.get(kind, {})
    for listener in {"envoy", "envoy's own", "reports"} - set(may):
        for method in CALLS:
            its_own = (REPORT, TELL) if listener == "reports" else ENVOY_CALLS
            refused = REFUSED if method in its_own else REFUSED | {grpc.StatusCode.UNIMPLEMENTED}
            assert await served.call(listener, method, credentials) in refused, (listener, method)
    for listener in may:
        # Whoever has the role of one listener finds nothing of the others there.
        for method in set(CALLS) - set(may[listener]):
            others = listener == "reports" and method in (REPORT, TELL)
            refused = grpc.StatusCode.PERMISSION_DENIED if others else grpc.StatusCode.UNIMPLEMENTED
            assert await served.call(listener, method, credentials) is refused, method
    assert served.reports().get("accepted", 0) == 0
    assert served.app.router.fleet.peers_heard == 0
    assert not served.app._ads.connected


@pytest.mark.parametrize("kind", STRANGERS)
async def test_a_stranger_cannot_ask_about_the_fleet_nor_change_it(served: Served, kind: str, tmp_path: Path) -> None:
    """By gRPC and by HTTP; whoever has the role of Envoy is heard."""
    credentials = stranger(served, kind, tmp_path)
    may = kind == "envoy"
    for method in ("ServerLive", "RepositoryModelLoad"):
        answer = await served.call("fleet", f"/inference.GRPCInferenceService/{method}", credentials)
        # A change is refused to all, as no callers are named.
        expected = grpc.StatusCode.OK if method == "ServerLive" else grpc.StatusCode.UNIMPLEMENTED
        assert (answer is expected) if may else (answer in REFUSED)
    for method in CALLS:
        refused = REFUSED | {grpc.StatusCode.UNIMPLEMENTED}
        if not (may and method.startswith("/grpc.health")):
            assert await served.call("fleet", method, credentials) in refused
    shown = served.authority.issue("client", uri=ROLES[kind]) if kind in ROLES else None
    host, _, port = served.addresses["fleet"].rpartition(":")
    status = await served.status(f"{host}:{int(port) + 1}", "/v2/health/live", shown)
    assert status == (200 if may else 403 if kind in ROLES else 0)


async def test_an_agent_cannot_speak_for_another_worker(served: Served) -> None:
    agent = served.credentials("agent of a")
    assert await served.report("b", agent) is grpc.StatusCode.PERMISSION_DENIED
    assert await served.report("c", agent) is grpc.StatusCode.PERMISSION_DENIED
    silent = {worker.name: worker.number for worker in served.app.router.fleet.workers}
    assert silent == {"a": -1, "b": -1}
    assert await served.report("a", agent) is grpc.StatusCode.OK


@pytest.mark.parametrize("kind", ["no certificate", "another authority", "envoy", "agent of a", "admin"])
async def test_a_stranger_cannot_read_the_admin_pages(served: Served, kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "forged") if kind == "another authority" else served.authority
    shown = None if kind == "no certificate" else authority.issue("client", uri=ROLES.get(kind, ROLES["admin"]))
    pages = ("/", "/workers", "/metrics", "/config", "/recent", "/explain?model=m")
    statuses = {await served.status(served.addresses["admin"], page, shown) for page in pages}
    assert statuses == ({200} if kind == "admin" else {403} if kind in ROLES else {0})


async def test_a_stranger_cannot_reach_a_socket_of_another_group(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:  # what a process leaves that was killed
        ended.bind(f"{tmp_path}/envoy.0")
    listen = {"envoy": f"unix:{tmp_path}/envoy", "reports": f"unix:{tmp_path}/reports", "admin": "127.0.0.1:0"}
    for _ in range(2):
        serving, stop = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(App(from_mapping({"listen": listen}), None, serving=serving.set).run(stop))
        await asyncio.wait_for(serving.wait(), 30)
        assert {(tmp_path / f"{name}.0").stat().st_mode & 0o777 for name in ("envoy", "reports")} == {0o660}
        stop.set()
        await running


async def test_a_stranger_cannot_silence_the_balancer_with_garbage(served: Served) -> None:
    envoy = served.credentials("envoy")
    channel = await served.channel("envoy", envoy)
    for method in ENVOY_CALLS[:3]:
        call = channel.unary_stream(method)(b"\xff" * 100, timeout=10)
        # What may be a request is answered by a refusal: after an error, a gateway goes on without a pick.
        refused = grpc.StatusCode.OK if method.endswith("/Process") else grpc.StatusCode.INVALID_ARGUMENT
        assert await outcome(call) is refused, method
    assert await served.call("envoy", "/grpc.health.v1.Health/Check", envoy) is grpc.StatusCode.OK
    await eventually(lambda: not served.app._ads.connected, "no stream is left")
