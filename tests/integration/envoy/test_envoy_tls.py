"""Through a real Envoy: TLS towards clients, and towards the balancer, with real certificates."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from pathlib import Path

import grpc
import pytest
import trustme
from support.envoy_fakes import FakeBalancer, Rig, a_request, go_on
from support.waiting import PATIENCE_S, eventually

from balancer.balancer_tls import BalancerTls
from balancer.bootstrap.sections import EnvoyTlsSection

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(certificate: trustme.LeafCert, directory: Path, name: str) -> tuple[Path, Path]:
    chain, key = directory / f"{name}.pem", directory / f"{name}.key"
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(str(chain), append=number > 0)
    certificate.private_key_pem.write_to_path(str(key))
    return chain, key


def client_credentials(authority: trustme.CA, own: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    if own is None:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), own.private_key_pem.bytes(), b"".join(pem.bytes() for pem in own.cert_chain_pems)
    )


async def test_grpc_and_rest_over_tls_on_one_port(tmp_path: Path, authority: trustme.CA) -> None:
    chain, key = write(authority.issue_cert("127.0.0.1"), tmp_path, "listener")
    rig = Rig(tmp_path, channel_credentials=client_credentials(authority))
    rig.options = dataclasses.replace(
        rig.options, listener_tls=EnvoyTlsSection(cert_file=str(chain), key_file=str(key))
    )
    async with rig.running():
        rig.balancers[0].respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
        assert await rig.infer() == "w1"
        rig.balancers[0].respond = lambda _: go_on(rig.workers[2].http_endpoint)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        url = f"https://{rig.envoy.endpoint}/v2/models/m/infer"
        async with rig.http.post(url, data=b"{}", ssl=context) as response:
            assert await response.text() == "w2"


async def test_clients_must_show_a_certificate_where_a_client_ca_is_set(tmp_path: Path, authority: trustme.CA) -> None:
    chain, key = write(authority.issue_cert("127.0.0.1"), tmp_path, "listener")
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    rig = Rig(tmp_path, channel_credentials=client_credentials(authority, authority.issue_cert("client")))
    rig.options = dataclasses.replace(
        rig.options, listener_tls=EnvoyTlsSection(cert_file=str(chain), key_file=str(key), client_ca_file=str(ca))
    )
    async with rig.running():
        assert await rig.infer() in {"w0", "w1", "w2"}
        async with grpc.aio.secure_channel(rig.envoy.endpoint, client_credentials(authority)) as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer", request_serializer=lambda m: m.SerializeToString()
            )
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await infer(a_request(), timeout=PATIENCE_S)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls_towards_the_balancer(tmp_path: Path, authority: trustme.CA, mutual: bool) -> None:
    served = authority.issue_cert("balancer.example")
    pair = (served.private_key_pem.bytes(), b"".join(pem.bytes() for pem in served.cert_chain_pems))
    root = authority.cert_pem.bytes() if mutual else None
    balancer = FakeBalancer(credentials=grpc.ssl_server_credentials([pair], root, require_client_auth=mutual))
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    tls = BalancerTls(ca, "balancer.example")
    if mutual:
        chain, key = write(authority.issue_cert("envoy"), tmp_path, "envoy")
        tls = dataclasses.replace(tls, certificate=chain, private_key=key)
    rig = Rig(tmp_path, balancers=[balancer])
    rig.options = dataclasses.replace(rig.options, balancer_tls=tls)
    async with rig.running():
        # Endpoints came over TLS, or nobody would serve; and so does the pick.
        balancer.respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
        assert {await rig.infer() for _ in range(5)} == {"w1"}


async def test_a_balancer_with_another_name_is_not_trusted(tmp_path: Path, authority: trustme.CA) -> None:
    served = authority.issue_cert("impostor.example")
    pair = (served.private_key_pem.bytes(), b"".join(pem.bytes() for pem in served.cert_chain_pems))
    balancer = FakeBalancer(credentials=grpc.ssl_server_credentials([pair]))
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    rig = Rig(tmp_path, balancers=[balancer])
    rig.options = dataclasses.replace(rig.options, balancer_tls=BalancerTls(ca, "balancer.example"))
    async with rig.running():
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert balancer.seen == []


def shown_serial(endpoint: str, authority: trustme.CA) -> int:
    """The serial number of the certificate that a new connection sees."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    host, port = endpoint.split(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        certificate = secured.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


async def test_a_certificate_that_was_renewed_is_shown_without_a_restart(tmp_path: Path, authority: trustme.CA) -> None:
    (tmp_path / "secrets").mkdir()
    first = authority.issue_cert("127.0.0.1")
    chain, key = write(first, tmp_path / "secrets", "listener")
    rig = Rig(tmp_path, channel_credentials=client_credentials(authority))
    rig.options = dataclasses.replace(
        rig.options, listener_tls=EnvoyTlsSection(cert_file=str(chain), key_file=str(key))
    )
    async with rig.running():
        assert await rig.infer() in {"w0", "w1", "w2"}
        before = await asyncio.to_thread(shown_serial, rig.envoy.endpoint, authority)
        # Both halves are renewed by renaming, one after the other: what does not fit together is not taken.
        new_chain, new_key = write(authority.issue_cert("127.0.0.1"), tmp_path, "renewed")
        new_key.rename(key)
        assert await asyncio.to_thread(shown_serial, rig.envoy.endpoint, authority) == before
        new_chain.rename(chain)

        async def is_shown() -> bool:
            return await asyncio.to_thread(shown_serial, rig.envoy.endpoint, authority) != before

        await eventually(is_shown)
        # Connections that were open live on.
        assert await rig.infer() in {"w0", "w1", "w2"}
        assert await rig.statistic(r"http\.inference\.downstream_cx_destroy_local") == 0
