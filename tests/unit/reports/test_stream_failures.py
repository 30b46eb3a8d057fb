"""What an agent says of a balancer that it cannot reach: over real connections, refused for each reason."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from support.certificates import Authority
from support.reports import ReceivedEvents, agent
from support.waiting import eventually

from balancer.balancer_tls import BalancerTls
from balancer.reports.collector import SERVER_OPTIONS, Collector
from balancer.reports.intake import Intake
from balancer.reports.stream_failures import StreamFailure, StreamStatus
from balancer.stack.process import free_ports

NAME = "balancer.test"


@contextlib.asynccontextmanager
async def balancer(received: ReceivedEvents, tls: grpc.ServerCredentials | None, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    Collector(Intake(received)).add_to(server)
    address = f"127.0.0.1:{port}"
    port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def credentials(authority: Authority, *, clients: Authority | None = None, name: str = NAME) -> grpc.ServerCredentials:
    own = authority.issue("server", dns=name)
    pair = (own.key.read_bytes(), own.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], clients.pem if clients else None, clients is not None)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("nobody", "nothing listens there"),
        ("no socket", "nothing listens there"),
        ("another service", "no reports are taken there"),
        ("plain to TLS", "hangs up on plain text; give --tls-ca and --tls-name"),
        ("TLS to plain", "speaks plain text and not TLS; leave --tls-ca out"),
        ("wrong authority", "not signed by what --tls-ca holds"),
        ("renewed authority", "signed by another key than --tls-ca holds"),
        ("wrong name", "does not name what --tls-name says"),
        ("no certificate", "give --tls-cert and --tls-key"),
        ("foreign certificate", "hangs up on the certificate shown"),
        ("not PEM", "hold no usable certificate or key"),
        ("no file", "cannot be read"),
    ],
)
async def test_an_agent_logs_once_why_it_cannot_reach_a_balancer_and_what_to_do(
    case: str, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, foreign = Authority(tmp_path / "ours"), Authority(tmp_path / "foreign", "foreign")
    stranger = foreign.issue("client", dns="agent")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    server = {
        "plain to TLS": credentials(ours),
        "wrong authority": credentials(ours),
        "renewed authority": credentials(Authority(tmp_path / "renewed")),
        "wrong name": credentials(ours, name="other.test"),
        "no certificate": credentials(ours, clients=ours),
        "foreign certificate": credentials(ours, clients=ours),
        "not PEM": credentials(ours),
        "no file": credentials(ours),
    }.get(case)
    tls = {
        "TLS to plain": BalancerTls(ours.file, NAME),
        "wrong authority": BalancerTls(foreign.file, NAME),
        "renewed authority": BalancerTls(ours.file, NAME),
        "wrong name": BalancerTls(ours.file, NAME),
        "no certificate": BalancerTls(ours.file, NAME),
        "foreign certificate": BalancerTls(ours.file, NAME, stranger.cert, stranger.key),
        "not PEM": BalancerTls(junk, NAME),
        "no file": BalancerTls(tmp_path / "missing.pem", NAME),
    }.get(case)
    async with contextlib.AsyncExitStack() as stack:
        if case == "nobody":
            address = f"127.0.0.1:{free_ports(1)[0]}"
        elif case == "no socket":
            address = f"unix:{tmp_path}/none.sock"
        elif case == "another service":
            other = grpc.aio.server()
            address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
            await other.start()
            stack.push_async_callback(other.stop, None)
        else:
            address = await stack.enter_async_context(balancer(ReceivedEvents(), server))
        with caplog.at_level(logging.WARNING, "balancer.reports.stream_failures"):
            async with agent(address, tls=tls):
                await eventually(lambda: caplog.messages, "the agent says what is wrong")
                await asyncio.sleep(0.5)  # Some more attempts, which say nothing.
    first, *more = caplog.messages
    assert expected in first
    assert address in first
    assert first not in more


def test_a_failure_is_logged_again_each_minute_and_at_once_where_its_cause_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    status = StreamStatus("balancer:9003")
    with caplog.at_level(logging.WARNING):
        for second in range(130):
            status.failed(StreamFailure("one cause"), float(second))
        assert len(caplog.messages) == 3
        status.failed(StreamFailure("another cause"), 131.0)
    assert caplog.messages[-1] == "no reports to balancer balancer:9003: another cause"


async def test_renewed_certificates_are_used_by_the_next_connection(tmp_path: Path) -> None:
    """The authority itself is replaced, so that nothing of the old files will do."""
    authority = Authority(tmp_path / "tls")
    own = authority.issue("client", dns="agent")
    tls = BalancerTls(authority.file, NAME, own.cert, own.key)
    first, second = ReceivedEvents(), ReceivedEvents()
    async with contextlib.AsyncExitStack() as stack:
        async with balancer(first, credentials(authority, clients=authority)) as address:
            await stack.enter_async_context(agent(address, tls=tls))
            await first.report(lambda report: True)
            renewed = Authority(tmp_path / "tls")
            renewed.issue("client", dns="agent")
        async with balancer(second, credentials(renewed, clients=renewed), int(address.rpartition(":")[2])):
            await second.report(lambda report: True)


async def test_a_balancer_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    received = ReceivedEvents()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    Collector(Intake(received)).add_to(server)
    address = f"unix:{tmp_path}/reports.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with agent(address) as replicas:
            await received.report(lambda report: True)
            await eventually(lambda: replicas.connected == 1, "connected")
    finally:
        await server.stop(None)
