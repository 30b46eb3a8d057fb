"""Through a real Envoy: API keys that clients must show."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from support.envoy_fakes import Rig
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.waiting import eventually

from balancer.bootstrap.sections import ApiKeysSection
from balancer.errors import OperatorError

pytestmark = pytest.mark.integration
OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
FIRST, SECOND, THIRD = (f"{letter * 16}-secret" for letter in "abc")


def api_keys(folder: Path) -> ApiKeysSection:
    file = folder / "api-keys.yaml"
    file.write_text(f"acme: {FIRST}\nother: [{SECOND}]\n")
    return ApiKeysSection(file=str(file))


def seen(rig: Rig) -> list[dict[str, str]]:
    """Headers that reached workers, of both protocols."""
    over_rest = [headers for worker in rig.workers for _, headers, _ in worker.http_requests]
    over_grpc = [headers for worker in rig.workers for headers in worker.headers]
    return [{name.lower(): value for name, value in headers.items()} for headers in (*over_grpc, *over_rest)]


@by_front
async def test_only_who_has_a_key_is_served_and_it_goes_no_further(tmp_path: Path, front: str) -> None:
    async with guarded(front, tmp_path, api_keys=api_keys(tmp_path)).running() as rig:
        for wrong in (
            {},
            {"x_api_key": "wrong"},
            {"x_gateway_principal": "acme"},
            {"authorization": f"Bearer {FIRST}"},
        ):
            code, words = await grpc_status(rig, **wrong)
            assert code == UNAUTHENTICATED
            assert "authentication failed" in words
        status, body = await rest_status(rig)
        assert status == 401
        assert "authentication failed" in json.loads(body)["error"]
        assert seen(rig) == []
        assert await grpc_status(rig, x_api_key=FIRST, x_gateway_principal="root", x_tenant="root") == (OK, "")
        assert (await rest_status(rig, {"x-api-key": FIRST}))[0] == 200
        assert len(seen(rig)) == 2
        for headers in seen(rig):
            assert headers["x-gateway-principal"] == headers["x-tenant"] == "acme"
            assert FIRST not in str(headers)


async def test_keys_that_are_rotated_hold_without_a_restart(tmp_path: Path) -> None:
    async with guarded("pick", tmp_path, api_keys=api_keys(tmp_path)).running() as rig:
        assert (await grpc_status(rig, x_api_key=THIRD))[0] == UNAUTHENTICATED
        (tmp_path / "api-keys.yaml").write_text(f"acme: [{FIRST}, {THIRD}]\n")
        rig.envoy.renew_secrets()
        await eventually(
            lambda: grpc_status(rig, x_api_key=THIRD), "the new key is good", until=lambda found: found[0] == OK
        )
        assert (await grpc_status(rig, x_api_key=FIRST))[0] == OK
        assert (await grpc_status(rig, x_api_key=SECOND))[0] == UNAUTHENTICATED
        # What cannot be used changes nothing.
        (tmp_path / "api-keys.yaml").write_text("acme: short\n")
        with pytest.raises(OperatorError, match="acme needs a key"):
            rig.envoy.renew_secrets()
        assert (await grpc_status(rig, x_api_key=THIRD))[0] == OK


async def test_keys_stand_in_no_bootstrap_no_page_and_no_log(tmp_path: Path) -> None:
    rig = guarded("pick", tmp_path, api_keys=api_keys(tmp_path), access_log=str(tmp_path / "access.log"))
    async with rig.running():
        assert (await grpc_status(rig, x_api_key=FIRST))[0] == OK
        assert (await grpc_status(rig, x_api_key=f"{FIRST}x"))[0] == UNAUTHENTICATED
        async with rig.http.get(f"{rig.envoy.admin_url}/config_dump?include_eds") as response:
            dumped = await response.text()
        assert "api_key_auth" in dumped
        await rig.logged(tmp_path / "access.log", 2)
        for text in (dumped, (tmp_path / "access.log").read_text(), (tmp_path / "envoy.log").read_text()):
            assert FIRST not in text
        assert FIRST not in repr(rig.options)
