"""Through a real Envoy: TLS towards clients, the balancer, and the workers (fake ones), with real certificates.

Triton has TLS at its gRPC port only, so for REST the workers stand for a proxy beside it.
"""

from pathlib import Path
from typing import Any

import grpc
import pytest
from support.bootstrap import changed
from support.certificates import Authority, Identity
from support.envoy_fakes import FakeBalancer, FakeWorker, Rig, a_request
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.waiting import PATIENCE_S

from balancer.bootstrap.sections import BalancerTlsSection, EnvoyTlsSection, TritonTlsSection

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


async def test_a_balancer_with_another_name_is_not_trusted(tmp_path: Path, authority: Authority) -> None:
    async with asking(tmp_path, authority, "impostor.example").running() as rig:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await rig.infer()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert rig.balancers[0].seen == []


TRITON_NAME = "triton.example"


def rig_of(front: str, directory: Path, authority: Authority, name: str, shown: Identity | None) -> Rig:
    """All workers have a certificate by `name`; Envoy expects NAME."""
    rig = guarded(front, directory)
    own = authority.issue("worker", dns=name)
    rig.workers = [FakeWorker(f"w{number}", tls=own.server(authority)) for number in range(3)]
    pair = {} if shown is None else {"cert_file": str(shown.cert), "key_file": str(shown.key)}
    triton_tls = TritonTlsSection(ca_file=str(authority.file), server_name=TRITON_NAME, **pair)
    rig.options = changed(rig.options, triton_tls=triton_tls)
    return rig


@by_front
async def test_requests_go_to_workers_by_mutual_tls(tmp_path: Path, authority: Authority, front: str) -> None:
    async with rig_of(front, tmp_path, authority, TRITON_NAME, authority.issue("envoy", dns="envoy")).running() as rig:
        assert {(await grpc_status(rig))[0] for _ in range(3)} == {grpc.StatusCode.OK}
        assert {(await rest_status(rig))[0] for _ in range(3)} == {200}


@pytest.mark.parametrize(("name", "shows"), [("another.example", True), (TRITON_NAME, False)])
async def test_a_worker_by_another_name_gets_nothing_nor_does_one_that_wants_a_certificate(
    tmp_path: Path, authority: Authority, name: str, shows: bool
) -> None:
    shown = authority.issue("envoy", dns="envoy") if shows else None
    async with rig_of("pick", tmp_path, authority, name, shown).running() as rig:
        assert (await grpc_status(rig))[0] == grpc.StatusCode.UNAVAILABLE
        assert (await rest_status(rig))[0] == 503
        assert not any(worker.requests or worker.http_requests for worker in rig.workers)
