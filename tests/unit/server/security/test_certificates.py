"""Certificates are followed while they serve: a new pair holds for new connections, one that does not fit for none."""

import asyncio
import contextlib
import datetime
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from support.certificates import Authority
from support.fleets import make_router
from support.waiting import eventually

from balancer.config.config import Config
from balancer.config.listen import AdminListenerTls, EnvoyListenerTls
from balancer.config.watch import ConfigState
from balancer.extproc.endpoints import Ads
from balancer.reports.intake import ReportCounts
from balancer.server.metrics import Metrics
from balancer.server.security import certificates
from balancer.server.security.certificates import Certificates

NAME = "balancer.test"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def listener(authority: Authority, kind: type[EnvoyListenerTls] = EnvoyListenerTls) -> EnvoyListenerTls:
    return kind(**authority.issue("balancer", dns=NAME).section(authority))


@contextlib.asynccontextmanager
async def following(followed: Certificates) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(followed.follow(stop))
    try:
        yield
    finally:
        stop.set()
        await task


def common_name(certificate: bytes) -> str:
    name = x509.load_der_x509_certificate(certificate).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name[0].value)


async def shown_by(port: int, authority: Authority) -> bytes:
    """The certificate that a server shows to a new connection, DER."""
    client = authority.issue("client", uri="spiffe://balancer/envoy")
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(client.cert, client.key)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
    try:
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return certificate
    finally:
        writer.close()


async def test_grpc_shows_the_new_certificate_on_every_port_and_old_connections_live(authority: Authority) -> None:
    followed = Certificates("envoy", listener(authority))
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    ports = [server.add_secure_port("127.0.0.1:0", followed.credentials()) for _ in range(2)]
    await server.start()
    credentials = authority.issue("envoy", uri="spiffe://balancer/envoy").credentials(authority)
    options = [("grpc.ssl_target_name_override", NAME)]
    async with following(followed), grpc.aio.secure_channel(f"127.0.0.1:{ports[0]}", credentials, options) as old:
        ask = health_pb2_grpc.HealthStub(old).Check
        watch = health_pb2_grpc.HealthStub(old).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        first = await shown_by(ports[0], authority)
        authority.issue("balancer", dns=NAME)
        for port in ports:
            await eventually(
                lambda port=port: shown_by(port, authority),
                f"port {port} shows the new certificate",
                until=lambda found: found != first,
            )
        assert (await ask(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        assert not watch.done()
        watch.cancel()
    await server.stop(None)


async def test_a_pair_that_does_not_fit_keeps_the_last_good_one_and_is_logged_once(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_LOOK_EVERY_S", 0.01)
    caplog.set_level(logging.INFO, "balancer.server.security.certificates")
    tls = listener(authority)
    followed = Certificates("envoy", tls)
    good = followed._material
    looks = 0
    read = certificates.read_material

    def counting(name: str, section: certificates.ListenerTls) -> certificates.Material:
        nonlocal looks
        looks += 1
        return read(name, section)

    monkeypatch.setattr(certificates, "read_material", counting)
    key = Path(tls.key_file).read_bytes()
    async with following(followed):
        Path(tls.key_file).write_bytes(authority.issue("other", dns=NAME).key.read_bytes())
        seen = looks
        await eventually(lambda: looks > seen + 10, "the pair was looked at")
        assert followed._material is good
        refused = [record.getMessage() for record in caplog.records if "last good one" in record.getMessage()]
        assert len(refused) == 1
        assert f"tls.envoy.key_file: {tls.key_file} is not the key of {tls.cert_file}" in refused[0]
        Path(tls.key_file).write_bytes(key)
        await eventually(lambda: "can be used again" in caplog.text, "the good pair was seen")


async def test_admin_takes_a_new_certificate_and_forgets_an_authority(tmp_path: Path) -> None:
    authority, later = Authority(tmp_path / "first"), Authority(tmp_path / "later", name="later")
    tls = AdminListenerTls(**authority.issue("balancer", dns=NAME).section(authority))
    followed = Certificates("admin", tls)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=followed.ssl_context())
    await site.start()
    port = runner.addresses[0][1]

    async def status(client_of: Authority) -> int:
        """HTTP status that a client with a certificate of that authority gets; 0: it is not let in."""
        client = client_of.issue("client", uri="spiffe://balancer/admin")
        context = ssl.create_default_context(cadata=(authority.pem + later.pem).decode())
        context.load_cert_chain(client.cert, client.key)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            line = await reader.readline()
            writer.close()
            return int(line.split()[1]) if line else 0
        except (ssl.SSLError, ConnectionError):
            return 0

    try:
        async with following(followed):
            assert (await status(authority), await status(later)) == (404, 0)
            renewed = later.issue("balancer", dns=NAME)
            Path(tls.cert_file).write_bytes(renewed.cert.read_bytes())
            Path(tls.key_file).write_bytes(renewed.key.read_bytes())
            authority.file.write_bytes(later.pem)

            async def taken_over() -> bool:
                return (await status(authority), await status(later)) == (0, 404)

            await eventually(taken_over, "the new authority is in force, the old one is not")
    finally:
        await runner.cleanup()


async def test_the_time_of_expiry_is_shown_and_follows_the_file(authority: Authority) -> None:
    followed = Certificates("envoy", listener(authority))
    metrics = Metrics(make_router(1), lambda: 0.0)
    state = ConfigState(Config(), "defaults", 0.0)
    metrics.watch(ReportCounts(), Ads(), state, {"envoy": followed})

    def left_s() -> float:
        """By the metric."""
        name = "balancer_certificate_expiry_timestamp_seconds"
        (value,) = re.findall(rf'^{name}{{listener="envoy"}} (.*)$', metrics.exposition().decode(), re.MULTILINE)
        return float(value) - time.time()

    assert 3500 < left_s() <= 3600
    async with following(followed):
        authority.issue("balancer", dns=NAME, until=datetime.timedelta(hours=5))
        await eventually(lambda: left_s() > 4 * 3600, "the metric tells the new certificate's time")


async def test_a_certificate_that_expired_or_soon_will_is_served_and_warned_of(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "_LOOK_EVERY_S", 0.01)
    caplog.set_level(logging.INFO, "balancer.server.security.certificates")
    hour = datetime.timedelta(hours=1)

    def warned(words: str) -> bool:
        start = f"tls.envoy.cert_file: {tls.cert_file} {words} on 20"
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return any(text.startswith(start) and text.endswith("UTC; renew it") for text in texts)

    authority.issue("balancer", dns=NAME, since=-2 * hour, until=-hour)
    tls = EnvoyListenerTls(
        cert_file=str(authority.folder / "balancer.crt"),
        key_file=str(authority.folder / "balancer.key"),
        client_ca_file=str(authority.file),
    )
    followed = Certificates("envoy", tls)
    async with following(followed):
        await eventually(lambda: warned("expired"), "the start warns of the expired certificate")
        for since, until, words in [(-9 * hour, hour, "expires"), (-2 * hour, -hour, "expired")]:
            caplog.clear()
            served = followed._material
            authority.issue("balancer", dns=NAME, since=since, until=until)
            await eventually(lambda words=words: warned(words), f"the new certificate, which {words}, is warned of")
            assert followed._material is not served
        caplog.clear()
        authority.issue("balancer", dns=NAME)
        await eventually(lambda: "has a new certificate" in caplog.text, "the good certificate is in use")
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_of_a_chain_the_first_to_expire_counts(authority: Authority) -> None:
    tls = listener(authority)
    short = authority.issue("short", dns=NAME, until=datetime.timedelta(minutes=5)).cert.read_bytes()
    with Path(tls.cert_file).open("ab") as file:
        file.write(short)
    expires_s = Certificates("envoy", tls).expires_s
    assert expires_s == x509.load_pem_x509_certificate(short).not_valid_after_utc.timestamp()
