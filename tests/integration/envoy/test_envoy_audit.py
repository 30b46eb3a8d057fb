"""Through a real Envoy: the audit log, by either front end, with all of the balancer that picks."""

from pathlib import Path
from typing import Any

import pytest
from support.bootstrap import changed
from support.both_fronts import BothFronts
from support.certificates import Authority
from support.guarded_listener import grpc_status, rest_status

from balancer.bootstrap.sections import ApiKeysSection, AuditLogSection, EnvoyTlsSection
from policies import BUILTIN

pytestmark = pytest.mark.integration
KEY = "acme-acme-acme-acme"


def audited(tmp_path: Path, native: bool, **further: Any) -> BothFronts:
    rig = BothFronts(tmp_path, policy=BUILTIN["round_robin"](), native=native)
    rig.audited = True
    log = str(tmp_path / "audit.log")
    if not native:
        further["native"] = None
    rig.options = changed(rig.options, audit_log=AuditLogSection(file=log), **further)
    return rig


@pytest.mark.parametrize("native", [False, True], ids=["pick", "native"])
async def test_each_request_has_one_line_that_says_who_asked_for_what_and_who_served(
    tmp_path: Path, native: bool
) -> None:
    file = tmp_path / "api-keys.yaml"
    file.write_text(f"acme: {KEY}\n")
    log = tmp_path / "audit.log"
    async with audited(tmp_path, native, api_keys=ApiKeysSection(file=str(file))).running() as rig:
        assert (await grpc_status(rig, x_api_key=KEY, x_request_id="one"))[1] == ""
        sent = {"x-api-key": KEY, "x-request-id": "two"}
        assert (await rest_status(rig, sent, "/v2/models/m/infer?token=hidden"))[0] == 200
        assert (await grpc_status(rig, x_api_key="a wrong one", x_request_id="three"))[1]
        lines = await rig.logged(log, 3)
    by_id = {line["request_id"]: line for line in lines}
    assert len(lines) == len(by_id) == 3
    over_grpc, over_rest, refused = (by_id[name] for name in ("one", "two", "three"))
    for line in (over_grpc, over_rest):
        assert line["source"].startswith("127.0.0.1")
        assert (line["principal"], line["model"], line["policy"]) == ("acme", "m", "round_robin")
        assert line["worker"] in {"w0", "w1", "w2"}
        assert line["status"] == 200
    assert over_grpc["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert over_grpc["grpc_status"] == 0
    assert over_rest["path"] == "/v2/models/m/infer"
    assert (refused["principal"], refused["worker"], refused["model"]) == (None, None, None)
    assert refused["grpc_status"] == 16
    for secret in (KEY, "wrong one", "hidden"):
        assert secret not in log.read_text()


async def test_a_certificate_names_the_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    own = authority.issue("listener", ip="127.0.0.1")
    rig = audited(tmp_path, native=True)
    rig.channel_credentials = authority.issue("alice", uri="spiffe://clients/alice").credentials(authority)
    tls = EnvoyTlsSection(cert_file=str(own.cert), key_file=str(own.key), client_ca_file=str(authority.file))
    rig.options = changed(rig.options, tls=tls)
    async with rig.running():
        assert (await grpc_status(rig, x_gateway_principal="root"))[1] == ""
        lines = await rig.logged(tmp_path / "audit.log", 1)
    assert [line["principal"] for line in lines] == ["spiffe://clients/alice"]


async def test_the_file_is_rotated_without_losing_a_line(tmp_path: Path) -> None:
    log, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    async with audited(tmp_path, native=False).running() as rig:
        await grpc_status(rig, x_request_id="before")
        before = await rig.logged(log, 1)
        log.rename(moved)
        await grpc_status(rig, x_request_id="after")
        after = await rig.logged(log, 1)
    assert [[line["request_id"] for line in lines] for lines in (before, after)] == [["before"], ["after"]]
    assert len(moved.read_text().splitlines()) == 1
