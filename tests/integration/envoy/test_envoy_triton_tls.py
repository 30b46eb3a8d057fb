"""Through a real Envoy: TLS to the workers, which are fake ones.

Triton has TLS at its gRPC port only, so for REST they stand for a proxy beside it. How it goes with Triton's own is in
tests/integration/agent/test_agent_and_triton.py.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from support.bootstrap import changed
from support.certificates import Authority, Identity
from support.envoy_fakes import FakeWorker, Rig
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.waiting import eventually

from balancer.bootstrap.sections import TritonTlsSection

pytestmark = pytest.mark.integration
NAME = "triton.example"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def rig_of(front: str, directory: Path, authority: Authority, name: str, shown: Identity | None) -> Rig:
    """All workers have a certificate by `name`; Envoy expects NAME."""
    rig = guarded(front, directory)
    own = authority.issue("worker", dns=name)
    rig.workers = [FakeWorker(f"w{number}", tls=own.server(authority)) for number in range(3)]
    pair = {} if shown is None else {"cert_file": str(shown.cert), "key_file": str(shown.key)}
    triton_tls = TritonTlsSection(ca_file=str(authority.file), server_name=NAME, **pair)
    rig.options = changed(rig.options, triton_tls=triton_tls)
    return rig


@by_front
async def test_requests_go_to_workers_by_mutual_tls(tmp_path: Path, authority: Authority, front: str) -> None:
    async with rig_of(front, tmp_path, authority, NAME, authority.issue("envoy", dns="envoy")).running() as rig:
        assert {(await grpc_status(rig))[0] for _ in range(3)} == {grpc.StatusCode.OK}
        assert {(await rest_status(rig))[0] for _ in range(3)} == {200}


@pytest.mark.parametrize(("name", "shows"), [("another.example", True), (NAME, False)])
async def test_a_worker_by_another_name_gets_nothing_nor_does_one_that_wants_a_certificate(
    tmp_path: Path, authority: Authority, name: str, shows: bool
) -> None:
    shown = authority.issue("envoy", dns="envoy") if shows else None
    async with rig_of("pick", tmp_path, authority, name, shown).running() as rig:
        assert (await grpc_status(rig))[0] == grpc.StatusCode.UNAVAILABLE
        assert (await rest_status(rig))[0] == 503
        assert not any(worker.requests or worker.http_requests for worker in rig.workers)


async def test_a_certificate_that_envoy_shows_is_renewed_without_a_failure(
    tmp_path: Path, authority: Authority
) -> None:
    shown = authority.issue("envoy", dns="envoy")
    async with rig_of("pick", tmp_path, authority, NAME, shown).running() as rig:
        assert (await grpc_status(rig))[0] == grpc.StatusCode.OK
        before = await rig.statistic(r"cluster\.triton_http\.client_ssl_socket_factory\.ssl_context_update_by_sds")
        new = authority.issue("renewed", dns="envoy")
        new.key.rename(shown.key)
        new.cert.rename(shown.cert)

        async def is_taken() -> bool:
            name = r"cluster\.triton_http\.client_ssl_socket_factory\.ssl_context_update_by_sds"
            return await rig.statistic(name) > before

        await eventually(is_taken, "Envoy took the new certificate")
        assert (await rest_status(rig))[0] == 200
        assert (await grpc_status(rig))[0] == grpc.StatusCode.OK
