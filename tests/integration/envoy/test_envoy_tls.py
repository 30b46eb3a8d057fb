"""Through a real Envoy: TLS towards clients, and towards the balancer, with real certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.bootstrap import changed
from support.certificates import Authority, Identity, shown_serial
from support.envoy_fakes import FakeBalancer, Rig, a_request, go_on
from support.waiting import PATIENCE_S, eventually

from balancer.bootstrap.sections import BalancerTlsSection, EnvoyTlsSection

pytestmark = pytest.mark.integration


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def listening(directory: Path, authority: Authority, client: Identity | None = None, **tls: str) -> Rig:
    """With a certificate; a client's is asked for where one is shown."""
    own = authority.issue("listener", ip="127.0.0.1")
    shown = grpc.ssl_channel_credentials(authority.pem) if client is None else client.credentials(authority)
    rig = Rig(directory, channel_credentials=shown)
    section = EnvoyTlsSection(cert_file=str(own.cert), key_file=str(own.key), **tls)
    rig.options = changed(rig.options, tls=section)
    return rig


async def test_grpc_and_rest_over_tls_on_one_port(tmp_path: Path, authority: Authority) -> None:
    async with listening(tmp_path, authority).running() as rig:
        rig.balancers[0].respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
        assert await rig.infer() == "w1"
        rig.balancers[0].respond = lambda _: go_on(rig.workers[2].http_endpoint)
        context = ssl.create_default_context(cafile=str(authority.file))
        url = f"https://{rig.envoy.endpoint}/v2/models/m/infer"
        async with rig.http.post(url, data=b"{}", ssl=context) as response:
            assert await response.text() == "w2"


async def test_clients_must_show_a_certificate_where_a_client_ca_is_set(tmp_path: Path, authority: Authority) -> None:
    client = authority.issue("client", dns="client")
    async with listening(tmp_path, authority, client, client_ca_file=str(authority.file)).running() as rig:
        assert await rig.infer() in {"w0", "w1", "w2"}
        without = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(rig.envoy.endpoint, without) as channel:
            infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await infer(a_request().SerializeToString(), timeout=PATIENCE_S)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def asking(directory: Path, authority: Authority, name: str, client: Identity | None = None) -> Rig:
    """Of a balancer with a certificate by that name; Envoy shows `client`, which is then asked for."""
    own = authority.issue("balancer", dns=name)
    pair, root = (own.key.read_bytes(), own.cert.read_bytes()), authority.pem if client else None
    credentials = grpc.ssl_server_credentials([pair], root, require_client_auth=client is not None)
    shown = {} if client is None else {"cert_file": str(client.cert), "key_file": str(client.key)}
    tls = BalancerTlsSection(ca_file=str(authority.file), server_name="balancer.example", **shown)
    rig = Rig(directory, balancers=[FakeBalancer(credentials=credentials)])
    rig.options = changed(rig.options, balancer_tls=tls)
    return rig


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls_towards_the_balancer(tmp_path: Path, authority: Authority, mutual: bool) -> None:
    client = authority.issue("envoy", dns="envoy") if mutual else None
    async with asking(tmp_path, authority, "balancer.example", client).running() as rig:
        # Endpoints came over TLS, or nobody would serve; and so does the pick.
        rig.balancers[0].respond = lambda _: go_on(rig.workers[1].grpc_endpoint)
        assert {await rig.infer() for _ in range(5)} == {"w1"}


async def test_a_balancer_with_another_name_is_not_trusted(tmp_path: Path, authority: Authority) -> None:
    async with asking(tmp_path, authority, "impostor.example").running() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert rig.balancers[0].seen == []


async def test_a_certificate_that_was_renewed_is_shown_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    trusted = ssl.create_default_context(cafile=str(authority.file))
    async with listening(tmp_path, authority).running() as rig:

        async def shown() -> int:
            return await asyncio.to_thread(shown_serial, rig.envoy.endpoint, trusted, "127.0.0.1")

        assert await rig.infer() in {"w0", "w1", "w2"}
        before = await shown()
        # Both halves are renewed by renaming, one after the other: what does not fit together is not taken.
        new, folder = authority.issue("renewed", ip="127.0.0.1"), authority.folder
        new.key.rename(folder / "listener.key")
        assert await shown() == before
        new.cert.rename(folder / "listener.crt")
        await eventually(shown, until=lambda found: found != before)
        # Connections that were open live on.
        assert await rig.infer() in {"w0", "w1", "w2"}
        assert await rig.statistic(r"http\.inference\.downstream_cx_destroy_local") == 0
