"""Through a real Envoy: limits of requests for each client, kept by itself or by a service."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.envoy_fakes import Rig
from support.fake_rate_limits import FakeRateLimitService
from support.guarded_listener import by_front, grpc_status, guarded, overlay, rest_status
from support.tokens import AUDIENCE, ISSUER, Issuer

from balancer.bootstrap.sections import ApiKeysSection, JwtSection, LocalRateLimitSection, RateLimitSection

pytestmark = pytest.mark.integration
OK, LIMITED = grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED
WORDS = "rate limit: more requests than are allowed here; send fewer, or try again later"
KEYS = {"acme": "acme-acme-acme-acme", "other": "other-other-other-other"}
# Of an hour, so that nothing is filled up again while a test runs.
THREE = LocalRateLimitSection(per="principal", requests=3, every_s=3600)


def limited(folder: Path, **limits: Any) -> dict[str, Any]:
    file = folder / "api-keys.yaml"
    file.write_text("".join(f"{client}: {key}\n" for client, key in KEYS.items()))
    return {"api_keys": ApiKeysSection(file=str(file)), **limits}


@by_front
async def test_each_principal_has_a_limit_of_its_own(tmp_path: Path, front: str) -> None:
    async with guarded(front, tmp_path, **limited(tmp_path, local_rate_limit=THREE)).running() as rig:
        # By headers of its own choice, nobody is taken for somebody else.
        ends = [
            await grpc_status(rig, x_api_key=KEYS["acme"], x_gateway_principal=f"p{i}", x_tenant=f"t{i}")
            for i in range(5)
        ]
        assert ends == 3 * [(OK, "")] + 2 * [(LIMITED, WORDS)]
        status, body = await rest_status(rig, {"x-api-key": KEYS["acme"]})
        assert (status, json.loads(body)) == (429, {"error": WORDS})
        assert await grpc_status(rig, x_api_key=KEYS["other"]) == (OK, "")
        assert sum(len(worker.requests) for worker in rig.workers) == 4


async def test_a_tenant_s_principals_share_its_limit(tmp_path: Path) -> None:
    issuer = Issuer()
    jwt = JwtSection(
        issuer=ISSUER, audiences=(AUDIENCE,), jwks_file=str(issuer.write(tmp_path / "jwks.json")), tenant_claim="org"
    )
    limit = THREE.model_copy(update={"per": "tenant"})
    async with guarded("pick", tmp_path, jwt=jwt, local_rate_limit=limit).running() as rig:

        async def end(subject: str, org: str | None) -> grpc.StatusCode:
            token = issuer.token(subject, org=org)
            return (await grpc_status(rig, authorization=f"Bearer {token}", x_tenant=subject))[0]

        assert [await end(f"s{i}", "acme") for i in range(4)] == [OK, OK, OK, LIMITED]
        assert await end("s0", "other") == OK
        # Tokens without a tenant are counted together, and not let through without a count.
        assert [await end(f"s{i}", None) for i in range(4)] == [OK, OK, OK, LIMITED]


async def test_addresses_have_a_limit_without_any_credentials(tmp_path: Path) -> None:
    limit = THREE.model_copy(update={"per": "address"})
    async with guarded("native", tmp_path, local_rate_limit=limit).running() as rig:
        ends = [(await grpc_status(rig, x_forwarded_for=f"10.0.0.{i}"))[0] for i in range(5)]
        assert ends == [OK, OK, OK, LIMITED, LIMITED]


async def test_what_is_counted_apart_is_bounded(tmp_path: Path) -> None:
    issuer = Issuer()
    jwt = JwtSection(issuer=ISSUER, audiences=(AUDIENCE,), jwks_file=str(issuer.write(tmp_path / "jwks.json")))
    one = LocalRateLimitSection(per="principal", requests=1, every_s=3600)
    few = overlay(tmp_path, {"envoy.filters.http.local_ratelimit": {"max_dynamic_descriptors": 4}})
    async with guarded("pick", tmp_path, jwt=jwt, local_rate_limit=one, overlay=str(few)).running() as rig:

        async def end(subject: str) -> grpc.StatusCode:
            return (await grpc_status(rig, authorization=f"Bearer {issuer.token(subject)}"))[0]

        assert [await end("first"), await end("first")] == [OK, LIMITED]
        assert [await end(f"s{i}") for i in range(20)] == 20 * [OK]
        # Forgotten, as the docs say, and thus bounded.
        assert await end("first") == OK


@pytest.fixture
async def service() -> AsyncIterator[FakeRateLimitService]:
    service = FakeRateLimitService()
    await service.start()
    yield service
    await service.stop()


def kept_by(front: str, folder: Path, service: FakeRateLimitService, refuse: bool = False) -> Rig:
    """With patience: a slow machine must not look like a service that is away."""
    typed = {"domain": "triton", "timeout": "10s", "failure_mode_deny": refuse}
    further = overlay(folder, {"envoy.filters.http.ratelimit": typed})
    limit = RateLimitSection(per="principal", service=service.endpoint)
    return guarded(front, folder, **limited(folder, rate_limit=limit), overlay=str(further))


@by_front
async def test_a_service_says_who_has_had_enough(tmp_path: Path, front: str, service: FakeRateLimitService) -> None:
    service.limits = {"acme": 2}
    async with kept_by(front, tmp_path, service).running() as rig:
        ends = [await grpc_status(rig, x_api_key=KEYS["acme"]) for _ in range(4)]
        assert ends == 2 * [(OK, "")] + 2 * [(LIMITED, WORDS)]
        assert (await rest_status(rig, {"x-api-key": KEYS["acme"]}))[0] == 429
        assert (await rest_status(rig, {"x-api-key": KEYS["other"]}))[0] == 200
        assert service.counts == Counter({("triton", "principal", "acme"): 5, ("triton", "principal", "other"): 1})
        # Who has no key is turned away before anybody is asked.
        assert (await rest_status(rig))[0] == 401
        assert service.counts.total() == 6


@pytest.mark.parametrize("refuse", [False, True])
async def test_while_the_service_is_away_requests_pass_or_not_as_configured(
    tmp_path: Path, service: FakeRateLimitService, refuse: bool
) -> None:
    async with kept_by("pick", tmp_path, service, refuse).running() as rig:
        assert (await grpc_status(rig, x_api_key=KEYS["acme"]))[0] == OK
        await service.stop()
        code, words = await grpc_status(rig, x_api_key=KEYS["acme"])
        assert code == (grpc.StatusCode.UNAVAILABLE if refuse else OK)
        assert ("does not answer" in words) == refuse
        assert (await rest_status(rig, {"x-api-key": KEYS["acme"]}))[0] == (503 if refuse else 200)
