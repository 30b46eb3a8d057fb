"""Through a real Envoy: tokens and API keys that clients must show."""

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from support.certificates import Authority, Identity
from support.envoy_fakes import Rig
from support.guarded_listener import by_front, grpc_status, guarded, rest_status
from support.tokens import AUDIENCE, ISSUER, Issuer
from support.waiting import eventually

from balancer.bootstrap.sections import ApiKeysSection, JwtSection
from balancer.errors import OperatorError

pytestmark = pytest.mark.integration
OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
STRANGE: list[tuple[dict[str, Any], str, int]] = [
    ({"exp": 1}, "Jwt is expired", 401),
    ({"exp": None}, "Jwt", 401),
    ({"nbf": int(time.time()) + 36_000}, "Jwt not yet valid", 401),
    ({"iss": "https://another.example"}, "Jwt issuer is not configured", 401),
    ({"aud": "another"}, "Audiences in Jwt are not allowed", 403),
]
"""Claims, and the refusal of a token with them."""


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


def published_at(url: str) -> JwtSection:
    return JwtSection(issuer=ISSUER, audiences=(AUDIENCE,), jwks_url=url)


def from_file(folder: Path, issuer: Issuer, **further: object) -> JwtSection:
    folder.mkdir(exist_ok=True)
    file = issuer.write(folder / "jwks.json")
    return JwtSection(issuer=ISSUER, audiences=(AUDIENCE,), jwks_file=str(file), **further)  # type: ignore[arg-type]


def bearer(token: str) -> str:
    return f"Bearer {token}"


@by_front
async def test_only_who_has_a_token_is_served_and_it_goes_no_further(
    tmp_path: Path, issuer: Issuer, front: str
) -> None:
    rig = guarded(front, tmp_path, jwt=from_file(tmp_path / "keys", issuer))
    async with rig.running():
        assert await grpc_status(rig) == (UNAUTHENTICATED, "Jwt is missing")
        status, body = await rest_status(rig)
        assert (status, json.loads(body)) == (401, {"error": "Jwt is missing"})
        assert not any(worker.requests or worker.http_requests for worker in rig.workers)
        token = bearer(issuer.token())
        assert await grpc_status(rig, authorization=token, x_gateway_principal="root", x_tenant="root") == (OK, "")
        assert (await rest_status(rig, {"authorization": token}))[0] == 200
        (over_grpc,) = [seen for worker in rig.workers for seen in worker.headers]
        ((_, over_rest, _),) = [seen for worker in rig.workers for seen in worker.http_requests]
        for headers in (over_grpc, {name.lower(): value for name, value in over_rest.items()}):
            assert "authorization" not in headers
            assert headers["x-gateway-principal"] == headers["x-tenant"] == "alice"


async def test_a_token_that_is_not_for_here_and_now_or_that_its_issuer_did_not_sign_is_refused(
    tmp_path: Path, issuer: Issuer
) -> None:
    async with guarded("pick", tmp_path, jwt=from_file(tmp_path / "keys", issuer)).running() as rig:
        for claims, words, status in STRANGE:
            token = bearer(issuer.token(**claims))
            code, message = await grpc_status(rig, authorization=token)
            assert code == (UNAUTHENTICATED if status == 401 else grpc.StatusCode.PERMISSION_DENIED)
            assert words in message
            assert await rest_status(rig, {"authorization": token}) == (
                status,
                json.dumps({"error": message}, separators=(",", ":")) + "\n",
            )
        forged = Issuer(kid=issuer.kid).token()
        head, payload, _ = issuer.token().split(".")
        unsigned = f"eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}."
        for token in (forged, unsigned, f"{head}.{payload}.", "x", ""):
            assert (await grpc_status(rig, authorization=bearer(token)))[0] == UNAUTHENTICATED, token
        assert (await rest_status(rig, path=f"/v2/models/m/infer?access_token={issuer.token()}"))[0] == 401
        assert not any(worker.requests or worker.http_requests for worker in rig.workers)


async def test_health_is_open_where_that_is_wanted_and_nothing_else_is(tmp_path: Path, issuer: Issuer) -> None:
    jwt = from_file(tmp_path / "keys", issuer)
    async with guarded("pick", tmp_path, jwt=jwt, open_health=True).running() as rig:
        assert (await rest_status(rig, path="/v2/health/ready"))[0] == 200
        assert (await rest_status(rig, path="/v2/health/ready/"))[0] == 401
        assert (await rest_status(rig, path="/v2/models/m/ready"))[0] == 401
        assert (await grpc_status(rig))[0] == UNAUTHENTICATED


async def test_an_issuer_s_new_keys_are_taken_in_while_requests_flow(tmp_path: Path, issuer: Issuer) -> None:
    jwt = from_file(tmp_path / "keys", issuer)
    async with guarded("pick", tmp_path, jwt=jwt).running() as rig:
        renewed = Issuer(kid="2")
        token = bearer(renewed.token())
        assert (await grpc_status(rig, authorization=token))[0] == UNAUTHENTICATED
        assert jwt.jwks_file is not None
        renewed.write(Path(jwt.jwks_file))
        rig.envoy.renew_secrets()
        await eventually(
            lambda: grpc_status(rig, authorization=token), "the new key is known", until=lambda found: found[0] == OK
        )
        assert (await grpc_status(rig, authorization=bearer(issuer.token())))[0] == UNAUTHENTICATED


@asynccontextmanager
async def published(issuer: Issuer, tls: ssl.SSLContext) -> AsyncIterator[tuple[int, list[str]]]:
    """The port of a server that has the issuer's keys, and the hosts that it was asked for."""
    hosts: list[str] = []

    async def publish(request: web.Request) -> web.Response:
        hosts.append(request.host)
        return web.Response(text=issuer.jwks())

    app = web.Application()
    app.router.add_get("/jwks.json", publish)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1], hosts
    finally:
        await runner.cleanup()


def shown(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.cert, identity.key)
    return context


@by_front
async def test_keys_are_fetched_over_https_from_a_server_that_the_authority_signed(
    tmp_path: Path, issuer: Issuer, front: str
) -> None:
    authority = Authority(tmp_path / "authority")
    async with published(issuer, shown(authority.issue("issuer", dns="localhost"))) as (port, hosts):
        url = f"https://localhost:{port}/jwks.json"
        jwt = published_at(url)
        async with guarded(front, tmp_path, jwt=jwt, jwks_ca=authority.file).running() as rig:
            assert (await grpc_status(rig, authorization=bearer(issuer.token()))) == (OK, "")
            assert (await rest_status(rig, {"authorization": bearer(issuer.token())}))[0] == 200
            assert (await grpc_status(rig, authorization=bearer(Issuer().token())))[0] == UNAUTHENTICATED
        assert set(hosts) == {f"localhost:{port}"}


@by_front
@pytest.mark.parametrize("impostor", ["of another authority", "of another name"])
async def test_keys_of_a_server_that_is_not_the_issuer_s_are_not_taken(
    tmp_path: Path, issuer: Issuer, front: str, impostor: str
) -> None:
    """Whoever stands in its place could sign tokens of anybody."""
    authority, another = Authority(tmp_path / "authority"), Authority(tmp_path / "another")
    by, name = (another, "localhost") if impostor == "of another authority" else (authority, "localhost.example")
    async with published(issuer, shown(by.issue("issuer", dns=name))) as (port, hosts):
        url = f"https://localhost:{port}/jwks.json"
        jwt = published_at(url)
        async with guarded(front, tmp_path, jwt=jwt, jwks_ca=authority.file).running() as rig:
            code, words = await grpc_status(rig, authorization=bearer(issuer.token()))
            assert (code, words) == (UNAUTHENTICATED, "Jwks remote fetch is failed")
            assert (await rest_status(rig, {"authorization": bearer(issuer.token())}))[0] == 401
        assert hosts == []


@by_front
async def test_a_claim_that_no_worker_would_take_in_a_header_is_refused_before_any_is_asked(
    tmp_path: Path, issuer: Issuer, front: str
) -> None:
    """Subjects are often what users call themselves. At a worker it would look like the worker's fault."""
    jwt = from_file(tmp_path / "keys", issuer, tenant_claim="org")
    async with guarded(front, tmp_path, jwt=jwt).running() as rig:

        async def ends(**claims: str) -> tuple[grpc.StatusCode, int]:
            token = bearer(issuer.token(**claims))
            code, words = await grpc_status(rig, authorization=token)
            status, _ = await rest_status(rig, {"authorization": token})
            assert code == OK or "control characters" in words
            return code, status

        for text in ("a\r\nx-evil: 1", "a\nb", "\0", "b\x7f"):
            refused = (grpc.StatusCode.PERMISSION_DENIED, 403)
            assert await ends(subject=text, org="acme") == await ends(subject="alice", org=text) == refused
        assert not any(worker.headers or worker.http_requests for worker in rig.workers)
        for text in ("", "ä€", 'a"b', "a,b", "x" * 250):
            assert await ends(subject=text, org=text) == (OK, 200)


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
