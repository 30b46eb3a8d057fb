"""By what a listener lets an ingress in: real certificates, shown anew once they are renewed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from support.certificates import Authority
from unit.ingress.test_calls import message
from unit.ingress.test_grpc_caller import ASKED, Answering, serving

from balancer.balancer_tls import BalancerTls
from balancer.errors import OperatorError
from balancer.ingress.caller import Access, Caller
from balancer.ingress.calls import call_of
from balancer.ingress.outcomes import Answer, Failure

NAME = "listener.test"
HTTP = message(b"asked", {"x-model": "digits"})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def access(authority: Authority) -> Access:
    own, key = authority.issue("ingress"), authority.folder / "key"
    key.write_text("first\n")
    return Access(BalancerTls(authority.file, NAME, own.cert, own.key), key)


@asynccontextmanager
async def listening(answer: Answering, authority: Authority, name: str = NAME) -> AsyncIterator[str]:
    """A listener of gRPC, whose clients show certificates."""
    credentials, _ = authority.issue("listener", dns=name).server(authority)
    server, port = serving(answer, credentials)
    await server.start()
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def calling(listener: str, access: Access) -> AsyncIterator[Caller]:
    caller = Caller(listener, access)
    await caller.open()
    try:
        yield caller
    finally:
        await caller.close()


async def test_http_shows_certificate_and_key_and_the_new_ones_once_they_are_renewed(
    authority: Authority, access: Access
) -> None:
    seen: list[tuple[int, str]] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        shown = request.transport.get_extra_info("peercert")
        seen.append((int(shown["serialNumber"], 16), request.headers["authorization"]))
        return web.Response(text="said")

    app = web.Application()
    app.router.add_post("/v2/models/digits/infer", answer)
    _, context = authority.issue("listener", dns=NAME).server(authority)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    async with server, calling(f"https://127.0.0.1:{server.port}", access) as caller:
        assert isinstance(await caller.call(call_of(HTTP), HTTP, float("inf")), Answer)
        serial = authority.issue("ingress").serial
        assert access.key_file is not None
        access.key_file.write_text("second")
        await caller.renew()
        assert isinstance(await caller.call(call_of(HTTP), HTTP, float("inf")), Answer)
    assert [words for _, words in seen] == ["Bearer first", "Bearer second"]
    assert seen[1][0] == serial != seen[0][0]


async def test_grpc_shows_certificate_and_key_and_the_new_ones_once_they_are_renewed(
    authority: Authority, access: Access
) -> None:
    seen: list[tuple[int, str]] = []

    async def answer(_: bytes, context: Any) -> bytes:
        shown = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])
        seen.append((shown.serial_number, dict(context.invocation_metadata())["authorization"]))
        return b"said"

    async with listening(answer, authority) as listener, calling(listener, access) as caller:
        assert isinstance(await caller.call(call_of(ASKED), ASKED, float("inf")), Answer)
        serial = authority.issue("ingress").serial
        await caller.renew()
        assert isinstance(await caller.call(call_of(ASKED), ASKED, float("inf")), Answer)
    assert [words for _, words in seen] == ["Bearer first"] * 2
    assert seen[1][0] == serial != seen[0][0]


@pytest.mark.parametrize("asked", [HTTP, ASKED])
async def test_who_listens_under_another_name_is_sent_nothing(asked: Any, authority: Authority, access: Access) -> None:
    async def answer(_: bytes, context: Any) -> bytes:
        return pytest.fail("it was sent")

    async with listening(answer, authority, "another.test") as listener, calling(listener, access) as caller:
        found = await caller.call(call_of(asked), asked, float("inf"))
    assert isinstance(found, Failure)
    assert not found.final


async def test_a_file_that_is_none_is_named_and_those_before_stay(authority: Authority, access: Access) -> None:
    async def answer(_: bytes, context: Any) -> bytes:
        return b"said"

    async with listening(answer, authority) as listener, calling(listener, access) as caller:
        assert access.tls is not None
        assert access.tls.certificate is not None
        access.tls.certificate.write_text("none")
        with pytest.raises(OperatorError, match="cannot be used"):
            await caller.renew()
        assert isinstance(await caller.call(call_of(ASKED), ASKED, float("inf")), Answer)
    with pytest.raises(OperatorError, match="cannot be used"):
        await Caller("https://127.0.0.1:1", access).open()
